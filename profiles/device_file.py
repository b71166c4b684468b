"""The file of a device as it is written: every number with unit, source and basis; what reads it into a spec."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from profiles.errors import FileFormatError
from profiles.hardware import DeviceKind, DeviceSpec
from profiles.other_kernels import LIKE_THE_TABLES, UNITS_OF, OtherKernels
from profiles.records import Basis, ConstantBasis
from profiles.yaml_text import read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEVICE_FILE = "device.yaml"


MEASURED_HERE = "measured here"
"""How the source of a number begins that ``hybridmap profile`` measured."""


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
