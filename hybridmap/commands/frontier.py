"""``hybridmap frontier``: what more GPUs buy, from the fewest that hold the job to all of them."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import (
    AllowDownload,
    Even,
    JobArgument,
    Json,
    ModelConfig,
    Placement,
    Seed,
    TimeLimit,
)
from hybridmap.console import new_table, progress_bar, say, say_json, say_table, width_of

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
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    as_json: Json = False,
) -> None:
    """Show iteration time against GPUs.

    The fastest plan on at most as many GPUs as each pool size has, up to the whole cluster; writes frontier.json.
    """
    from hybridmap.files.frontier import frontier_file_of, point_document
    from hybridmap.files.plan import require_folder, write_records
    from hybridmap.job.load import load_job
    from hybridmap.job.notes import notes
    from hybridmap.text.frontier import answer_line, budget_notes, plot_lines, proof_lines

    given = load_job(job, model_config=model_config, allow_download=allow_download)
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

    say(f"{answer_line(points)}\n")
    say("\n".join(header_lines(facts, budget_notes(facts))))
    say("\n".join(plot_lines(points, width_of(sys.stdout))))
    say()
    _show(points)
    say("\n".join(proof_lines(points)))
    say(f"wrote       {', '.join(paths)}")


def _show(points: "tuple[FrontierPoint, ...]") -> None:
    from hybridmap.text.frontier import changes
    from hybridmap.text.notation import percent
    from mapper.result import OPTIMAL_GAP

    numbers = ("GPUs", "iteration", "tokens/s", "per GPU", "cost", "gap")
    table = new_table((*numbers, "placement", "change"), right=numbers, prose=("placement", "change"))
    same = len({point.plan.placement for point in points}) == 1
    for before, point in zip((None, *points), points, strict=False):
        table.add_row(
            f"{point.num_gpus:,}",
            f"{point.iteration_s:,.2f} s",
            f"{point.timeline.tokens_per_s:,.0f}",
            f"{point.timeline.tokens_per_s / point.num_gpus:,.0f}",
            "" if point.cost_per_iteration is None else f"{point.cost_per_iteration:,.4f}",
            percent(point.gap) if point.gap > OPTIMAL_GAP else "",
            "" if same else point.plan.placement,
            "" if before is None else changes(before.plan, point.plan),
        )
    say_table(table)
    if same:
        say(f"(each shares GPUs as {points[0].plan.placement})")
    say()
