"""Hardware facts: what one GPU can do, and how many of which GPU there are.

Every number of a ``DeviceSpec`` is read from ``data/<device>/device.yaml``, where it stands beside its unit and
its source. A unit that does not match the field is an error, so a GB/s can never pass as a B/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from profiles.errors import InputError, NoBasisError
from profiles.other_kernels import LIKE_THE_TABLES, OtherKernels
from profiles.records import Basis

if TYPE_CHECKING:
    from collections.abc import Mapping


DeviceKind = Literal["gpu", "cpu"]


# Block-scaled FP8 runs on the FP8 tensor cores, FP16 on the BF16 ones; four-bit weights with bf16 activations on those,
# with 8-bit activations on the FP8 ones.
_PEAK_OF = {"fp8_block": "fp8", "fp16": "bf16", "mxfp4": "bf16", "int4": "bf16", "mxfp4_mxfp8": "fp8"}


@dataclass(frozen=True)
class DeviceSpec:
    """One GPU and the node it normally sits in.

    Parameters
    ----------
    name
        Catalogue name, e.g. ``h100-80gb-sxm``.
    device_string
        What the driver calls the part, as recorded in the measured tables.
    peak_flop_per_s
        Dense (no sparsity) tensor-core rate by dtype, FLOP/s; ``fp32`` is the rate outside the tensor cores.
    sustained_flop_per_s
        Rate that dense matrix work holds for minutes at the power limit, by dtype; without one the peak.
    flash_2_flop_per_s
        Rate of FlashAttention-2 ``forward`` and ``backward`` on long causal sequences, where the tables hold a later
        kernel; empty where they hold this one.
    memory_bytes_per_s, memory_bytes
        Memory bandwidth at peak (B/s) and capacity that the device reports (B).
    nvlink_bytes_per_s
        Per GPU, one direction, B/s.
    gpus_per_node, nvlink_domain_gpus
        GPUs of one node, and GPUs that NVLink joins (more than a node in a rack-scale system).
    inter_node_bytes_per_s_per_node
        All network cards of a node together, one direction, B/s. A default: a cluster states its own.
    pcie_bytes_per_s
        Effective host link of one GPU, one direction, B/s.
    inter_node_latency_s
        One message between nodes, s.
    power_w
        Board power limit, W.
    kind
        ``gpu``, or ``cpu``: a process of one or more cores. A CPU computes what it launches itself, so launching
        adds to its work; a GPU works beside the host that launches for it.
    kernels
        How its kernels differ from those of the tables that price it, where those are another maker's.
    sources, bases
        Field name (``peak_flop_per_s.bf16`` for one dtype) to source text, and to what the number rests on.
    """

    name: str
    device_string: str
    peak_flop_per_s: Mapping[str, float] = field(hash=False)
    memory_bytes_per_s: float
    memory_bytes: int
    nvlink_bytes_per_s: float
    gpus_per_node: int
    nvlink_domain_gpus: int
    inter_node_bytes_per_s_per_node: float
    pcie_bytes_per_s: float
    inter_node_latency_s: float
    power_w: float
    sustained_flop_per_s: Mapping[str, float] = field(hash=False, default_factory=dict)
    flash_2_flop_per_s: Mapping[str, float] = field(hash=False, default_factory=dict)
    kind: DeviceKind = "gpu"
    kernels: OtherKernels = LIKE_THE_TABLES
    sources: Mapping[str, str] = field(hash=False, compare=False, default_factory=dict)
    bases: Mapping[str, Basis] = field(hash=False, compare=False, repr=False, default_factory=dict)

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s of ``dtype``; ``NoBasisError`` if the device has no such tensor-core rate."""
        rate = self.peak_flop_per_s.get(_PEAK_OF.get(dtype, dtype))
        if rate is None:
            have = ", ".join(sorted(self.peak_flop_per_s))
            raise NoBasisError(f"{self.name}: no peak rate for dtype '{dtype}' in device.yaml (it has {have})")
        return rate

    def computes(self, dtype: str) -> bool:
        """Whether the device has a rate for products in ``dtype``; weights in others are turned to 16 bits first."""
        return _PEAK_OF.get(dtype, dtype) in self.peak_flop_per_s

    def sustained(self, dtype: str) -> float:
        """FLOP/s of ``dtype`` that long dense work holds; the peak where no lower rate is known."""
        return self.sustained_flop_per_s.get(_PEAK_OF.get(dtype, dtype), self.peak(dtype))

    def sustained_basis(self, dtype: str) -> Basis:
        """What ``sustained`` rests on."""
        key = _PEAK_OF.get(dtype, dtype)
        return self.basis(f"{'sustained' if key in self.sustained_flop_per_s else 'peak'}_flop_per_s.{key}")

    def basis(self, field: str) -> Basis:
        """What a field rests on (``peak_flop_per_s.bf16`` for one dtype); assumed where no file says so."""
        return self.bases.get(field, Basis.ASSUMED)


@dataclass(frozen=True)
class ClusterGroup:
    """Identical nodes of one device.

    Parameters
    ----------
    device
        Catalogue name or folder, as ``profiles.store.load_device`` takes it.
    nodes, gpus_per_node
        Counts.
    inter_node_bytes_per_s
        Network of one whole node, one direction, B/s.
    nvlink_domain_gpus
        GPUs that share one NVLink fabric.
    nodes_per_pod
        Nodes under one leaf of the network (a pod, a rail group), numbered in a row; 0 where that is not known. Pools
        are kept inside pods where they fit. Prices do not depend on it: the network is taken to be free of blocking.

    Raises
    ------
    InputError
        A count or rate is not positive, or NVLink domains and nodes do not nest.
    """

    device: str
    nodes: int
    gpus_per_node: int
    inter_node_bytes_per_s: float
    nvlink_domain_gpus: int
    nodes_per_pod: int = 0

    def __post_init__(self) -> None:
        if self.nodes_per_pod < 0:
            raise InputError(f"cluster group of {self.device}: nodes_per_pod is {self.nodes_per_pod}, it is negative")
        for name in ("nodes", "gpus_per_node", "inter_node_bytes_per_s", "nvlink_domain_gpus"):
            value = getattr(self, name)
            if not value > 0:
                raise InputError(f"cluster group of {self.device}: {name} is {value}, it must be positive")
        small, large = sorted((self.gpus_per_node, self.nvlink_domain_gpus))
        if large % small:
            raise InputError(
                f"cluster group of {self.device}: nodes of {self.gpus_per_node} GPUs and NVLink domains of "
                f"{self.nvlink_domain_gpus} GPUs do not nest; one must divide the other"
            )

    @classmethod
    def of(cls, spec: DeviceSpec, nodes: int) -> ClusterGroup:
        """``nodes`` nodes with the defaults of ``spec``."""
        rate, domain = spec.inter_node_bytes_per_s_per_node, spec.nvlink_domain_gpus
        return cls(spec.name, nodes, spec.gpus_per_node, rate, domain)

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.gpus_per_node
