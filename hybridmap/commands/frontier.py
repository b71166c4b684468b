"""``hybridmap frontier``: what more GPUs buy, from the fewest that hold the job to all of them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import Even, JobArgument, Json, Placement, Seed, TimeLimit
from hybridmap.console import new_table, progress_bar, say, say_json, say_table

if TYPE_CHECKING:
    from mapper.analysis.frontier import FrontierPoint


def frontier(
    job: JobArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for frontier.json.")] = Path(
        "hybridmap-out"
    ),
    placement: Annotated[Placement, typer.Option("--placement", help="Search this placement only.")] = Placement.ANY,
    even: Even = False,
    seed: Seed = 0,
    time_limit: TimeLimit = 60.0,
    as_json: Json = False,
) -> None:
    """Show iteration time against GPUs.

    The fastest plan on at most as many GPUs as each pool size has, up to the whole cluster; writes frontier.json.
    """
    from hybridmap.files.frontier import frontier_file_of, point_document
    from hybridmap.files.plan import require_folder, write_records
    from hybridmap.job.load import load_job
    from hybridmap.job.notes import notes
    from hybridmap.text.frontier import budget_notes, proof_lines

    given = load_job(job)
    facts, request = given.facts(), given.request()
    require_folder(out)
    with progress_bar("budgets") as progress:
        from mapper.analysis.frontier import frontier as find_frontier

        changed = replace(request, placement=placement.value, even=even, seed=seed, time_limit_s=time_limit)
        points = find_frontier(changed, progress)
    written = write_records(out, {"frontier.json": frontier_file_of(given, points, seed)})
    paths = [str(path) for path in written]
    if as_json:
        documents: list[dict[str, Any]] = [point_document(point) for point in points]
        say_json({"points": documents, "seed": seed, "notes": [*notes(facts), *budget_notes(facts)], "written": paths})
        return
    from hybridmap.text.plan import header_lines

    say("\n".join(header_lines(facts, budget_notes(facts))))
    _show(points)
    say("\n".join(proof_lines(points)))
    say(f"wrote       {', '.join(paths)}")


def _show(points: "tuple[FrontierPoint, ...]") -> None:
    from hybridmap.text.frontier import changes
    from hybridmap.text.notation import percent

    priced = any(point.cost_per_iteration is not None for point in points)
    numbers = ("GPUs", "iteration", "tokens/s", "per GPU", *(("cost",) if priced else ()), "gap")
    table = new_table((*numbers, "placement", "change"), right=numbers)
    for before, point in zip((None, *points), points, strict=False):
        cost = [f"{point.cost_per_iteration:,.4f}"] if point.cost_per_iteration is not None else []
        table.add_row(
            f"{point.num_gpus:,}",
            f"{point.iteration_s:,.2f} s",
            f"{point.timeline.tokens_per_s:,.0f}",
            f"{point.timeline.tokens_per_s / point.num_gpus:,.0f}",
            *cost,
            percent(point.gap),
            point.plan.placement,
            "" if before is None else changes(before.plan, point.plan),
        )
    say_table(table)
