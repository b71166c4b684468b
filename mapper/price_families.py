"""Families of prices that go wrong, or get better, together: what each one is, and how to scale it in the facts.

A factor multiplies a family's *times*: 1.15 on ``network`` is a network that takes 15 % longer for the same bytes.
Rates of the device (``DeviceProfile.with_spec``: measured efficiencies held, the roofline moved), of the cluster and
of the engines are scaled, and everything is priced again, so overlap, rooflines and rounding to whole micro-batches
answer as they would. What belongs to no family stays: launches inside a kernel's price, the samples, the memory.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from profiles.host_times import BETWEEN_CALLS, IN_PASSES, slowed
from profiles.workload import LengthDistribution
from simulator.facts import DeviceGroup
from simulator.uncertainty import load_calibration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from profiles.device import DeviceProfile
    from profiles.engine_facts import GenerationEngine, TrainingEngine
    from profiles.hardware import ClusterGroup
    from profiles.workload import Workload
    from simulator.facts import Facts

    _Engine = TypeVar("_Engine", GenerationEngine, TrainingEngine)

Family = Literal["compute", "memory", "nvlink", "network", "host", "response"]
RESOURCES: tuple[Family, ...] = ("compute", "memory", "nvlink", "network", "host")
FAMILIES: tuple[Family, ...] = (*RESOURCES, "response")
MEANING: dict[Family, str] = {
    "compute": "arithmetic of GEMM and attention",
    "memory": "memory bandwidth",
    "nvlink": "communication inside an NVLink domain",
    "network": "communication between nodes",
    "host": "engine and host time",
    "response": "response length",
}

_BASIS = {
    "compute": "interpolated",
    "memory": "interpolated",
    "nvlink": "interpolated",
    "network": "analytic",
    "host": "fitted",
}
"""The evidence that a family's prices mostly rest on: operator and collective tables, a rule without a measurement,
constants of an engine file."""

DEFAULT_ERROR = 0.15
"""Of what no calibration speaks: a distribution of response lengths that a job states beforehand."""

MOST_OF_LIMIT = 0.95
"""A scaled mean response length stops at this share of the limit: closer to it the lognormal has no solution."""

_RATES = ("reload_bytes_per_s", "offload_bytes_per_s")


def default_errors(facts: Facts) -> dict[Family, float]:
    """Half-width of each family's 90 % interval, relative: from ``profiles/uncertainty.yaml`` by its kind of evidence.

    A fixed response length is a setting and no estimate, so it has no error; a distribution has ``DEFAULT_ERROR``.
    """
    widths = load_calibration().half_width
    errors = {family: widths.get(_BASIS.get(family, ""), DEFAULT_ERROR) for family in FAMILIES}
    return errors | {"response": 0.0 if facts.workload.response.kind == "fixed" else DEFAULT_ERROR}


def scaled(facts: Facts, factors: Mapping[Family, float]) -> Facts:
    """``facts`` with the times of each family multiplied by its factor; families left out, or at 1, stay exactly."""
    at = {family: factors.get(family, 1.0) for family in FAMILIES}
    if at["compute"] != 1 or at["memory"] != 1 or at["nvlink"] != 1 or at["network"] != 1:
        facts = _with_device(facts, at)
    if at["host"] != 1:
        facts = replace(
            facts,
            generation=_with_host(facts.generation, at["host"]),
            training=_with_host(facts.training, at["host"]),
        )
    if at["response"] != 1:
        facts = replace(facts, workload=with_response(facts.workload, at["response"]))
    return facts


def _with_device(facts: Facts, at: Mapping[Family, float]) -> Facts:
    """Rates of GPU, links and network of every kind divided by their factors, the network's latency multiplied."""

    def of_kind(group: ClusterGroup, device: DeviceProfile) -> tuple[ClusterGroup, DeviceProfile]:
        spec = replace(
            device.spec,
            peak_flop_per_s=_slower(device.spec.peak_flop_per_s, at["compute"]),
            sustained_flop_per_s=_slower(device.spec.sustained_flop_per_s, at["compute"]),
            flash_2_flop_per_s=_slower(device.spec.flash_2_flop_per_s, at["compute"]),
            memory_bytes_per_s=device.spec.memory_bytes_per_s / at["memory"],
            nvlink_bytes_per_s=device.spec.nvlink_bytes_per_s / at["nvlink"],
            inter_node_latency_s=device.spec.inter_node_latency_s * at["network"],
        )
        rate = group.inter_node_bytes_per_s / at["network"]
        return replace(group, inter_node_bytes_per_s=rate), device.with_spec(spec)

    return _on_each_kind(facts, of_kind)


def with_memory(facts: Facts, num_bytes: Callable[[int], int]) -> Facts:
    """``facts`` with another memory of each kind of GPU, by a function of its bytes."""

    def of_kind(group: ClusterGroup, device: DeviceProfile) -> tuple[ClusterGroup, DeviceProfile]:
        return group, device.with_spec(replace(device.spec, memory_bytes=num_bytes(int(device.spec.memory_bytes))))

    return _on_each_kind(facts, of_kind)


def _on_each_kind(
    facts: Facts, change: Callable[[ClusterGroup, DeviceProfile], tuple[ClusterGroup, DeviceProfile]]
) -> Facts:
    group, device = change(facts.group, facts.device)
    others = tuple(DeviceGroup(*change(device_type.group, device_type.device)) for device_type in facts.others)
    return replace(facts, group=group, device=device, others=others)


def _slower(rates: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: rate / factor for name, rate in rates.items()}


def _with_host(engine: _Engine, factor: float) -> _Engine:
    """An engine whose own times are ``factor`` times as long and whose copies run at 1 / ``factor`` of the rate."""
    rates = {field.name for field in fields(engine)} & set(_RATES)
    slower = slowed(engine, factor, (*IN_PASSES, *BETWEEN_CALLS))
    return replace(slower, **{name: getattr(engine, name) / factor for name in rates})


def with_response(work: Workload, factor: float) -> Workload:
    """Responses ``factor`` times as long, at least one token.

    A fixed length moves as a whole. Of a distribution the mean (and p99) move while the limit, at which generation
    stops, holds: ``MOST_OF_LIMIT`` of it is as far as the mean goes.
    """
    response = work.response
    if response.kind == "fixed":
        longer = LengthDistribution.fixed(max(1, round(response.maximum * factor)))
    elif response.kind == "histogram":
        lengths = tuple(min(max(1, round(n * factor)), response.maximum) for n in response.lengths)
        longer = LengthDistribution.histogram(lengths, response.weights)
    else:
        mean = max(min(response.mean * factor, MOST_OF_LIMIT * response.maximum), min(1.0, response.mean))
        p99 = None if response.p99 is None else max(response.p99 * factor, 1.01 * mean)
        longer = replace(response, mean=mean, p99=p99)
    return replace(work, response=longer)
