"""Parts that sources ran on and that have no operator tables of their own, derived from a measured one.

Derived, not measured: the die of a measured profile with the memory, links or power limit of the part. Measured
efficiencies are held and every price is ``ANALYTIC`` (``DeviceProfile.with_spec``).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.validation.names import integer
from profiles.hardware import ClusterGroup
from profiles.store import load_device

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from profiles.device import DeviceProfile

POWER_EXPONENT = 0.5
"""Sustained rate over power limit. Dynamic power is f V^2: with V proportional to f the rate goes with P^(1/3), and
towards the voltage floor with P. One half is our assumption between them for 500 to 700 W; it is fitted on nothing."""


@dataclass(frozen=True)
class Derived:
    """A part that differs from the measured profile ``base`` in what is given here, and why that is known."""

    base: str
    because: str
    memory_bytes_per_s: float | None = None
    memory_bytes: int | None = None
    nvlink_bytes_per_s: float | None = None
    power_w: float | None = None
    peak_flop_per_s: Mapping[str, float] | None = None
    sustained_share: float | None = None
    """Of the part's own peak; without one the base's rate, as the power limit changes it."""
    links_of: str = ""
    """Profile whose collectives the part's are, by their links; those of ``base`` without one."""
    attention: float = 1.0
    """Share of the matrix rate that attention reaches, over that of the base."""


_FORMATS = ("bf16", "fp8", "fp32")
_RATES = ("memory_bytes_per_s", "nvlink_bytes_per_s", "power_w", "sustained_share")
_WORDS = ("name", "base", "links_of", "because")


def _read(file: Path) -> dict[str, Derived]:
    """The parts of ``derived.csv``, in its order."""
    with file.open(encoding="utf-8", newline="") as opened:
        lines = list(csv.DictReader(line for line in opened if not line.startswith("#")))
    return {line["name"]: _part(line) for line in lines}


def _part(line: Mapping[str, str]) -> Derived:
    numbers = {name: float(cell) for name, cell in line.items() if name not in _WORDS and cell}
    gib = numbers.get("memory_gib")
    return Derived(
        base=line["base"],
        because=line["because"],
        memory_bytes=None if gib is None else int(gib * 2**30),
        peak_flop_per_s={key: numbers[key] for key in _FORMATS if key in numbers} or None,
        links_of=line["links_of"],
        attention=numbers.get("attention", 1.0),
        **{name: numbers.get(name) for name in _RATES},
    )


DERIVED = _read(Path(__file__).with_name("derived.csv"))


@cache
def device_profile(name: str) -> DeviceProfile:
    """The profile of a measured or a derived device.

    Raises
    ------
    UnknownNameError
        Neither.
    """
    if name not in DERIVED:
        return load_device(name)
    derived = DERIVED[name]
    base = load_device(derived.base)
    changes = {
        field: getattr(derived, field)
        for field in ("memory_bytes_per_s", "memory_bytes", "nvlink_bytes_per_s", "power_w", "peak_flop_per_s")
        if getattr(derived, field) is not None
    }
    slower = (changes.get("power_w", base.spec.power_w) / base.spec.power_w) ** POWER_EXPONENT
    held = {key: rate * slower for key, rate in base.spec.sustained_flop_per_s.items()}
    # FlashAttention-2 leaves so much of the tensor cores idle that it stays below the lower limit, too.
    flash = {key: min(rate, held["bf16"]) for key, rate in base.spec.flash_2_flop_per_s.items()}
    limited = {"sustained_flop_per_s": held, "flash_2_flop_per_s": flash}
    if derived.sustained_share is not None and derived.peak_flop_per_s is not None:
        rates = {key: rate * derived.sustained_share for key, rate in derived.peak_flop_per_s.items() if key != "fp32"}
        limited["sustained_flop_per_s"] = rates
        of_base = {key: base.spec.peak(key) for key in rates}
        limited["flash_2_flop_per_s"] = {
            key: rate * derived.peak_flop_per_s["bf16"] / of_base["bf16"]
            for key, rate in base.spec.flash_2_flop_per_s.items()
        }
    kernels = replace(base.spec.kernels, attention=derived.attention)
    if derived.links_of:
        base = base.with_links_of(load_device(derived.links_of))
    return base.with_spec(replace(base.spec, name=name, kernels=kernels, **limited, **changes))


DGX_A100_BYTES_PER_S = 200e9
"""Network of a node of A100s or A800s where many train: 8 cards of 200 Gbit/s, as NVIDIA's and Azure's have them. The
profile's own 200 Gbit/s a node are those of the HybridFlow paper's cluster."""


def cluster_of(cells: Mapping[str, Any], device: DeviceProfile, num_gpus: int, assumed: list[str]) -> ClusterGroup:
    """The nodes that a row ran on; the network of A100s, which no row states, is said in ``assumed``."""
    per_node = min(integer(cells.get("gpus_per_node"), device.spec.gpus_per_node), num_gpus)
    group = replace(
        ClusterGroup.of(device.spec, max(1, -(-num_gpus // per_node))),
        gpus_per_node=per_node,
        nvlink_domain_gpus=max(per_node, device.spec.nvlink_domain_gpus),
    )
    if group.nodes == 1 or not device.name.startswith(("a100", "a800")):
        return group
    assumed.append("network not stated: 8 x 200 Gbit/s a node")
    return replace(group, inter_node_bytes_per_s=DGX_A100_BYTES_PER_S)
