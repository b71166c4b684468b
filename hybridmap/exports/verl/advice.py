"""Which keys of a verl run to change: a plan that verl itself follows, and the changed run read and priced again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Source
from hybridmap.exports.follow import DEGREES, all_in_tokens
from hybridmap.exports.verl.defaults import is_read
from hybridmap.exports.verl.follow import followed
from hybridmap.exports.verl.import_run import as_read
from hybridmap.exports.verl.places import ACTOR, REF, ROLLOUT, uses_fsdp
from hybridmap.exports.verl.process import SAME_PROCESS
from hybridmap.exports.verl.settings import verl_settings
from hybridmap.job.load import job_from_document
from mapper.execution_mode import GENERATOR
from profiles.errors import InfeasibleError, InputError
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hybridmap.exports.verl.import_run import Imported
    from hybridmap.exports.verl.read import VerlConfig
    from hybridmap.job.job import Job
    from mapper.result import Result
    from simulator.plan.plan import ParallelLayout

SHARE, CACHE = f"{ROLLOUT}.gpu_memory_utilization", f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"
"""Two keys for one thing: the engine's share of memory, and its KV cache in bytes, which has the last word."""

Change = tuple[str, Any, Any]
"""A key, its value as it is, its value as it should be."""


@dataclass(frozen=True)
class Advice:
    """What would be faster.

    Parameters
    ----------
    best
        The best plan that was found, as verl runs it; where there is a ``reason``, of any that this cluster allows.
    changes
        Every key in which the run and that plan differ.
    iteration_s
        The time of the run with those keys changed, read again; ``None`` where that does not fit.
    reason
        Why no plan was found that verl runs.
    """

    best: Result
    changes: tuple[Change, ...]
    iteration_s: float | None
    reason: str = ""


def advise(imported: Imported, config: VerlConfig, search: Callable[[Job], Result]) -> Advice:
    """Search under verl's own limits, and say what to change; ``search`` finds the best plan of a job."""
    found, reason = _searched(search, imported, {})
    options = [found] if found is not None else []
    if found is not None and not uses_fsdp(found[1]):  # again, with one layout for the models of a process
        again, _ = _searched(search, imported, _one_layout(imported, found[1].actor.training))
        options += [again] if again is not None else []
    if not options:
        return Advice(search(imported.job), (), None, reason)
    best, ours = min(options, key=lambda option: option[1].iteration_s())
    best = replace(best, plan=ours.plan, timeline=simulate(ours.plan, ours.facts))
    changes = _changes(imported, config, ours)
    return Advice(best, changes, _time_of(config.changed({k.lstrip("+"): new for k, _, new in changes}), imported))


def _searched(
    search: Callable[[Job], Result], imported: Imported, pins: dict[str, Any]
) -> tuple[tuple[Result, Source] | None, str]:
    """The best plan under verl's limits and these pins, and what verl runs of it; or why there is none."""
    try:
        result = search(_limited(imported, pins))
        return (result, followed(_counted_alike(Source(result.plan, imported.job), imported), False)[0]), ""
    except InputError as error:
        return None, str(error)


def _counted_alike(source: Source, imported: Imported) -> Source:
    """The plan with its micro-batches in tokens where the run has them so: at equal lengths samples say the same."""
    training = imported.source.actor.training
    if training is None or training.token_budget is None:
        return source
    return all_in_tokens(source)


def _limited(imported: Imported, pins: dict[str, Any]) -> Job:
    """The job with what verl cannot do pinned away: degrees that its engines lack, models that it never separates.

    States may wait in host memory where they do so now.
    """
    flow, document = imported.job.facts().dataflow, imported.job.document
    generates = GENERATOR if all(mode.dedicated_rollout for mode in imported.job.request().modes) else "actor"
    limits: dict[str, dict[str, Any]] = {role: {} for role in flow.roles if role in SAME_PROCESS}
    if str(imported.job.engines.training).startswith("fsdp"):
        for role, fixed in limits.items():
            fixed["training" if flow.is_trained(role) else "inference"] = {"tp": 1, "pp": 1, "ep": 1}
    for role, fixed in pins.items():
        limits[role] |= fixed
    limits.setdefault(generates, {})["generation"] = {"pp": 1}
    together = [role for role in flow.roles if role in SAME_PROCESS]
    share = {"share": {"require": [together]}} if len(together) > 1 else {}
    pin = share | {role: fixed for role, fixed in limits.items() if fixed}
    offload = any(entry.offload for entry in imported.plan.roles)
    return job_from_document({**document, "pin": pin, "search": {**document["search"], "offload": offload}})


def _one_layout(imported: Imported, layout: ParallelLayout | None) -> dict[str, Any]:
    """Pins of every Megatron model of the actor's process to one layout."""
    assert layout is not None, "the actor is trained"
    degrees = {name: getattr(layout, name) for name in DEGREES if name != "vpp"}
    flow = imported.job.facts().dataflow
    roles = (role for role in flow.roles if role in SAME_PROCESS)
    return {role: {"training" if flow.is_trained(role) else "inference": degrees} for role in roles}


def _changes(imported: Imported, config: VerlConfig, ours: Source) -> tuple[Change, ...]:
    theirs, present = verl_settings(ours).values, verl_settings(imported.source).values
    told = SHARE if CACHE.lstrip("+") not in config.given else CACHE
    changes = []
    for key, new in theirs.items():
        plain = key.lstrip("+")
        now = _present(config, plain) if is_read(plain) else present.get(key)
        if present.get(key) != new and now != new and key not in {SHARE, CACHE} - {told}:
            changes.append((key, now, new))
    return (*changes, *_deprecated(config, theirs))


def _present(config: VerlConfig, key: str) -> Any:
    """What a key says now; as it is written where that is not known."""
    return config.given[key] if key in config.unresolved else config.get(key)


def _deprecated(config: VerlConfig, theirs: Mapping[str, Any]) -> list[Change]:
    """Ulysses' deprecated keys, which win over the ones of the plan."""
    out: list[Change] = []
    for place in (ACTOR, REF):
        name = "ulysses_sequence_parallel_size"
        old, new = f"{place}.{name}", theirs.get(f"{place}.fsdp_config.{name}")
        if new is not None and old in config.given and config.get(old) not in (1, new):
            out.append((old, config.get(old), new))
    return out


def _time_of(config: VerlConfig, imported: Imported) -> float | None:
    """The time of a run for the imported job; ``None`` if it does not fit."""
    try:
        return as_read(config, imported.source).iteration_s()
    except InfeasibleError:
        return None
