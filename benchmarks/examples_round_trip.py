"""Every example through every command that takes it: planned, simulated, exported, imported again, reported.

    python -m benchmarks.examples_round_trip [JOB.yaml ...] [--out DIR]

A table with a row for each job. A system that cannot run a plan may refuse it (exit 2, with the reason). Whatever else
does not end well is an error; so are a simulation that disagrees with the plan, and an export to verl that our own
import refuses or takes for a run of another time than the export says of itself. Exits 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from typer.testing import CliRunner

from hybridmap.cli import app
from hybridmap.commands.export import System
from hybridmap.console import new_table, say, say_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXAMPLES = Path(__file__).parents[1] / "examples"
SYSTEMS = tuple(system.value for system in System)
COLUMNS = ("example", "planned", "simulated", *SYSTEMS, "read back", "reported")
REPORT_FRONTIER_S = 2.0
REFUSED = 2
ERROR, REFUSES = "error", "refused"
READ_BACK_WITHIN = 0.02
"""Relative; a script does not say the p99 of lengths or the seconds of a reward function, and import is not told."""


@dataclass(frozen=True)
class Answer:
    """How a command ended: its status, its JSON document, and what it said beside it."""

    status: int
    document: dict[str, Any]
    beside: str

    @property
    def why(self) -> str:
        """Its error, or all that it said."""
        return str(self.document.get("error") or self.beside.strip())


@dataclass(frozen=True)
class Cell:
    """What a table shows of a step; ``remark`` is said below it. A ``wrong`` one fails the script.

    ``seconds``: an iteration of what was written, as the export says.
    """

    text: str
    remark: str = ""
    wrong: bool = False
    seconds: float | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.examples_round_trip", description=__doc__.split(":")[0])
    parser.add_argument(
        "jobs", nargs="*", type=Path, metavar="JOB.yaml", help="else all of examples/ and examples/run/"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep what the commands write")
    options = parser.parse_args(arguments)
    jobs = options.jobs or [*sorted(EXAMPLES.glob("*.yaml")), *sorted((EXAMPLES / "run").glob("*.yaml"))]
    with tempfile.TemporaryDirectory() as scratch:
        rows = {job.stem: round_trip(job, (options.out or Path(scratch)) / job.stem) for job in jobs}
    show(rows)
    return int(any(cell.wrong for row in rows.values() for cell in row.values()))


def round_trip(job: Path, out: Path) -> dict[str, Cell]:
    """Each step of one job, by column; those that need what an earlier one did not write are left out."""
    planned = command("plan", job, "--out", out)
    if planned.status:
        return {"planned": Cell(ERROR, planned.why, wrong=True)}
    iteration_s, plan = planned.document["iteration_s"], out / "plan.json"
    row = {"planned": Cell(f"{iteration_s:,.2f} s"), "simulated": simulated(plan, iteration_s)}
    row |= {system: exported(plan, out, system) for system in SYSTEMS}
    if (written_s := row["verl"].seconds) is not None:
        row["read back"] = read_back(job, plan, written_s)
    page = out / "report.html"
    made = command("report", plan, "--frontier-limit", REPORT_FRONTIER_S, "-o", page)
    good = made.status == 0 and page.is_file() and page.stat().st_size == made.document["bytes"]
    return row | {"reported": Cell("yes") if good else Cell(ERROR, made.why, wrong=True)}


def simulated(plan: Path, iteration_s: float) -> Cell:
    """The plan priced again: the same time, and nothing to say beside it."""
    again = command("simulate", plan)
    if again.status:
        return Cell(ERROR, again.why, wrong=True)
    if again.document["iteration_s"] != iteration_s or again.beside:
        remark = f"{again.document['iteration_s']} s, planned {iteration_s} s. {again.beside}"
        return Cell("differs", remark, wrong=True)
    return Cell("the same")


def exported(plan: Path, out: Path, system: str) -> Cell:
    """Whether a system follows the plan: all of it, but for some points, or not at all."""
    made = command("export", plan, "--to", system, "--out", out / system)
    if made.status == REFUSED and made.why:
        return Cell(REFUSES, made.why)
    if made.status or not all(Path(path).is_file() for path in made.document["written"]):
        return Cell(ERROR, made.why, wrong=True)
    points = made.document["cannot_follow"]
    text = f"but for {len(points)}" if points else "all of it"
    return Cell(text, "; ".join(point["place"] for point in points), seconds=made.document["written_iteration_s"])


def read_back(job: Path, plan: Path, written_s: float) -> Cell:
    """The export to verl as somebody's run, told what a script does not say: it takes as long as the export says."""
    document = json.loads(plan.read_text(encoding="utf-8"))["job"]
    work, group = document["workload"], document["cluster"][0]
    words: list[Any] = ["--device", group["device"], "--inter-node-gbps", group["inter_node_gbps"]]
    if isinstance(work["response_length"], dict) and "mean" in work["response_length"]:
        words += ["--mean-response-length", round(work["response_length"]["mean"])]
    if work["prompt_tokens"] is not None:
        words += ["--prompt-tokens", work["prompt_tokens"]]
    for role, path in own_models(job).items():
        words += ["--model", f"{role}={path}"]
    found = command("import", plan.parent / "verl" / "run_verl.sh", *words, "--out", plan.parent / "read-back")
    if found.status:
        return Cell(ERROR, found.why, wrong=True)
    run = found.document["run"]
    remark = "; ".join([*run["why_not"], *found.document["notes"]])
    if not run["fits"] or abs(run["iteration_s"] / written_s - 1) > READ_BACK_WITHIN:
        text = f"{run['iteration_s']:,.2f} s" if run["fits"] else "does not fit"
        return Cell(text, f"the export says {written_s:,.2f} s. {remark}", wrong=True)
    return Cell(f"{run['iteration_s']:,.2f} s", remark)


def own_models(job: Path) -> dict[str, Path]:
    """Models of a job that are files beside it: a launch script has another name for them."""
    models = yaml.safe_load(job.read_text(encoding="utf-8"))["models"]
    named = {role: model["shape"] if isinstance(model, dict) else model for role, model in models.items()}
    return {role: job.parent / name for role, name in named.items() if (job.parent / str(name)).is_file()}


def command(name: str, *words: object) -> Answer:
    """Run a command in this process with ``--json``; a fault keeps its traceback in what is said beside."""
    found = CliRunner().invoke(app, [name, *map(str, words), "--json"])
    beside = found.stderr
    if found.exc_info is not None and not isinstance(found.exception, SystemExit | None):
        beside += "".join(traceback.format_exception(*found.exc_info))
    try:
        document = json.loads(found.stdout)
    except ValueError:
        return Answer(found.exit_code or 1, {}, f"{found.stdout}{beside}")
    return Answer(found.exit_code, document, beside)


def show(rows: dict[str, dict[str, Cell]], line: Callable[[str], None] = say) -> None:
    """Print the table, then remarks, errors last."""
    table = new_table(COLUMNS)
    for name, row in rows.items():
        table.add_row(name, *(row[column].text if column in row else "-" for column in COLUMNS[1:]))
    say_table(table)
    for wrong in (False, True):
        for name, row in rows.items():
            for column, cell in row.items():
                if cell.remark and cell.wrong is wrong:
                    line(f"{'ERROR ' if wrong else ''}{name}, {column}: {cell.text}: {cell.remark}")


if __name__ == "__main__":
    sys.exit(main())
