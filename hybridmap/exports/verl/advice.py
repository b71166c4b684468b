"""Which keys of a verl run to change: a plan that verl itself follows, and the changed run read and priced again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Source
from hybridmap.exports.follow import all_in_tokens
from hybridmap.exports.targets import TARGETS, plan_for
from hybridmap.exports.verl.defaults import is_read
from hybridmap.exports.verl.import_run import as_read
from hybridmap.exports.verl.places import ACTOR, REF, ROLLOUT
from hybridmap.exports.verl.settings import verl_settings
from hybridmap.job.load import job_from_document
from profiles.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hybridmap.exports.imported import Imported
    from hybridmap.exports.verl.read import VerlConfig
    from hybridmap.job.job import Job
    from mapper.result import Result

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
    """Search what verl runs, and say what to change; ``search`` finds the best plan of a job."""
    trainer = "fsdp" if str(imported.job.engines.training).startswith("fsdp") else "megatron"
    try:
        found = plan_for(_offloading(imported), TARGETS[f"verl/{trainer}"], search)
    except InputError as error:
        return Advice(search(imported.job), (), None, str(error))
    ours = _counted_alike(Source(found.result.plan, found.job), imported)
    changes = _changes(imported, config, ours)
    changed = config.changed({k.lstrip("+"): new for k, _, new in changes})
    return Advice(replace(found.result, plan=ours.plan), changes, _time_of(changed, imported))


def _counted_alike(source: Source, imported: Imported) -> Source:
    """The plan with its micro-batches in tokens where the run has them so: at equal lengths samples say the same."""
    training = imported.source.actor.training
    return source if training is None or training.token_budget is None else all_in_tokens(source)


def _offloading(imported: Imported) -> Job:
    """The job, in which states may wait in host memory where they do so now."""
    document = imported.job.document
    offload = any(entry.offload for entry in imported.plan.roles)
    return job_from_document({**document, "search": {**document["search"], "offload": offload}})


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
