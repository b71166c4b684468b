"""Resource pools: from a plan to groups of processes, checked against the devices that there are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from profiles.errors import InfeasibleError, InputError, NotYetError
from simulator.plan.groups import Degrees

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.launch.launcher import Launcher
    from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, RolePlan

CONTROLLER_POOL = "controller"
"""Name of the one-process pool that runs functions on CPU: advantages, function rewards. It takes no device."""


@dataclass(frozen=True)
class ResourcePool:
    """A set of ranks that belong to one another. The same pool for two roles means shared processes.

    ``kind`` is the device that the plan places the pool on, by its name in the catalogue, ``first_device`` its first
    one among those of the kind. So many consecutive ranks as ``together`` says cut the same tensors and share a node.
    """

    name: str
    num_ranks: int
    on_device: bool = True
    kind: str | None = None
    first_device: int = 0
    together: int = 1


@dataclass(frozen=True)
class Devices:
    """Devices that ranks can be started on; ``kinds`` counts them by kind where the nodes say what they have."""

    num: int
    kinds: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(launcher: Launcher) -> Devices:
        """What a launcher has now."""
        return Devices(launcher.num_devices, launcher.kinds)

    def hold(self, plan: Plan) -> bool:
        """Whether there are enough for a plan, of every kind that it asks for."""
        short = [kind for kind, num in plan.gpus.items() if self.kinds.get(kind, 0) < num]
        return plan.num_gpus <= self.num and not (self.kinds and short)

    def __str__(self) -> str:
        return f"{self.num} devices" + (f" ({_listed(self.kinds)})" if self.kinds else "")


def resource_pools(plan: Plan) -> tuple[ResourcePool, ...]:
    """The pools of a plan in plan order, and the controller's own."""
    pools = tuple(
        ResourcePool(
            pool.name, pool.num_gpus, kind=pool.device, first_device=pool.first_gpu, together=_together(plan, pool.name)
        )
        for pool in plan.pools
    )
    return (*pools, ResourcePool(CONTROLLER_POOL, 1, on_device=False))


def _together(plan: Plan, pool: str) -> int:
    """Consecutive ranks of a pool that share a node: those of the tensor-parallel groups of every layout there."""
    degrees = [1]
    for entry in plan.roles:
        if entry.pool == pool:
            shared = None if entry.separate_generation else entry.generation
            degrees += [layout.tp for layout in (entry.training, entry.inference, shared) if layout is not None]
        if entry.separate_generation and entry.generation_pool == pool and entry.generation is not None:
            degrees.append(entry.generation.tp)
    return math.lcm(*degrees)


def require_devices(plan: Plan, num_devices: int) -> None:
    """Raise ``InfeasibleError`` before anything starts if the plan asks for more devices than there are."""
    if plan.num_gpus > num_devices:
        raise InfeasibleError(
            f"the plan asks for {plan.num_gpus} devices, there are {num_devices}; --scale-down runs the same "
            f"placement on the {num_devices} that exist",
            fewest_gpus=plan.num_gpus,
        )


def require_kinds(plan: Plan, declared: Mapping[str, int], num_nodes: int) -> None:
    """Raise before anything starts if a cluster lacks the kinds of device that the plan's pools are placed on.

    ``declared``: devices by kind, where the nodes name theirs; empty where they do not, and then one device is taken
    to be as good as another. ``InfeasibleError`` for too few of a kind, ``InputError`` for a plan of several kinds on
    several nodes that name none.
    """
    kinds = _listed(plan.gpus)
    if not declared:
        if len(plan.gpus) > 1 and num_nodes > 1:
            raise InputError(
                f"the plan asks for {kinds}, and the {num_nodes} nodes of the cluster do not say what they have; start "
                f"each with its kind: {ray_start(next(iter(plan.gpus)))}"
            )
        return
    for kind, num in plan.gpus.items():
        if declared.get(kind, 0) < num:
            raise InfeasibleError(
                f"the plan asks for {kinds}, the nodes of the cluster declare {_listed(declared)}; a node that has "
                f"{kind} says so when it starts: {ray_start(kind)}",
                fewest_gpus=plan.num_gpus,
            )


def _listed(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{num} x {kind}" for kind, num in sorted(kinds.items()))


def ray_start(kind: str) -> str:
    """How a node says that it has GPUs of a kind."""
    return f"""ray start --resources='{{"{kind}": NUMBER OF GPUS}}'"""


def require_supported(plan: Plan) -> None:
    """Raise ``NotYetError`` for what a plan may say and this executor cannot run.

    ``sequence_parallel`` is taken as leave, not as order: where activations lie changes no result.
    """
    if plan.resharding != "hybridflow":
        raise NotYetError(f"resharding {plan.resharding} cannot run yet; hybridflow can")
    if plan.in_flight_updates:
        raise NotYetError("in_flight_updates cannot run yet: new weights reach engines between two generations")
    if generate_ahead(plan) and not any(entry.separate_generation for entry in plan.roles):
        raise InputError(f"schedule '{plan.schedule}' generates while training runs: it needs a generation pool")
    for entry in plan.roles:
        if "swap" in entry.offload:
            raise NotYetError(f"{entry.role}: offload by swap cannot run yet; offload of parameters can")


def generate_ahead(plan: Plan) -> int:
    """How many iterations generation is ahead of training, which is how many updates old responses may be."""
    return {"sync": 0, "one-step-off": 1, "async": plan.steps_in_flight}[plan.schedule]


def degrees_of(entry: RolePlan, num_ranks: int) -> Degrees:
    """Training and generation degrees of a role; ``NotYetError`` if its layouts do not fill its pool.

    A role that only scores has as many replicas as fill it: the plan may leave devices idle, which is no faster.
    """
    base = entry.training or entry.inference
    if base is None and entry.generation is not None:
        base = _as_parallel(entry.generation)
    if base is None:
        raise InputError(f"{entry.role}: the plan gives no layout")
    shared = None if entry.separate_generation else entry.generation
    model_ranks = base.tp * base.pp * base.cp
    if entry.training is None and entry.generation is None and num_ranks % (model_ranks * base.dp) == 0:
        dp = num_ranks // model_ranks
        return Degrees(base.pp, base.tp, dp, base.pp, base.tp, base.cp)
    for layout in (base, entry.inference, shared):
        if layout is not None and layout.num_gpus != num_ranks:
            cp = layout.num_gpus // (layout.dp * layout.tp * layout.pp)
            context = f" x cp {cp}" if cp > 1 else ""
            raise NotYetError(
                f"{entry.role}: dp {layout.dp} x tp {layout.tp} x pp {layout.pp}{context} does not fill pool "
                f"{entry.pool} of {num_ranks} devices"
            )
    generation = shared or base
    return Degrees(base.pp, base.tp, base.dp, generation.pp, generation.tp, base.cp)


def generator_degrees_of(entry: RolePlan, num_ranks: int) -> Degrees:
    """Degrees of a role on a dedicated generation pool; ``InputError`` if its layout does not fill it."""
    layout = entry.generation
    if layout is None or layout.num_gpus != num_ranks:
        takes = "no layout" if layout is None else f"{layout.num_gpus} devices"
        raise InputError(f"{entry.role}: generation has {takes}, pool {entry.generation_pool} has {num_ranks}")
    return Degrees(layout.pp, layout.tp, layout.dp, layout.pp, layout.tp)


def scoring_degrees_of(entry: RolePlan) -> Degrees | None:
    """Degrees of a role's scoring where they differ from those of its training."""
    a, b = entry.training, entry.inference
    if a is None or b is None or (a.dp, a.tp, a.pp, a.cp) == (b.dp, b.tp, b.pp, b.cp):
        return None
    return Degrees(b.pp, b.tp, b.dp, b.pp, b.tp, b.cp)


def _as_parallel(layout: GenerationLayout) -> ParallelLayout:
    from simulator.plan.plan import ParallelLayout

    return ParallelLayout(dp=layout.dp, tp=layout.tp, pp=layout.pp)
