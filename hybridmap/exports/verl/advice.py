"""Which keys of a verl run differ from a plan: those that verl follows, and none that it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.verl.defaults import is_read
from hybridmap.exports.verl.places import ACTOR, REF, ROLLOUT
from hybridmap.exports.verl.programs import MAIN
from hybridmap.exports.verl.settings import verl_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmap.exports.export import Source
    from hybridmap.exports.imported import Imported
    from hybridmap.exports.verl.read import VerlConfig

SHARE, CACHE = f"{ROLLOUT}.gpu_memory_utilization", f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"
"""Two keys for one thing: the engine's share of memory, and its KV cache in bytes, which has the last word."""

Change = tuple[str, Any, Any]
"""A key, its value as it is, its value as it should be."""
_OF_MAIN = (
    "trainer.v1.",
    "algorithm.rollout_correction.",
    "actor_rollout_ref.hybrid_engine",
    f"{ROLLOUT}.checkpoint_engine",
)
"""Keys by which the main program is told what other programs do by themselves."""
_OWN_GPUS = {f"{ROLLOUT}.nnodes": "rollout.nnodes", f"{ROLLOUT}.n_gpus_per_node": "rollout.n_gpus_per_node"}
"""Keys that other programs have elsewhere."""


def changes_of_verl(imported: Imported, config: VerlConfig, ours: Source) -> tuple[Change, ...]:
    """Every key in which a run and a plan differ, those of other programs by their own names."""
    theirs, present = verl_settings(ours).values, verl_settings(imported.source).values
    told = SHARE if CACHE.lstrip("+") not in config.given else CACHE
    changes = []
    for key, new in theirs.items():
        plain = key.lstrip("+")
        if config.program is not MAIN:
            if plain.startswith(_OF_MAIN):
                continue
            key = plain = _OWN_GPUS.get(plain, plain)
        now = _present(config, plain) if is_read(plain) else present.get(key)
        if present.get(key, None) != new and now != new and key not in {SHARE, CACHE} - {told}:
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
