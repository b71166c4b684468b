"""``hybridmap fit``: does it fit, what fills the GPUs, and what would make it fit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import AllowDownload, JobArgument, Json, ModelConfig, TimeLimit
from hybridmap.console import new_table, progress_bar, say, say_json, say_table

if TYPE_CHECKING:
    from hybridmap.answers.fit import Fit
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

MOST_REMEDIES = 5


def fit(
    job: JobArgument,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="plan.json", help="Look at this plan, not the best.", show_default=False),
    ] = None,
    time_limit: TimeLimit = 60.0,
    model_config: ModelConfig = None,
    allow_download: AllowDownload = False,
    as_json: Json = False,
) -> None:
    """Tell whether a job fits in memory.

    GPU memory by class for every role and call, the term that binds, the fewest GPUs, and the host memory that
    offload and checkpoints need. Where nothing fits: the plan that needs least, and what would make it fit.
    """
    from hybridmap.answers.fit import fit_of_job, fit_of_plan
    from hybridmap.files.plan import read_plan
    from hybridmap.job.load import load_job

    given = load_job(job, model_config=model_config, allow_download=allow_download)
    facts = given.facts()

    with progress_bar("memory sizes") as progress:
        if plan is not None:
            answer = fit_of_plan(given, read_plan(plan)[0], str(plan), time_limit)
        else:
            answer = fit_of_job(given, time_limit, progress)
    if as_json:
        say_json(_document(answer, facts))
        return
    _show(answer, facts)


def _show(answer: "Fit", facts: "Facts") -> None:
    from hybridmap.text.fit import answer_line, binding_line, full_length_lines
    from hybridmap.text.notation import placement_title
    from hybridmap.text.plan import header_lines

    say(answer_line(answer.plan, answer.fits, facts))
    say(f"{placement_title(answer.plan)} on {answer.plan.num_gpus:,} GPUs ({answer.origin})\n")
    say("\n".join(header_lines(facts)))
    for pool in answer.plan.pools:
        _show_pool(answer.plan, pool.name, facts)
    for pool in answer.plan.pools:
        say(binding_line(answer.plan, pool, facts))
    for line in full_length_lines(answer.plan, facts):
        say(line)
    _show_host(answer.plan, facts)
    _show_needs(answer, facts)
    for line in _remedy_lines(answer):
        say(line)


def _show_pool(plan: "Plan", name: str, facts: "Facts") -> None:
    from hybridmap.text.fit import memory_rows, parts_text
    from hybridmap.text.notation import gpus_text

    pool = plan.pool(name)
    say(f"pool {pool.name}, GPUs {gpus_text(pool)}, GiB of the fullest GPU")
    table = new_table(("role", "when", "GiB", "of which"), right=("GiB",), prose=("of which",))
    before = ""
    for row in memory_rows(plan, pool, facts):
        whole, parts = parts_text(row["classes"])
        role = row["role"] or "any"
        table.add_row("" if role == before else role, row["when"], whole, parts)
        before = role
    say_table(table)
    say("(what is always there adds up over roles; of the calls only the largest counts)")
    say()


def _show_host(plan: "Plan", facts: "Facts") -> None:
    from hybridmap.text.notation import gib
    from simulator.host_memory import checkpoint_bytes, host_bytes_per_node

    needs = host_bytes_per_node(plan, facts)
    if needs:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in needs.items())
        say(f"host memory {gib(sum(needs.values()))} GiB a node, beside what loaders and engines take ({parts})")
    on_disk = checkpoint_bytes(facts)
    parts = ", ".join(f"{role} {gib(size)}" for role, size in on_disk.items())
    say(f"checkpoint  on disk: {gib(sum(on_disk.values()))} GiB ({parts})")


def _show_needs(answer: "Fit", facts: "Facts") -> None:
    from hybridmap.text.notation import gib

    total = facts.num_gpus
    if answer.fewest is not None:
        on = answer.fewest
        sure = "" if on.status == "optimal" else "; time was up before fewer were ruled out (--time-limit)"
        say(f"fewest GPUs {on.plan.num_gpus:,} of {total:,} ({on.iteration_s:,.2f} s an iteration there{sure})")
    elif answer.fewest_beyond:
        say(f"fewest GPUs {answer.fewest_beyond:,}, this cluster has {total:,}")
    if answer.needs_bytes is not None:
        have = gib(facts.memory_capacity_bytes)
        say(f"least       GPUs of {gib(answer.needs_bytes)} GiB would hold it on {total:,}, these have {have}")


def _remedy_lines(answer: "Fit") -> list[str]:
    from hybridmap.text.notation import gib

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


def _document(answer: "Fit", facts: "Facts") -> dict[str, Any]:
    from hybridmap.text.fit import memory_rows
    from simulator.full_length import peak_memory
    from simulator.host_memory import checkpoint_bytes, host_bytes_per_node

    pools = {
        pool.name: {
            **peak_memory(answer.plan, pool, facts).model_dump(mode="json"),
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
