"""What measured numbers belong to: the device, its clocks and driver, the versions of libraries, the load beside us."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from profiles.errors import InputError


def describe(device: torch.device, threads: int) -> dict[str, Any]:
    """Facts of the device and the software, plain values."""
    shared = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "threads_per_rank": threads,
    }
    return {**shared, **(_gpu(device) if device.type == "cuda" else _cpu())}


def _cpu() -> dict[str, Any]:
    text = _read("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", text)
    clocks = [float(x) for x in re.findall(r"cpu MHz\s*:\s*([\d.]+)", text)]
    return {
        "device_string": names[0].strip() if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "driver": "none",
        "clock_mhz": max(clocks) if clocks else 0.0,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _gpu(device: torch.device) -> dict[str, Any]:
    found = torch.cuda.get_device_properties(device)
    return {
        "device_string": found.name,
        "cores": found.multi_processor_count,
        "driver": _smi("driver_version"),
        "clock_mhz": _number(_smi("clocks.sm")),
        "clock_limit_mhz": _number(_smi("clocks.max.sm")),
        "power_limit_w": _number(_smi("power.limit")),
        "cuda": str(torch.version.cuda),
        "capability": f"sm_{found.major}{found.minor}",
        "memory_bytes": int(found.total_memory),
        "num_gpus": torch.cuda.device_count(),
    }


def conditions(device: torch.device) -> dict[str, float]:
    """What may disturb a measurement right now: load average, and the GPU's clock, power and temperature."""
    load = {"load_1min": os.getloadavg()[0]}
    if device.type != "cuda":
        return load
    names = {"clock_mhz": "clocks.sm", "power_w": "power.draw", "temperature_c": "temperature.gpu"}
    return {**load, **{name: _number(_smi(field)) for name, field in names.items()}}


def _smi(field: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.splitlines()[0].strip() if done.stdout else "unknown"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def pick_device(name: str) -> torch.device:
    """``cpu``, ``cuda``, or ``auto`` for a GPU where there is one; ``InputError`` for a GPU where there is none."""
    gpu = torch.cuda.is_available()
    if name == "cuda" and not gpu:
        raise InputError("torch finds no CUDA GPU here; --device cpu measures this CPU")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and gpu) else "cpu")


def num_ranks(device: torch.device, threads: int) -> int:
    """Ranks that the machine holds: its GPUs, or its cores over the threads of a rank."""
    if device.type == "cuda":
        return int(torch.cuda.device_count())
    return max(1, int(_cpu()["cores"]) // threads)


def use_threads(threads: int) -> None:
    """Let this process compute with as many threads as a measured rank did."""
    torch.set_num_threads(threads)
