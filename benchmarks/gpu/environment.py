"""What a node has: packages, GPUs, how they are joined, and room on its disk."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

MISSING = 2
"""Exit status where nothing can be done."""
NEEDED = {"numpy": "numpy", "torch": "torch", "tensordict": "tensordict", "safetensors": "safetensors", "ray": "ray"}
OPTIONAL = {
    "megatron": "megatron-core",
    "vllm": "vllm",
    "transformer_engine": "transformer-engine",
    "flash_attn": "flash-attn",
}
"""Packages by the module that is imported; without an optional one its engine is not smoke-tested."""
LEAST_FREE_BYTES = 20 << 30


def check(options: argparse.Namespace) -> int:
    """Write ``environment.json``; 2 where a needed package, or a GPU that was asked for, is missing."""
    missing = absent(NEEDED)
    if missing:
        print(f"error: every step needs {', '.join(missing)}: pip install 'hybridmap[run]'", file=sys.stderr)
        return MISSING
    import torch

    count = torch.cuda.device_count() if options.device == "cuda" else options.cpu_ranks
    if not count:
        print("error: torch finds no CUDA GPU here; --device cpu rehearses on this CPU", file=sys.stderr)
        return MISSING
    found = {
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "cores": os.cpu_count(),
        "packages": _versions({**NEEDED, **OPTIONAL}),
        "absent": absent(OPTIONAL),
        "device": options.device,
        "num_devices": count,
        "gpus": _gpus(count) if options.device == "cuda" else [],
        "topology": _said("nvidia-smi", "topo", "-m"),
        "load_1min": os.getloadavg()[0],
        "doubts": _doubts(options, count),
    }
    (options.out / "environment.json").write_text(json.dumps(found, indent=1) + "\n")
    for doubt in found["doubts"]:
        print(f"note: {doubt}")
    return 0


def absent(names: dict[str, str]) -> list[str]:
    """Packages that cannot be imported here."""
    return [package for module, package in names.items() if importlib.util.find_spec(module) is None]


def _versions(packages: Mapping[str, str]) -> dict[str, str | None]:
    """Version of each package, by whichever distribution brings its module: vLLM for CPUs has a name of its own."""
    brought = importlib.metadata.packages_distributions()
    found = {name: sorted(brought.get(module, ())) for module, name in packages.items()}
    return {name: importlib.metadata.version(by[0]) if by else None for name, by in found.items()}


def _gpus(count: int) -> list[dict[str, Any]]:
    """Name, memory and what others hold of it, by GPU; whether GPU 0 reads the others' memory."""
    import torch

    found = []
    for i in range(count):
        free, total = torch.cuda.mem_get_info(i)
        peer = i == 0 or torch.cuda.can_device_access_peer(0, i)
        name = torch.cuda.get_device_properties(i).name
        found.append({"name": name, "total_bytes": total, "free_bytes": free, "peer_of_first": peer})
    return found


def _doubts(options: argparse.Namespace, count: int) -> list[str]:
    """What may spoil a measurement here, in words."""
    found = []
    if shutil.disk_usage(options.out).free < LEAST_FREE_BYTES:
        found.append(f"less than {LEAST_FREE_BYTES >> 30} GiB are free where {options.out} lies")
    if os.getloadavg()[0] > 0.25 * (os.cpu_count() or 1):
        found.append(f"others work here: load average {os.getloadavg()[0]:.1f}")
    if options.device == "cuda":
        busy = [i for i, gpu in enumerate(_gpus(count)) if gpu["free_bytes"] < 0.95 * gpu["total_bytes"]]
        found += [f"GPU {i}: others hold more than 5 % of its memory" for i in busy]
    if count < 2:
        found.append("one device: roles cannot be apart, so one placement runs")
    return found


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
