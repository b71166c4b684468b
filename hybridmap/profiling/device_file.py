"""``device.yaml`` of a measured machine: the catalogue's card where it knows the part, else what was measured."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hybridmap.profiling.rates import host_rate, memory_rate, wire_rate
from profiles.atomic_write import write_atomically
from profiles.device_file import DEVICE_FILE, MEASURED_HERE
from profiles.store import DATA, device_names, load_device
from profiles.yaml_text import read_yaml_file, yaml_of
from simulator.plan.seal import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from profiles.records import ConstantBasis

    Row = Mapping[str, Any]

UNKNOWN_RATE = 1e9
"""Bytes per second where no memory operation was measured: the profile is incomplete then, and says so."""


def write_device_file(
    folder: Path, about: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], kind: str, doubts: Sequence[str] = ()
) -> str:
    """Write ``device.yaml``; returns the device's name. ``doubts``: what speaks against the measurements."""
    known = next((n for n in device_names() if load_device(n).spec.device_string == about["device_string"]), None)
    if known is not None:
        document = read_yaml_file(DATA / known / DEVICE_FILE)
        document["name"] = f"{known}-measured"
    else:
        document = _measured_card(about, rows, kind)
    document["doubts"] = list(doubts)
    document["computed_from"] = fingerprint(repr(rows))
    write_atomically(folder / DEVICE_FILE, yaml_of(document))
    return str(document["name"])


def slug(text: str) -> str:
    """A device's name from what the system calls it."""
    words = re.findall(r"[a-z0-9]+", text.lower().replace("(r)", "").replace("(tm)", ""))
    return "-".join(words)[:48] or "device"


# Long by what a card says: a line for each.
def _measured_card(about: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], kind: str) -> dict[str, Any]:
    gemm, memory, copies, wires = (rows.get(t, ()) for t in ("gemm", "memory_ops", "copy", "collective"))
    flops = max((2.0 * r["m"] * r["n"] * r["k"] / r["latency_s"] for r in gemm), default=1e9)
    streamed, copied, sent = memory_rate(memory), host_rate(copies), wire_rate(wires)
    rate = streamed or UNKNOWN_RATE
    ranks = int(about.get("num_gpus", 0)) or max(1, int(about["cores"]) // int(about["threads_per_rank"]))
    here = f"{MEASURED_HERE}: "

    def fact(value: float, unit: str, source: str, basis: ConstantBasis = "measured") -> dict[str, Any]:
        return {"value": float(value), "unit": unit, "basis": basis, "source": source}

    def measured(value: float | None, source: str) -> dict[str, Any]:
        if value is None:
            why = "not measured: no size is bound by bandwidth; the memory's, in its place"
            return fact(rate, "B/s", why, "assumed")
        return fact(value, "B/s", f"{here}the largest size bound by bandwidth of {source}")

    peak = fact(flops, "FLOP/s", here + "the fastest row of table gemm")
    return {
        "schema_version": 1,
        "name": slug(str(about["device_string"])),
        "device_string": str(about["device_string"]),
        "kind": kind,
        "peak_flop_per_s": {dtype: peak for dtype in ("bf16", "fp32")},
        "memory_bytes_per_s": measured(streamed, "the element-wise kernels in table memory_ops"),
        "memory_bytes": fact(int(about["memory_bytes"]), "B", "what the system reports; all ranks of a host share it"),
        "nvlink_bytes_per_s": measured(sent, "the all-gathers between processes of the host"),
        "gpus_per_node": fact(ranks, "GPUs", "ranks of this host: cores over threads of a rank, or its GPUs"),
        "nvlink_domain_gpus": fact(ranks, "GPUs", "the host"),
        "inter_node_bytes_per_s_per_node": fact(
            sent or rate, "B/s", "no network was measured: as inside the host", "assumed"
        ),
        "pcie_bytes_per_s": measured(copied, "the copies from host memory in table copy"),
        "inter_node_latency_s": fact(1e-4, "s", "no network was measured: a round figure of kernel TCP", "assumed"),
        "power_w": fact(about.get("power_limit_w") or 1.0, "W", "the driver's limit; 1 where there is no meter"),
    }
