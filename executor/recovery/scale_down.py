"""The same placement on the devices that exist: who shares with whom stays, sizes and degrees shrink."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from profiles.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.controller.pools import Devices
    from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan

    Layout = TypeVar("Layout", ParallelLayout, GenerationLayout)


def scale_down(plan: Plan, left: Devices) -> Plan:
    """A plan of at most the devices ``left`` with the structure of ``plan``; ``plan`` itself if it fits.

    The largest pool halves until all fit, so pools keep their order of size; pools of a kind among themselves where
    devices have kinds. In a halved pool, context parallelism shrinks first, then data, tensor and pipeline parallelism:
    degrees stay divisors of what the model was split by. Raises ``InfeasibleError`` if even one device a pool is too
    many.
    """
    if left.num < 1:
        raise InputError(f"scale-down needs at least one device, got {left.num}")
    if left.hold(plan):
        return plan
    sizes = _shrunk_sizes(plan, plan.pools, left.num)
    for kind in plan.gpus if left.kinds else ():
        pools = [pool.model_copy(update={"num_gpus": sizes[pool.name]}) for pool in plan.pools if pool.device == kind]
        sizes |= _shrunk_sizes(plan, pools, left.kinds.get(kind, 0), f" of kind {kind}")
    return plan.model_copy(
        update={"pools": _packed(plan.pools, sizes), "roles": tuple(_shrunk_role(r, plan, sizes) for r in plan.roles)}
    )


def _shrunk_sizes(plan: Plan, pools: Sequence[Pool], num_devices: int, of_kind: str = "") -> dict[str, int]:
    """Sizes of some pools of a plan that fit together; ``InfeasibleError`` where there is not one device for each."""
    if len(pools) > num_devices:
        raise InfeasibleError(
            f"{plan.placement} has {len(pools)} pools{of_kind} and needs a device for each, there are {num_devices}; "
            "a placement with fewer pools fits",
            fewest_gpus=len(plan.pools),
        )
    sizes = {pool.name: pool.num_gpus for pool in pools}
    while sum(sizes.values()) > num_devices:
        largest = max(sizes, key=lambda name: sizes[name])  # first among equals: plan order
        sizes = sizes | {largest: _largest_divisor_below(sizes[largest])}
    return sizes


def _largest_divisor_below(n: int) -> int:
    return next(k for k in range(n // 2, 0, -1) if n % k == 0)


def _packed(pools: tuple[Pool, ...], sizes: dict[str, int]) -> tuple[Pool, ...]:
    packed, first = [], dict.fromkeys((pool.device for pool in pools), 0)
    for pool in pools:
        packed.append(pool.model_copy(update={"first_gpu": first[pool.device], "num_gpus": sizes[pool.name]}))
        first[pool.device] += sizes[pool.name]
    return tuple(packed)


def _shrunk_role(entry: RolePlan, plan: Plan, sizes: dict[str, int]) -> RolePlan:
    size, engine = sizes[entry.pool], sizes[entry.generation_pool or entry.pool]
    before, engine_before = plan.pool_of(entry.role).num_gpus, plan.generation_pool_of(entry.role).num_gpus
    return entry.model_copy(
        update={
            "training": _shrunk(entry.training, before // size) if entry.training else None,
            "inference": _shrunk(entry.inference, before // size) if entry.inference else None,
            "generation": _shrunk(entry.generation, engine_before // engine) if entry.generation else None,
        }
    )


def _shrunk(layout: Layout, factor: int) -> Layout:
    """``layout`` on one ``factor``-th of the ranks.

    What overlays other degrees (experts, copies of attention) goes, and interleaving where one stage is left.
    """
    degrees = {}
    for name in ("cp", "dp", "tp", "pp"):
        degree = getattr(layout, name, 1)
        cut = max(k for k in range(1, degree + 1) if degree % k == 0 and factor % k == 0)
        degrees[name], factor = degree // cut, factor // cut
    overlays = {"ep": 1, "attention_dp": 1} | ({"vpp": 1} if degrees["pp"] == 1 else {})
    known = type(layout).model_fields
    return layout.model_copy(update={name: n for name, n in (degrees | overlays).items() if name in known})
