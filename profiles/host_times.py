"""Which constants of an engine are time of the host, in the one place that says so; engines on a slower host."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from profiles.engine_facts import GenerationEngine, TrainingEngine

    _Engine = TypeVar("_Engine", GenerationEngine, TrainingEngine)

IN_PASSES = (
    "launch_s_per_layer",
    "prefill_launch_s_per_layer",
    "host_s_per_step",
    "host_s_per_sequence",
    "host_s_per_remote_rank",
    "collective_launch_s",
    "gather_s_per_layer_per_gpu",
    "host_s_per_launch",
    "host_s_per_expert",
    "forward_s_per_layer",
    "backward_s_per_layer",
    "forward_s_per_layer_sequence",
    "backward_s_per_layer_sequence",
    "forward_s_per_pass",
    "backward_s_per_pass",
    "step_fixed_s",
)
"""In passes and steps."""

BETWEEN_CALLS = (
    "transition_fixed_s",
    "sync_s_per_byte",
    "export_s_per_tensor",
    "send_fixed_s",
    "send_s_per_tensor",
    "send_s_per_byte",
    "controller_s_per_token",
)
"""When weights and samples are handed over."""

BEFORE_CALLS = (
    "dispatch_s",
    "dispatch_local_s",
    "dispatch_iteration_s",
    "dispatch_local_iteration_s",
    "dispatch_iteration_s_per_sample",
    "dispatch_rank_s",
    "dispatch_pool_rank_s",
)
"""Between the end of a call and the start of the next, and around an iteration: the controller, batches in motion."""


def slowed(engine: _Engine, factor: float, names: tuple[str, ...]) -> _Engine:
    """An engine of which some constants are ``factor`` times as long; names that it does not have are left out."""
    known = {field.name for field in fields(engine)}
    return replace(engine, **{name: getattr(engine, name) * factor for name in names if name in known})
