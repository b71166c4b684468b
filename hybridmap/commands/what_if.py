"""``hybridmap what-if``: the plan and its time under other settings, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridmap.commands.options import (
    AllowDownload,
    CalibrationLayer,
    JobArgument,
    Json,
    ModelConfig,
    Seed,
    TimeLimit,
)
from hybridmap.console import new_table, progress_bar, say, say_json, say_table

if TYPE_CHECKING:
    from hybridmap.answers.what_if import CaseRecord, WhatIfFile


def what_if(
    job: JobArgument,
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=A,B,C", help="A place in the job file and values for it; may be repeated."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for what-if.json.")] = Path("hybridmap-out"),
    seed: Seed = 0,
    time_limit: TimeLimit = 60.0,
    calibration: CalibrationLayer = None,
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    as_json: Json = False,
) -> None:
    """Plan a job again under other settings.

    One search per combination of the values, and the job as it stands first. Keys are those of the job file, with
    numbers for entries of a list. Writes what-if.json, which `hybridmap report --what-if` plots.
    """
    from hybridmap.answers.what_if import what_if as planned
    from hybridmap.answers.what_if import what_if_file_of
    from hybridmap.files.plan import require_folder, write_records
    from hybridmap.job.edit import parse_setting
    from hybridmap.job.load import load_job
    from hybridmap.text.plan import header_lines

    parsed = [parse_setting(text) for text in settings]
    facts = load_job(job, calibration=calibration, model_config=model_config, allow_download=allow_download).facts()
    require_folder(out)
    with progress_bar("searches") as progress:
        base, cases = planned(
            job,
            parsed,
            seed=seed,
            time_limit_s=time_limit,
            progress=progress,
            calibration=calibration,
            model_config=model_config,
        )
    record = what_if_file_of(base, cases, parsed, seed)
    written = write_records(out, {"what-if.json": record})
    if as_json:
        say_json({**record.model_dump(mode="json"), "written": [str(path) for path in written]})
        return
    say(f"{_answer(record)}\n")
    say("\n".join(header_lines(facts)))
    _show(record)
    say(f"\nwrote       {written[0]}")


def _answer(record: "WhatIfFile") -> str:
    """The fastest case, and what it changes against the job as given."""
    from hybridmap.text.notation import about

    there = [case for case in (record.base, *record.cases) if case.iteration_s is not None]
    if not there:
        return "none of the cases fits"
    best = max(there, key=lambda case: case.tokens_per_s or 0.0)
    what = _named(best) if best is not record.base else "the job as given"
    return (
        f"{what} has the most tokens a second: {best.tokens_per_s:,.0f}, about {about(best.iteration_s or 0.0)} s an "
        "iteration"
    )


def _named(case: "CaseRecord") -> str:
    return ", ".join(f"{path}={_shown(value)}" for path, value in case.settings.items()) or "as given"


def _short(paths: "list[str]") -> list[str]:
    """The last words of the places, where they tell them apart."""
    ends = [path.rsplit(".", 1)[-1] for path in paths]
    return ends if len(set(ends)) == len(ends) else paths


def _show(record: "WhatIfFile") -> None:
    numbers = ("iteration", "change", "GPUs", "tokens/s", "per GPU")
    names = _short(list(record.settings))
    table = new_table(
        (*names, *numbers, "placement", "plan changes"), right=numbers, prose=("placement", "plan changes")
    )
    table.add_row(*["as given" for _ in record.settings], *_cells(record.base, record))
    for case in record.cases:
        table.add_row(*(_shown(case.settings[path]) for path in record.settings), *_cells(case, record))
    say_table(table)
    for case in (record.base, *record.cases):
        if case.error is not None:
            say(f"{_named(case)}: {case.error}")


def _cells(case: "CaseRecord", record: "WhatIfFile") -> list[str]:
    if case.iteration_s is None or case.tokens_per_s is None or case.num_gpus is None:
        fewest = f"{case.fewest_gpus:,} would do" if case.fewest_gpus else ""
        return ["does not fit", "", fewest, "", "", "", ""]
    first = record.base.iteration_s
    change = f"{(case.iteration_s / first - 1) * 100:+.1f} %" if first and case is not record.base else ""
    speed, gpus = case.tokens_per_s, case.num_gpus
    return [
        f"{case.iteration_s:,.2f} s",
        change,
        f"{gpus:,}",
        f"{speed:,.0f}",
        f"{speed / gpus:,.0f}",
        case.placement or "",
        case.changes,
    ]


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
