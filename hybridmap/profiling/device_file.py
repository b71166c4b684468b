"""``device.yaml`` of a measured machine: the catalogue's card where it knows the part, else what was measured."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import yaml

from profiles.hardware import DEVICE_FILE
from profiles.store import DATA, device_names, load_device
from profiles.yaml_text import read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Row = Mapping[str, Any]

CPU_CORES_RESERVED = 0


def write_device_file(folder: Path, about: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], kind: str) -> str:
    """Write ``device.yaml``; returns the device's name."""
    known = next((n for n in device_names() if load_device(n).spec.device_string == about["device_string"]), None)
    if known is not None:
        document = read_yaml_file(DATA / known / DEVICE_FILE)
        document["name"] = f"{known}-measured"
    else:
        document = _measured_card(about, rows, kind)
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{DEVICE_FILE}.writing"
    aside.write_text(yaml.safe_dump(document, sort_keys=False, width=110), encoding="utf-8")
    os.replace(aside, folder / DEVICE_FILE)
    return str(document["name"])


def slug(text: str) -> str:
    """A device's name from what the system calls it."""
    words = re.findall(r"[a-z0-9]+", text.lower().replace("(r)", "").replace("(tm)", ""))
    return "-".join(words)[:48] or "device"


def _measured_card(about: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], kind: str) -> dict[str, Any]:
    gemm, memory, copies, wires = (rows.get(t, ()) for t in ("gemm", "memory_ops", "copy", "collective"))
    flops = max((2.0 * r["m"] * r["n"] * r["k"] / r["latency_s"] for r in gemm), default=1e9)
    stream = max((r for r in memory if r["op"] == "element_wise"), key=lambda r: r["num_bytes"], default=None)
    rate = stream["num_bytes"] / stream["latency_s"] if stream else 1e9
    host = max((r["num_bytes"] / r["latency_s"] for r in copies if r["kind"] == "host_to_device"), default=rate)
    wire = max((r["num_bytes"] / 2 / r["latency_s"] for r in wires if r["kind"] == "all_gather"), default=rate)
    ranks = int(about.get("num_gpus", 0)) or max(1, int(about["cores"]) // int(about["threads_per_rank"]))
    here = "measured here: "

    def fact(value: float, unit: str, source: str) -> dict[str, Any]:
        return {"value": float(value), "unit": unit, "source": source}

    peak = fact(flops, "FLOP/s", here + "the fastest row of table gemm")
    return {
        "schema_version": 1, "name": slug(str(about["device_string"])), "device_string": str(about["device_string"]),
        "kind": kind, "peak_flop_per_s": {dtype: peak for dtype in ("bf16", "fp32")},
        "memory_bytes_per_s": fact(rate, "B/s", here + "the largest element-wise row of table memory_ops"),
        "memory_bytes": fact(int(about["memory_bytes"]), "B", "what the system reports; all ranks of a host share it"),
        "nvlink_bytes_per_s": fact(wire, "B/s", here + "the fastest all-gather between processes of the host"),
        "gpus_per_node": fact(ranks, "GPUs", "ranks of this host: cores over threads of a rank, or its GPUs"),
        "nvlink_domain_gpus": fact(ranks, "GPUs", "the host"),
        "inter_node_bytes_per_s_per_node": fact(wire, "B/s", "no network was measured: as inside the host"),
        "pcie_bytes_per_s": fact(host, "B/s", here + "the fastest copy of table copy"),
        "inter_node_latency_s": fact(1e-4, "s", "no network was measured: a round figure of kernel TCP"),
        "power_w": fact(about.get("power_limit_w") or 1.0, "W", "the driver's limit; 1 where there is no meter"),
    }  # fmt: skip
