"""``hybridmap fit``: does it fit, what fills the GPUs, and what would make it fit."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import JobArgument, Json, TimeLimit
from hybridmap.console import new_table, progress_bar, say, say_json, say_table, working

if TYPE_CHECKING:
    from hybridmap.config import Job
    from mapper.fit import Remedy
    from mapper.result import Result
    from simulator.facts import Facts
    from simulator.plan import Plan

MOST_REMEDIES = 5


@dataclass(frozen=True)
class Answer:
    """What was found: a plan, whether it fits, the memory per GPU that it was made for if not, and what would help."""

    plan: "Plan"
    fits: bool
    origin: str
    needs_bytes: float | None
    remedies: "tuple[Remedy, ...]"
    fewest: "Result | None"
    fewest_beyond: int | None


def fit(
    job: JobArgument,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="plan.json", help="Look at this plan, not the best.", show_default=False),
    ] = None,
    time_limit: TimeLimit = 60.0,
    as_json: Json = False,
) -> None:
    """Tell whether a job fits in memory.

    GPU memory by class for every role and call, the term that binds, the fewest GPUs, and the host memory that
    offload and checkpoints need. Where nothing fits: the plan that needs least, and what would make it fit.
    """
    from hybridmap.config import load_job

    given = load_job(job)
    facts = given.facts()
    answer = _of_plan(given, plan, time_limit) if plan is not None else _of_job(given, time_limit)
    if as_json:
        say_json(_document(answer, facts))
        return
    _show(answer, facts)


def _of_plan(job: "Job", path: Path, time_limit_s: float) -> Answer:
    """A given plan on this job's cluster and work."""
    from hybridmap.plan_file import read_plan
    from mapper.fit import remedies
    from profiles.errors import InfeasibleError
    from simulator.feasibility import check_plan

    plan, _ = read_plan(path)
    found = check_plan(plan, job.facts())
    if any(violation.rule != "memory" for violation in found):
        raise InfeasibleError(f"{path} is no plan of this job: " + "; ".join(v.message for v in found))
    helps = remedies(plan, job.facts()) if found else ()
    fewest, beyond = _fewest(job, time_limit_s)
    return Answer(plan, not found, str(path), None, helps, fewest, beyond)


def _of_job(job: "Job", time_limit_s: float) -> Answer:
    """The best plan, or the leanest where none fits."""
    from mapper.fit import leanest_plan, remedies
    from mapper.search import find_plan
    from profiles.errors import InfeasibleError

    try:
        with working("searching a plan that fits ..."):
            result = find_plan(
                job.facts(), runners_up=False, pins=job.pins(), objective=job.objective(), time_limit_s=time_limit_s
            )
    except InfeasibleError as error:
        if error.fewest_gpus is None and job.pins():
            raise  # the pins are to blame, and the message says which
        with progress_bar("memory sizes") as progress:
            found = leanest_plan(job.facts(), job.pins(), progress)
        if found is None:
            raise
        plan, needs = found
        origin = "the plan that needs least memory; none fits"
        return Answer(plan, False, origin, needs, remedies(plan, job.facts()), None, error.fewest_gpus)
    fewest, beyond = _fewest(job, time_limit_s)
    return Answer(result.plan, True, "the best plan", None, (), fewest, beyond)


def _fewest(job: "Job", time_limit_s: float) -> "tuple[Result | None, int | None]":
    """The plan on the fewest GPUs of this cluster, else how many it would take."""
    from mapper.fit import fewest_gpus_plan
    from mapper.infeasible import fewest_gpus
    from mapper.problem import make_problem

    with working("searching the fewest GPUs ..."):
        found = fewest_gpus_plan(job.facts(), job.pins(), time_limit_s)
        if found is not None:
            return found, found.plan.num_gpus
        return None, fewest_gpus(make_problem(job.facts(), pins=job.pins()))


def _show(answer: Answer, facts: "Facts") -> None:
    from hybridmap.fit_text import binding_line
    from hybridmap.notation import placement_title
    from hybridmap.plan_text import header_lines

    say("\n".join(header_lines(facts)))
    say(f"{'fits' if answer.fits else 'does not fit'}: {placement_title(answer.plan)} ({answer.origin})")
    say()
    for pool in answer.plan.pools:
        _show_pool(answer.plan, pool.name, facts)
    for pool in answer.plan.pools:
        say(binding_line(answer.plan, pool, facts))
    _show_host(answer.plan, facts)
    _show_needs(answer, facts)
    for line in _remedy_lines(answer):
        say(line)


def _show_pool(plan: "Plan", name: str, facts: "Facts") -> None:
    from hybridmap.fit_text import RESIDENT, classes_of, memory_rows
    from hybridmap.notation import gib, gpus_text

    pool = plan.pool(name)
    rows = memory_rows(plan, pool, facts)
    columns = classes_of(rows)
    say(f"pool {pool.name}, GPUs {gpus_text(pool)}, GiB per GPU")
    table = new_table(("role", "when", *columns, "sum"), right=(*columns, "sum"))
    for row in rows:
        classes = row["classes"]
        cells = [gib(classes[c]) if c in classes else "" for c in columns]
        table.add_row(row["role"], row["when"], *cells, gib(sum(classes.values())))
    say_table(table)
    say(f"('{RESIDENT}' adds up over roles; of the calls only the largest counts)")
    say()


def _show_host(plan: "Plan", facts: "Facts") -> None:
    from hybridmap.notation import gib
    from simulator.host_memory import checkpoint_bytes, host_bytes_per_node

    needs = host_bytes_per_node(plan, facts)
    if needs:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in needs.items())
        say(f"host memory per node, beside what loaders and engines take: {gib(sum(needs.values()))} GiB ({parts})")
    on_disk = checkpoint_bytes(facts)
    parts = ", ".join(f"{role} {gib(size)}" for role, size in on_disk.items())
    say(f"a checkpoint on disk: {gib(sum(on_disk.values()))} GiB ({parts})")


def _show_needs(answer: Answer, facts: "Facts") -> None:
    from hybridmap.notation import gib

    total = facts.num_gpus
    if answer.fewest is not None:
        on = answer.fewest
        say(f"fewest GPUs: {on.plan.num_gpus:,} of {total:,} ({on.iteration_s:,.2f} s an iteration there)")
    elif answer.fewest_beyond:
        say(f"fewest GPUs: {answer.fewest_beyond:,}, this cluster has {total:,}")
    if answer.needs_bytes is not None:
        have = gib(facts.memory_capacity_bytes)
        say(f"least memory: GPUs of {gib(answer.needs_bytes)} GiB would hold it on {total:,}, these have {have}")


def _remedy_lines(answer: Answer) -> list[str]:
    from hybridmap.notation import gib

    if answer.fits:
        return []
    if not answer.remedies:
        return ["no single change of micro-batch, recomputation, TP, ZeRO or offload helps; take more GPUs"]
    fitting = [r for r in answer.remedies if r.fits]
    lines = ["", "what would make it fit:" if fitting else "what would help, though nothing is enough:"]
    for r in (fitting or list(answer.remedies))[:MOST_REMEDIES]:
        after = f"{r.iteration_s:,.2f} s an iteration" if r.iteration_s else f"still {gib(r.over_bytes)} GiB too much"
        lines.append(f"  {r.what}: {after}")
    return lines


def _document(answer: Answer, facts: "Facts") -> dict[str, Any]:
    from hybridmap.fit_text import memory_rows
    from simulator.feasibility import pool_memory
    from simulator.host_memory import checkpoint_bytes, host_bytes_per_node

    pools = {
        pool.name: {
            **pool_memory(answer.plan, pool, facts).model_dump(mode="json"),
            "rows": memory_rows(answer.plan, pool, facts),
        }
        for pool in answer.plan.pools
    }
    return {
        "fits": answer.fits,
        "origin": answer.origin,
        "plan": answer.plan.model_dump(mode="json"),
        "pools": pools,
        "host_bytes_per_node": host_bytes_per_node(answer.plan, facts),
        "checkpoint_bytes": checkpoint_bytes(facts),
        "fewest_gpus": answer.fewest_beyond,
        "least_memory_bytes": answer.needs_bytes,
        "remedies": [
            {"what": r.what, "fits": r.fits, "over_bytes": r.over_bytes, "iteration_s": r.iteration_s}
            for r in answer.remedies
        ],
    }
