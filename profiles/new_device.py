"""A device file for a part without tables: a part with tables at its own rates, until a log calibrates it.

Kernels are taken to reach the share of the peak that they reach on the part with tables. That is no measurement, and
the file says so; ``hybridmap calibrate`` puts a layer beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiles.device_file import DEVICE_FILE, UNITS, load_tables_of
from profiles.errors import InputError, UnknownNameError
from profiles.store import DATA, device_names, load_device
from profiles.yaml_text import yaml_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from profiles.hardware import DeviceSpec

SEEN = 0.99
"""Of the memory on a card's label, what a process sees: H100, H20 and A800 have 98.9 to 99.1 %."""

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_QUANTITY = re.compile(
    r"(?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*(?P<prefix>[kmgtp]?)(?P<unit>[a-z/]*)", re.IGNORECASE
)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.IGNORECASE)


@dataclass(frozen=True)
class Rate:
    """What an option says of a part: the field, units that may stand behind the number, and what is believable."""

    option: str
    units: tuple[str, ...]
    low: float
    high: float
    example: str


RATES = {
    "peak_flop_per_s": Rate("--flops", ("flops", "flop/s"), 1e12, 1e17, "148e12 or 148TFLOPS"),
    "fp8_flop_per_s": Rate("--fp8-flops", ("flops", "flop/s"), 1e12, 1e17, "296e12 or 296TFLOPS"),
    "memory_bytes_per_s": Rate("--bandwidth", ("b/s",), 1e10, 1e15, "4.0e12 or 4.0TB/s"),
    "nvlink_bytes_per_s": Rate("--links", ("b/s",), 1e9, 1e14, "450e9 or 450GB/s, one way, of one GPU"),
    "pcie_bytes_per_s": Rate("--host-link", ("b/s",), 1e8, 1e13, "50e9 or 50GB/s, one way, of one GPU"),
    "inter_node_bytes_per_s_per_node": Rate("--network", ("b/s",), 1e7, 1e14, "400e9 or 400GB/s, one way, of a node"),
    "power_w": Rate("--power", ("w",), 10, 1e5, "700 or 700W"),
}


def quantity(rate: Rate, text: str) -> float:
    """A number with a decimal prefix and perhaps its unit.

    Raises
    ------
    InputError
        It is none, in another unit, or not believable.
    """
    found = _QUANTITY.fullmatch(text.strip())
    if found is None or found["unit"].lower() not in ("", *rate.units):
        raise InputError(f"{rate.option} {text}: expected a number such as {rate.example}")
    value = float(found["number"]) * _PREFIXES[found["prefix"].lower()]
    if not rate.low <= value <= rate.high:
        raise InputError(
            f"{rate.option} {text}: {value:g} is not between {rate.low:g} and {rate.high:g}; expected such as "
            f"{rate.example}"
        )
    return value


def memory_bytes(text: str) -> float:
    """Bytes that a process sees of what a card's label says: ``96``, ``96GB`` and ``96GiB`` are 96 GiB on the label."""
    bare = re.sub(r"\s*gi?b?$", "", text.strip(), flags=re.IGNORECASE)
    return SEEN * 2**30 * quantity(Rate("--memory", (), 1, 4096, "96 or 96GB, as its label says"), bare)


def device_file(name: str, like: str, given: Mapping[str, float], gpus_per_node: int | None = None) -> str:
    """Text of ``device.yaml``.

    Parameters
    ----------
    name
        Of the new device, and of its folder.
    like
        A catalogue device with tables whose kernels are taken to be as efficient.
    given
        Numbers by field: those of ``RATES``, and ``memory_bytes``. Without ``power_w`` and others the part has those
        of ``like``; peaks that are not given, and what is sustained of them, go with that of bf16.
    gpus_per_node
        GPUs of a node, which its links join.

    Raises
    ------
    InputError
        The name cannot be one, or ``like`` has no tables of its own.
    """
    if not _NAME.fullmatch(name) or name in device_names():
        raise InputError(f"{name!r}: expected a name of letters, digits, dots and hyphens that no shipped device has")
    if like not in device_names():
        raise UnknownNameError("device", like, device_names())
    if (other := load_tables_of(DATA / like)) is not None:
        raise InputError(f"--like {like}: it has no tables of its own; give the one whose it has, {other}")
    spec = load_device(like).spec
    content: dict[str, Any] = {
        "schema_version": 1,
        "name": name,
        "device_string": name,
        "tables_of": like,
        "because": f"its numbers were given by hand beside {like}",
        **_peaks(spec, given),
    }
    for field in ("memory_bytes", *RATES):
        if field in given and field in UNITS and field != "peak_flop_per_s":
            content[field] = _fact(field, given[field], "given by hand")
    if gpus_per_node is not None:
        for field in ("gpus_per_node", "nvlink_domain_gpus"):
            content[field] = _fact(field, gpus_per_node, "given by hand: the links join the GPUs of a node")
    return yaml_of(content)


def write_device(folder: Path, text: str) -> Path:
    """Write a device file below a folder of its own, which must not have one."""
    path = folder / DEVICE_FILE
    if path.exists():
        raise InputError(f"{path}: is there already; remove it or choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _peaks(spec: DeviceSpec, given: Mapping[str, float]) -> dict[str, Any]:
    """Peaks, and what is sustained of them, by dtype: in the proportion of bf16, where a number is not given."""
    if "peak_flop_per_s" not in given:
        return {}
    share = given["peak_flop_per_s"] / spec.peak_flop_per_s["bf16"]
    of_fp8 = given.get("fp8_flop_per_s", share * spec.peak_flop_per_s.get("fp8", 0.0))
    shares = dict.fromkeys(spec.peak_flop_per_s, share)
    if "fp8" in shares:
        shares["fp8"] = of_fp8 / spec.peak_flop_per_s["fp8"]
    by_hand = {"bf16", *(("fp8",) if "fp8_flop_per_s" in given else ())}
    like = f"the {spec.name}'s, as the peak of bf16 is to its"
    return {
        "peak_flop_per_s": {
            dtype: _fact("peak_flop_per_s", shares[dtype] * rate, "given by hand" if dtype in by_hand else like)
            for dtype, rate in spec.peak_flop_per_s.items()
        },
        "sustained_flop_per_s": {
            dtype: _fact("sustained_flop_per_s", shares.get(dtype, share) * rate, like)
            for dtype, rate in spec.sustained_flop_per_s.items()
        },
        "flash_2_flop_per_s": {
            way: _fact("flash_2_flop_per_s", share * rate, like) for way, rate in spec.flash_2_flop_per_s.items()
        },
    }


def _fact(field: str, value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.6g}"), "unit": UNITS[field], "basis": "assumed", "source": source}
