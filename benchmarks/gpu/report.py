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
    named = [(row["placement"], row) for row in rows]
    order = [{"placement": name, **_times(row)} for name, row in named if "error" not in row]
    page = ["", "## Placements, predicted and measured (ms)", "", *_stages(named, "placement")]
    return [*page, "", f"Pairs in the wrong order beyond the spread: {swapped(order) or 'none'}.", *_builds(rows)]


def _engines(rows: list[dict[str, Any]]) -> list[str]:
    """A table of stages on the engines that plans are priced for, predicted by the catalogue."""
    named = []
    for row in rows:
        device = f" on {row['device']}" if "device" in row else ""
        named.append((f"{row['training']}, {row['generation']}{device}", row))
    title = "## Engines of the catalogue, predicted and measured (ms)"
    return ["", title, "", *_stages(named, "engines"), "", *_builds(rows)]


def _stages(named: list[tuple[str, dict[str, Any]]], what: str) -> list[str]:
    """A table of what validations say of each stage and of the iteration."""
    page = [f"| {what} | stage | predicted | measured | on device | spread | error |", "|---|---|---|---|---|---|---|"]
    for name, row in named:
        if "timings" not in row:
            page.append(f"| {name} | {_outcome(row)} | | | | | |")
            continue
        page += [_line(name, line) for line in row["timings"] if line["level"] != "call"]
    return page


def _line(name: str, line: dict[str, Any]) -> str:
    times = " | ".join(f"{1e3 * line[key]:.2f}" for key in ("predicted_s", "measured_s", "device_s"))
    error = "" if line["error"] is None else f"{line['error']:+.0%}"
    return f"| {name} | {line['name']} | {times} | {line['spread']:.0%} | {error} |"


def _times(row: dict[str, Any]) -> dict[str, float]:
    whole = next(line for line in row["timings"] if line["level"] == "iteration")
    return {name: whole[name] for name in ("predicted_s", "measured_s", "low_s", "high_s")}


def _builds(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each thing that ran otherwise than it was priced."""
    found = {
        (b["what"], b["priced"], b["ran"]): b for row in rows for b in row.get("implementation", ()) if not b["same"]
    }
    return [f"Not as priced: {b['what']}, {b['priced']} priced, {b['ran']} ran ({b['seen']})." for b in found.values()]
