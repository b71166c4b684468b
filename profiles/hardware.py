"""Hardware facts: what one GPU can do, and how many of which GPU there are.

Every number of a ``DeviceSpec`` is read from ``data/<device>/device.yaml``, where it stands beside its unit and
its source. A unit that does not match the field is an error, so a GB/s can never pass as a B/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from profiles.errors import FileFormatError, InputError, NoBasisError
from profiles.other_kernels import LIKE_THE_TABLES, UNITS_OF, OtherKernels
from profiles.records import Basis, ConstantBasis
from profiles.yaml_text import read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEVICE_FILE = "device.yaml"

MEASURED_HERE = "measured here"
"""How the source of a number begins that ``hybridmap profile`` measured."""

DeviceKind = Literal["gpu", "cpu"]

UNITS = {
    "peak_flop_per_s": "FLOP/s",
    "sustained_flop_per_s": "FLOP/s",
    "flash_2_flop_per_s": "FLOP/s",
    "memory_bytes_per_s": "B/s",
    "memory_bytes": "B",
    "nvlink_bytes_per_s": "B/s",
    "gpus_per_node": "GPUs",
    "nvlink_domain_gpus": "GPUs",
    "inter_node_bytes_per_s_per_node": "B/s",
    "pcie_bytes_per_s": "B/s",
    "inter_node_latency_s": "s",
    "power_w": "W",
}

_BY_KEY = ("peak_flop_per_s", "sustained_flop_per_s", "flash_2_flop_per_s")

_File = TypeVar("_File", bound=BaseModel)
_WHOLE = ("memory_bytes", "gpus_per_node", "nvlink_domain_gpus")

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


class _Fact(BaseModel):
    """A number beside its unit, its source and what it rests on; a card that does not say so assumes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    unit: str
    source: Annotated[str, Field(min_length=1)]
    basis: ConstantBasis = "assumed"


class _DeviceFile(BaseModel):
    """The schema of ``device.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_version: Annotated[int, Field(ge=1, le=1)]
    name: str
    device_string: str
    kind: DeviceKind = "gpu"
    peak_flop_per_s: dict[str, _Fact]
    sustained_flop_per_s: dict[str, _Fact] = Field(default_factory=dict)
    flash_2_flop_per_s: dict[str, _Fact] = Field(default_factory=dict)
    memory_bytes_per_s: _Fact
    memory_bytes: _Fact
    nvlink_bytes_per_s: _Fact
    gpus_per_node: _Fact
    nvlink_domain_gpus: _Fact
    inter_node_bytes_per_s_per_node: _Fact
    pcie_bytes_per_s: _Fact
    inter_node_latency_s: _Fact
    power_w: _Fact
    doubts: list[str] = Field(default_factory=list)
    collectives_of: str = ""
    collectives_because: str = ""
    computed_from: str = ""


class _DerivedFile(BaseModel):
    """The schema of a ``device.yaml`` that says in what a device differs from one with tables."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    schema_version: Annotated[int, Field(ge=1, le=1)]
    name: str
    device_string: str
    tables_of: Annotated[str, Field(min_length=1)]
    because: str
    peak_flop_per_s: dict[str, _Fact] = Field(default_factory=dict)
    sustained_flop_per_s: dict[str, _Fact] = Field(default_factory=dict)
    flash_2_flop_per_s: dict[str, _Fact] = Field(default_factory=dict)
    memory_bytes_per_s: _Fact | None = None
    memory_bytes: _Fact | None = None
    nvlink_bytes_per_s: _Fact | None = None
    gpus_per_node: _Fact | None = None
    nvlink_domain_gpus: _Fact | None = None
    inter_node_bytes_per_s_per_node: _Fact | None = None
    pcie_bytes_per_s: _Fact | None = None
    power_w: _Fact | None = None
    kernels: dict[str, _Fact] = Field(default_factory=dict)


def load_derived(folder: Path, base: DeviceSpec) -> DeviceSpec:
    """The spec of a device that differs from ``base`` in what ``folder/device.yaml`` says, and in nothing else."""
    path = folder / DEVICE_FILE
    parsed = _validated(_DerivedFile, path)
    single = {name: fact for name in UNITS if isinstance(fact := getattr(parsed, name, None), _Fact)}
    by_key: dict[str, dict[str, _Fact]] = {name: getattr(parsed, name) for name in _BY_KEY}
    facts = {**single, **{f"{name}.{dtype}": fact for name in _BY_KEY for dtype, fact in by_key[name].items()}}
    _require_units(path, facts)
    numbers = {name: int(fact.value) if name in _WHOLE else fact.value for name, fact in single.items()}
    rates = {
        name: {**getattr(base, name), **{dtype: fact.value for dtype, fact in by_key[name].items()}} for name in _BY_KEY
    }
    if unknown := parsed.kernels.keys() - UNITS_OF:
        raise FileFormatError(f"{path}: kernels: {sorted(unknown)[0]}: known are {', '.join(UNITS_OF)}")
    kernels = {f"kernels.{name}": fact for name, fact in parsed.kernels.items()}
    _require_units(path, kernels)
    facts = {**facts, **kernels}
    changed: dict[str, Any] = {**numbers, **rates}
    changed["kernels"] = OtherKernels(**{name: fact.value for name, fact in parsed.kernels.items()})
    # What was fitted on one part is an assumption on another.
    held = {name: Basis.ASSUMED if basis is Basis.FITTED else basis for name, basis in base.bases.items()}
    return replace(
        base,
        name=parsed.name,
        device_string=parsed.device_string,
        sources={
            **{name: f"that of {base.name}: {source}" for name, source in base.sources.items()},
            **{name: fact.source for name, fact in facts.items()},
        },
        bases={**held, **{name: Basis[fact.basis.upper()] for name, fact in facts.items()}},
        **changed,
    )


def load_spec(folder: Path) -> DeviceSpec:
    """Read ``folder/device.yaml``; ``FileFormatError`` names the file and the field that is wrong."""
    return _to_spec(folder / DEVICE_FILE, _read(folder / DEVICE_FILE))


def load_tables_of(folder: Path) -> str | None:
    """Whose tables price the device of ``folder/device.yaml``, at its own rates; ``None`` where it has its own."""
    content = read_yaml_file(folder / DEVICE_FILE)
    if not isinstance(content, dict) or "tables_of" not in content:
        return None
    return _validated(_DerivedFile, folder / DEVICE_FILE).tables_of


def load_collectives_of(folder: Path) -> tuple[str, str]:
    """Whose collectives stand for those of ``folder``'s tables, and why; empty where its own do."""
    content = read_yaml_file(folder / DEVICE_FILE)
    if not isinstance(content, dict) or "collectives_of" not in content:
        return "", ""
    parsed = _validated(_DeviceFile, folder / DEVICE_FILE)
    return parsed.collectives_of, parsed.collectives_because


def load_doubts(folder: Path) -> tuple[str, ...]:
    """What speaks against a device's numbers: what was incomplete or disturbed, or that they are another device's."""
    other = load_tables_of(folder)
    if other is None:
        return tuple(_read(folder / DEVICE_FILE).doubts)
    because = _validated(_DerivedFile, folder / DEVICE_FILE).because
    return (f"derived, not measured: {because}; kernels at the efficiencies of {other}",)


def _read(path: Path) -> _DeviceFile:
    return _validated(_DeviceFile, path)


def _validated(schema: type[_File], path: Path) -> _File:
    try:
        return schema.model_validate(read_yaml_file(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "file"
        raise FileFormatError(f"{path}: {place}: {first['msg']}") from error


def _to_spec(path: Path, parsed: _DeviceFile) -> DeviceSpec:
    facts = {name: getattr(parsed, name) for name in UNITS if name not in _BY_KEY}
    peaks = {f"{name}.{dtype}": fact for name in _BY_KEY for dtype, fact in getattr(parsed, name).items()}
    _require_units(path, {**facts, **peaks})
    whole = {name: int(facts[name].value) for name in _WHOLE}
    rates = {name: fact.value for name, fact in facts.items() if name not in whole}
    return DeviceSpec(
        name=parsed.name,
        device_string=parsed.device_string,
        kind=parsed.kind,
        kernels=LIKE_THE_TABLES,
        peak_flop_per_s={dtype: fact.value for dtype, fact in parsed.peak_flop_per_s.items()},
        sustained_flop_per_s={dtype: fact.value for dtype, fact in parsed.sustained_flop_per_s.items()},
        flash_2_flop_per_s={way: fact.value for way, fact in parsed.flash_2_flop_per_s.items()},
        sources={name: fact.source for name, fact in {**facts, **peaks}.items()},
        bases={name: Basis[fact.basis.upper()] for name, fact in {**facts, **peaks}.items()},
        **whole,
        **rates,
    )


def unit_of(name: str) -> str:
    """Unit of a field of a card: ``peak_flop_per_s.bf16``, ``kernels.matrix``."""
    field_of, _, key = name.partition(".")
    return UNITS_OF[key] if field_of == "kernels" else UNITS[field_of]


def _require_units(path: Path, facts: Mapping[str, _Fact]) -> None:
    for name, fact in facts.items():
        if fact.unit != (unit := unit_of(name)):
            raise FileFormatError(f"{path}: {name}: unit is '{fact.unit}', it must be '{unit}'")
