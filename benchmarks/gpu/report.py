"""What a node's steps found, in one page for people and one archive to send back."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING, Any

from benchmarks.placements import swapped

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

COMPARED = ("*/validation.json", "*/predicted.json", "*/measured.json", "engines-*/*.json*")
PACKED = ("*.json", "*.md", "*.yaml", "profile/*", "profile/engines/*", *COMPARED)
LARGEST_BYTES = 64 << 20


def write(options: argparse.Namespace) -> int:
    """Write ``report.md`` and ``report.tar.gz``; 1 where a step left nothing."""
    steps = ("environment", "smoke", "against-catalogue", "placements", "engines")
    found = {name: _read(options.out / f"{name}.json") for name in steps}
    page = options.out / "report.md"
    page.write_text("\n".join(_page(found)) + "\n")
    with tarfile.open(options.out / "report.tar.gz", "w:gz") as archive:
        for path in sorted({p for pattern in PACKED for p in options.out.glob(pattern)}):
            if path.is_file() and path.stat().st_size < LARGEST_BYTES:
                archive.add(path, path.relative_to(options.out))
    print(page.read_text())
    print(f"send back {options.out / 'report.tar.gz'}")
    return int(any(part is None for part in found.values()))


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.is_file() else None


def _page(found: dict[str, Any]) -> list[str]:
    about = found["environment"] or {}
    names = ", ".join(sorted({gpu["name"] for gpu in about.get("gpus", [])})) or "CPU ranks"
    page = [f"# {about.get('num_devices', '?')} x {names}", ""]
    page += [f"- {name} {version or 'absent'}" for name, version in about.get("packages", {}).items()]
    page += [f"- note: {doubt}" for doubt in about.get("doubts", [])]
    page += ["", "## Every engine for two iterations", ""]
    for row in found["smoke"] or [{"training": "not made", "generation": ""}]:
        page.append(f"- {row['training']}, {row['generation']}: {_outcome(row)}")
    compared = (found["against-catalogue"] or {}).get("tables", {})
    if compared:
        page += ["", "## Our rows over the catalogue's", ""]
    page += [f"- {t}: median {r['median_ratio']:.2f} of {r['rows']} rows" for t, r in compared.items() if r["rows"]]
    return [*page, *_placements(found["placements"] or []), *_engines(found["engines"] or [])]


def _outcome(row: dict[str, Any]) -> str:
    if "left_out" in row:
        return f"left out, {row['left_out']}"
    return row["error"].splitlines()[-1] if "error" in row else "ran"


def _placements(rows: list[dict[str, Any]]) -> list[str]:
    """A table of stages, what ran otherwise than priced, and whether the order of placements is the predicted one."""
    page = ["", "## Placements, predicted and measured (ms)", ""]
    page += [
        "| placement | stage | predicted | measured | on device | spread | error |",
        "|---|---|---|---|---|---|---|",
    ]
    order, builds = [], {}
    for row in rows:
        if "error" in row:
            page.append(f"| {row['placement']} | {_outcome(row)} | | | | | |")
            continue
        for line in row["timings"]:
            if line["level"] != "call":
                page.append(_line(row["placement"], line))
        whole = next(line for line in row["timings"] if line["level"] == "iteration")
        times = {name: whole[name] for name in ("predicted_s", "measured_s", "low_s", "high_s")}
        order.append({"placement": row["placement"], **times})
        builds |= {b["what"]: b for b in row["implementation"] if not b["same"]}
    page += ["", f"Pairs in the wrong order beyond the spread: {swapped(order) or 'none'}."]
    page += [
        f"Not as priced: {b['what']}, {b['priced']} priced, {b['ran']} ran ({b['seen']})." for b in builds.values()
    ]
    return page


def _engines(rows: list[dict[str, Any]]) -> list[str]:
    """A table of stages on the engines that plans are priced for, predicted by the catalogue."""
    page = ["", "## Engines of the catalogue, predicted and measured (ms)", ""]
    page += ["| engines | stage | predicted | measured | least to most | error |", "|---|---|---|---|---|---|"]
    for row in rows:
        name = f"{row['training']}, {row['generation']}" + (f" on {row['device']}" if "device" in row else "")
        if "measured" not in row:
            page.append(f"| {name} | {_outcome(row)} | | | | |")
            continue
        for stage, seen in row["measured"].items():
            predicted_s = row["predicted_s"][stage]
            times = [f"{1e3 * s:.2f}" for s in (predicted_s, seen["s"], seen["low_s"], seen["high_s"])]
            error = f"{predicted_s / seen['s'] - 1:+.0%}" if seen["s"] else ""
            page.append(f"| {name} | {stage} | {times[0]} | {times[1]} | {times[2]} to {times[3]} | {error} |")
    return page


def _line(placement: str, line: dict[str, Any]) -> str:
    times = " | ".join(f"{1e3 * line[name]:.2f}" for name in ("predicted_s", "measured_s", "device_s"))
    error = "" if line["error"] is None else f"{line['error']:+.0%}"
    return f"| {placement} | {line['name']} | {times} | {line['spread']:.0%} | {error} |"
