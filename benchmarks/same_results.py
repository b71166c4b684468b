"""Does a rewrite change an answer? Plans, prices, predictions and training curves of two trees, compared to the bit.

    python -m benchmarks.same_results --write before.json       # in the tree before
    python -m benchmarks.same_results --against before.json     # in the tree after

What is compared: of every job in ``examples/`` the best plan, its prices, the named placements, what fits and every
export; of every run in ``examples/run/`` the learning curve of some iterations; of every published row the prediction.
All of it is asked of the command line, so the two trees need not have one module in common.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = ("verl", "openrlhf", "nemo-rl")
CLOCKS = ("seconds", "written")
"""What keys of an answer begin with that say how long it took or where it lies; everything else must be the same."""
MEASURED = ("iteration_s", "tokens_per_s")
"""Keys of a metrics line that are read off a clock; so are those of a check that end in ``_s``."""
ITERATIONS = 20
PUBLISHED = ROOT / "benchmarks" / "published"


def collected(quick: bool) -> dict[str, Any]:
    """Every answer by name. ``quick`` leaves out the runs and the published rows."""
    found: dict[str, Any] = {}
    for job in sorted((ROOT / "examples").glob("*.yaml")):
        found |= {f"{job.stem} {what}": answer for what, answer in _of_job(job).items()}
        print(job.name, file=sys.stderr, flush=True)
    if not quick:
        for job in sorted((ROOT / "examples" / "run").glob("*.yaml")):
            found[f"{job.stem} curve"] = _curve(job)
            print(job.name, file=sys.stderr, flush=True)
        found["published rows"] = _predictions()
    return found


def _of_job(job: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        planned = _asked("plan", job, "--out", folder)
        plan = Path(folder) / "plan.json"
        answers = {"plan": planned, "simulate": _asked("simulate", "--plan", plan)}
        for system in SYSTEMS:
            answers[f"export {system}"] = _asked("export", plan, "--to", system, "--out", Path(folder) / system)
            files = sorted(p for p in (Path(folder) / system).rglob("*") if p.is_file())
            answers[f"files {system}"] = {str(p.relative_to(folder)): p.read_text() for p in files}
        return answers | {what: _asked(what, job) for what in ("compare", "fit")}


def _curve(job: Path) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        _asked("run", job, "--iterations", str(ITERATIONS), "--out", folder)
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in without_clocks(json.loads(line)).items() if k not in MEASURED} for line in lines]


def _predictions() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        tables = {"rl": "rl_steps", "training": "training", "generation": "generation"}
        words = [word for kind, name in tables.items() for word in (f"--{kind}", str(PUBLISHED / f"{name}.csv"))]
        _python("-m", "benchmarks.validation", *words, "--paper", str(PUBLISHED), "--out", folder)
        return (Path(folder) / "rows.csv").read_text().splitlines()


def _asked(command: str, *words: object) -> Any:
    """One command's ``--json``, without what a clock says; a refusal is an answer, too."""
    done = _python("-m", "hybridmap", command, *map(str, words), "--json", codes=(0, 2))
    text = re.sub(re.escape(tempfile.gettempdir()) + r"/tmp\w+", "OUT", done.stdout)
    return without_clocks(json.loads(text)) if text.strip() else done.stderr.strip()


def _python(*words: str, codes: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode not in codes:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done


def without_clocks(value: Any) -> Any:
    """An answer without what a clock says."""
    if isinstance(value, dict):
        return {k: without_clocks(v) for k, v in value.items() if not _of_clock(k)}
    return [without_clocks(v) for v in value] if isinstance(value, list) else value


def _of_clock(key: str) -> bool:
    return key.startswith(CLOCKS) or (key.startswith("checks/") and key.endswith("_s"))


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Every leaf that is not the same, as ``place: before -> after``."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(before.keys() | after.keys())
        return [line for k in keys for line in differences(before.get(k), after.get(k), f"{place}/{k}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for i, (b, a) in pairs for line in differences(b, a, f"{place}/{i}")]
    return [] if before == after else [f"{place}: {str(before)[:90]} -> {str(after)[:90]}"]


def main() -> None:
    """Collect, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--write", type=Path, help="keep the answers of this tree")
    where.add_argument("--against", type=Path, help="compare this tree's answers with kept ones")
    parser.add_argument("--quick", action="store_true", help="no runs, no published rows")
    arguments = parser.parse_args()
    found = json.loads(json.dumps(collected(arguments.quick)))
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=1))
        return
    kept = without_clocks(json.loads(arguments.against.read_text()))
    lines = differences({k: v for k, v in kept.items() if k in found or not arguments.quick}, found)
    print("\n".join(lines) or f"{len(found)} answers are the same to the bit")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
