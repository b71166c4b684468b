"""Resource pools: from a plan to groups of processes, checked against the devices that there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.errors import InfeasibleError, InputError, NotYetError
from simulator.groups import Degrees

if TYPE_CHECKING:
    from simulator.plan import GenerationLayout, ParallelLayout, Plan, RolePlan

CONTROLLER_POOL = "controller"
"""Name of the one-process pool that runs functions on CPU: advantages, function rewards. It takes no device."""


@dataclass(frozen=True)
class ResourcePool:
    """A set of ranks that belong to one another. The same pool for two roles means shared processes."""

    name: str
    num_ranks: int
    on_device: bool = True


def resource_pools(plan: Plan) -> tuple[ResourcePool, ...]:
    """The pools of a plan in plan order, and the controller's own."""
    pools = tuple(ResourcePool(pool.name, pool.num_gpus) for pool in plan.pools)
    return (*pools, ResourcePool(CONTROLLER_POOL, 1, on_device=False))


def require_devices(plan: Plan, num_devices: int) -> None:
    """Raise ``InfeasibleError`` before anything starts if the plan asks for more devices than there are."""
    if plan.num_gpus > num_devices:
        raise InfeasibleError(
            f"the plan asks for {plan.num_gpus} devices, there are {num_devices}; --scale-down runs the same "
            f"placement on the {num_devices} that exist",
            fewest_gpus=plan.num_gpus,
        )


def require_supported(plan: Plan) -> None:
    """Raise ``NotYetError`` for what a plan may say and this executor cannot run."""
    if plan.schedule != "sync":
        raise NotYetError(f"schedule '{plan.schedule}' cannot run yet; plan with schedule sync")
    for entry in plan.roles:
        if entry.separate_generation:
            raise NotYetError(f"{entry.role}: generation on a pool of its own cannot run yet; share the training pool")
        if entry.offload:
            raise NotYetError(f"{entry.role}: offload of {', '.join(entry.offload)} cannot run yet")
        _require_one_base(entry)


def _require_one_base(entry: RolePlan) -> None:
    """A role keeps one copy of its weights, so it scores in the layout that it trains in."""
    a, b = entry.training, entry.inference
    if a is not None and b is not None and (a.dp, a.tp, a.pp) != (b.dp, b.tp, b.pp):
        raise NotYetError(f"{entry.role}: another layout for scoring than for training cannot run yet")


def degrees_of(entry: RolePlan, num_ranks: int) -> Degrees:
    """Training and generation degrees of a role; ``InputError`` if its layouts do not fill its pool."""
    base = entry.training or entry.inference
    if base is None and entry.generation is not None:
        base = _as_parallel(entry.generation)
    if base is None:
        raise InputError(f"{entry.role}: the plan gives no layout")
    made_of: list[ParallelLayout | GenerationLayout] = [base, *([entry.generation] if entry.generation else [])]
    for layout in made_of:
        if layout.dp * layout.tp * layout.pp != num_ranks:
            raise InputError(
                f"{entry.role}: dp {layout.dp} x tp {layout.tp} x pp {layout.pp} does not fill pool {entry.pool} of "
                f"{num_ranks} devices"
            )
    generation = entry.generation or base
    return Degrees(base.pp, base.tp, base.dp, generation.pp, generation.tp)


def _as_parallel(layout: GenerationLayout) -> ParallelLayout:
    from simulator.plan import ParallelLayout

    return ParallelLayout(dp=layout.dp, tp=layout.tp, pp=layout.pp)
