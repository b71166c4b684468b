"""Parts that sources ran on and that have no operator tables of their own, derived from a measured one.

Derived, not measured: the die of a measured profile with the memory, links or power limit of the part. Measured
efficiencies are held and every price is ``ANALYTIC`` (``DeviceProfile.with_spec``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
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


HALF_THE_MATRIX_UNITS = 1.3
"""Attention of long prompts takes 1.85 times its matrix time on an A100 (its table: 0.54 of the peak); the rest is
exponentials, reads of shared memory and FP32 work. NVIDIA's whitepapers give the GA102's multiprocessor half of the
A100's matrix rate a clock, and no less of all else: 1 / (1 + 0.85 / 2) = 0.70 of its peak, 1.3 times 0.54."""

DERIVED: dict[str, Derived] = {
    "h100-96gb-hbm2e": Derived(
        base="h100-80gb-sxm",
        because="H100 die of Grand Teton servers: six HBM2e stacks at 3.2 Gbit/s per pin, 96 GB, limited to 500 W",
        memory_bytes_per_s=2.4e12,
        memory_bytes=96 * 2**30,
        power_w=500.0,
    ),
    "a100-40gb-sxm": Derived(
        base="a100-80gb-sxm",
        because="A100 SXM with five stacks of HBM2",
        memory_bytes_per_s=1.555e12,
        memory_bytes=40 * 2**30,
    ),
    "rtx-a6000": Derived(
        base="a100-80gb-sxm",
        because="an Ampere part of another die at its data sheet's rates, on PCIe",
        memory_bytes_per_s=768e9,
        memory_bytes=48 * 2**30,
        nvlink_bytes_per_s=25e9,
        peak_flop_per_s={"bf16": 155e12, "fp32": 38.7e12},
        sustained_share=0.6,
        attention=HALF_THE_MATRIX_UNITS,
    ),
    "l20-48gb": Derived(
        base="l40s",
        because="NVIDIA's data sheet: the L40S's die with fewer units, 48 GB of GDDR6, 275 W. Eight L40S were measured"
        " in a server whose links fall from 20 GB/s in a pair to 1 GB/s among eight: collectives are those of PCIe 5.0",
        links_of="rtx-pro-6000",
        memory_bytes_per_s=864e9,
        power_w=275.0,
        peak_flop_per_s={"bf16": 119.5e12, "fp8": 239e12, "fp32": 59.8e12},
        sustained_share=0.6,
    ),
    "gh200-96gb": Derived(
        base="h100-80gb-sxm",
        because="NVIDIA's data sheet: the H100's die beside a Grace CPU, 96 GB of HBM3",
        memory_bytes_per_s=4.0e12,
        memory_bytes=95 * 2**30,
    ),
    "gh200-144gb": Derived(
        base="h200-sxm",
        because="NVIDIA's data sheet: the H200's die beside a Grace CPU, 144 GB of HBM3e",
        memory_bytes_per_s=4.9e12,
    ),
    "h100-94gb-nvl": Derived(
        base="h100-80gb-sxm",
        because="NVIDIA's data sheet: the H100's die at a lower clock and 400 W, 94 GB of HBM3, bridges of 600 GB/s",
        memory_bytes_per_s=3.9e12,
        memory_bytes=93 * 2**30,
        nvlink_bytes_per_s=300e9,
        power_w=400.0,
        peak_flop_per_s={"bf16": 835e12, "fp8": 1671e12, "fp32": 60e12},
        sustained_share=0.5,
    ),
    "h100-80gb-pcie": Derived(
        base="h100-80gb-sxm",
        because="NVIDIA's data sheet: the H100's die with fewer units, 350 W, 80 GB of HBM2e, bridges of 600 GB/s",
        memory_bytes_per_s=2.0e12,
        nvlink_bytes_per_s=300e9,
        power_w=350.0,
        peak_flop_per_s={"bf16": 756e12, "fp8": 1513e12, "fp32": 51e12},
        sustained_share=0.5,
    ),
    "h200-141gb-nvl": Derived(
        base="h200-sxm",
        because="NVIDIA's data sheet: the H200's die at a lower clock and 600 W, bridges of 900 GB/s",
        power_w=600.0,
        peak_flop_per_s={"bf16": 835e12, "fp8": 1671e12, "fp32": 60e12},
        sustained_share=0.6,
    ),
    "h20-141gb-sxm": Derived(
        base="h20-96gb-sxm",
        because="the H20 with the H200's memory",
        memory_bytes_per_s=4.8e12,
        memory_bytes=140 * 2**30,
    ),
    "a100-80gb-pcie": Derived(
        base="a100-80gb-sxm",
        because="NVIDIA's data sheet: the A100's die limited to 300 W, on PCIe 4",
        memory_bytes_per_s=1.935e12,
        nvlink_bytes_per_s=25e9,
        power_w=300.0,
    ),
    "mi325x-256gb": Derived(
        base="mi300x-192gb",
        because="AMD's data sheet: the MI300X's dies with 256 GB of HBM3E",
        memory_bytes_per_s=6.0e12,
        memory_bytes=253 * 2**30,
    ),
    "mi355x-288gb": Derived(
        base="mi300x-192gb",
        because="AMD's data sheet; its kernels taken to reach as much of it as the MI300X's do",
        memory_bytes_per_s=8.0e12,
        memory_bytes=285 * 2**30,
        peak_flop_per_s={"bf16": 2500e12, "fp8": 5000e12, "fp32": 157e12},
        sustained_share=0.4,
    ),
}


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
