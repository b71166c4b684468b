"""Units and the only conversions between them. A quantity's name carries its unit: ``_s``, ``_bytes``, ``_flop``."""

from __future__ import annotations

MIB = 1024**2
GIB = 1024**3

US_PER_S = 1_000_000
MS_PER_S = 1_000

# Four-bit formats count their scales: 16 weights share one of 8 bits (nvfp4), 32 one of 8 (mxfp4) or 16 bits (int4).
DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 0.5 + 1.0 / 16.0,
    "mxfp4": 0.5 + 1.0 / 32.0,
    "mxfp4_mxfp8": 0.5 + 1.0 / 32.0,
    "int4": 0.5 + 2.0 / 32.0,
}


def gbit_per_s_to_bytes_per_s(gbit_per_s: float) -> float:
    """Convert network gigabits per second (decimal) to bytes per second."""
    return gbit_per_s * 1e9 / 8.0


def ms_to_s(ms: float) -> float:
    """Convert milliseconds to seconds."""
    return ms / MS_PER_S


def us_to_s(us: float) -> float:
    """Convert microseconds to seconds."""
    return us / US_PER_S
