"""Protects the shipped GEMM tables against rows that hold something else than the GEMM.

A host floor, a quantisation or a hiccup shows against neighbours: a format with half the bytes, the part before, the
peak of the part. What does not pass is listed here with its share and its reason, so that a worse import fails.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from profiles.lookup.table import read_card, read_table
from profiles.records import Floats
from profiles.store import DATA, load_device

COMPUTE_BOUND_S = 30e-6
"""At the bf16 peak; smaller GEMMs wait for launches and memory, where a narrower format gains nothing."""
NARROWEST = 1024
"""Below this width tiles of FP8 kernels are half empty."""
PARTS = ("a100-80gb-sxm", "h100-80gb-sxm", "h200-sxm", "b200-sxm", "gb200", "b300-sxm", "gb300", "l40s", "rtx-pro-6000")

# Share of compute-bound rows that may take more than 1.1 times the bf16 row of the same sizes.
SLOWER_THAN_BF16 = {"fp8": 0.001, "nvfp4": 0.001, "fp8_block": 0.003}
KNOWN = {
    ("h100-80gb-sxm", "fp8_block"): (
        0.06,
        "scales of 128 x 128 blocks cost Hopper's kernel more than it wins at small k",
    ),
    ("h200-sxm", "fp8_block"): (0.06, "as the H100's"),
    ("l40s", "fp8_block"): (
        0.37,
        "Ada has no kernel for block scales; this one multiplies scales between small products",
    ),
    ("rtx-pro-6000", "fp8_block"): (0.17, "as the L40S's, on a part that has FP8 with scales of its own"),
    ("rtx-pro-6000", "nvfp4"): (0.007, "small k"),
}
# Share of rows that may take more than 1.25 times those of the part before; no single row takes twice as long.
PREDECESSORS = [
    ("h100-80gb-sxm", "a100-80gb-sxm"),
    ("h200-sxm", "h100-80gb-sxm"),
    ("b200-sxm", "h200-sxm"),
    ("gb200", "b200-sxm"),
    ("b300-sxm", "b200-sxm"),
    ("gb300", "gb200"),
]
SLOWER_THAN_BEFORE = {"bf16": 0.005, "fp8": 0.02, "fp8_block": 0.05, "nvfp4": 0.005}


@dataclass(frozen=True)
class Rows:
    """One dtype of a table: sizes and seconds, and a whole number for each triple of sizes, sorted."""

    m: Floats
    n: Floats
    k: Floats
    seconds: Floats
    code: NDArray[np.int64]

    @property
    def flop(self) -> Floats:
        return 2.0 * self.m * self.n * self.k


@cache
def gemm(name: str, table: str = "gemm") -> dict[str, Rows]:
    read = read_table(DATA / name / f"{table}.parquet", read_card(DATA / name / f"{table}.yaml"))
    found = {}
    for (dtype,), rows in read.split("dtype").items():
        m, n, k, seconds = read.columns(rows, "m", "n", "k", "latency_s")
        found[str(dtype)] = Rows(m, n, k, seconds, (m * 2**40 + n * 2**20 + k).astype(np.int64))
    return found


def shared(one: Rows, other: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where both have the same sizes."""
    _, mine, theirs = np.intersect1d(one.code, other.code, return_indices=True)
    return mine, theirs


@pytest.mark.parametrize("name", PARTS[1:])
def test_narrow_formats_are_no_slower_than_bf16(name: str) -> None:
    rows, peak = gemm(name), load_device(name).spec.peak("bf16")
    wide = rows["bf16"]
    for dtype in set(rows) - {"bf16"}:
        mine, theirs = shared(rows[dtype], wide)
        large = (wide.flop[theirs] / peak > COMPUTE_BOUND_S) & (np.minimum(wide.n, wide.k)[theirs] >= NARROWEST)
        ratios = (rows[dtype].seconds[mine] / wide.seconds[theirs])[large]
        allowed, _ = KNOWN.get((name, dtype), (SLOWER_THAN_BF16[dtype], ""))
        assert np.mean(ratios > 1.1) <= allowed, dtype
        assert len(ratios) > 1000 and np.median(ratios) < 1.05, dtype


@pytest.mark.parametrize(("name", "before"), PREDECESSORS)
def test_a_newer_part_is_no_slower(name: str, before: str) -> None:
    new, old = gemm(name), gemm(before)
    for dtype in set(new) & set(old):
        mine, theirs = shared(new[dtype], old[dtype])
        ratios = new[dtype].seconds[mine] / old[dtype].seconds[theirs]
        assert np.mean(ratios > 1.25) <= SLOWER_THAN_BEFORE[dtype], dtype
        assert ratios.max() < 2.0 and np.median(ratios) < 1.0, dtype


@pytest.mark.parametrize("name", PARTS)
def test_no_table_has_a_floor_or_beats_the_peak(name: str) -> None:
    """A small GEMM is a launch and little more: 15 us hold it with room, 60 or 150 us were a host's floor."""
    spec = load_device(name).spec
    for table in sorted(path.stem for path in (DATA / name).glob("gemm*.parquet")):
        for dtype, rows in gemm(name, table).items():
            small = (rows.m <= 16) & (rows.n <= 1024) & (rows.k <= 1024)
            assert rows.seconds[small].max() < 15e-6, (table, dtype)
            assert (rows.flop / rows.seconds).max() <= spec.peak(dtype), (table, dtype)


def test_a_rack_part_reaches_what_its_board_part_does() -> None:
    """GB200's bf16 rows once ended at 0.99 PFLOP/s where B200's reach twice that."""
    best = {name: float((gemm(name)["bf16"].flop / gemm(name)["bf16"].seconds).max()) for name in PARTS}
    assert best["gb200"] >= best["b200-sxm"] and best["gb300"] >= best["b300-sxm"]


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_a_group_of_eight_keeps_most_of_what_a_pair_reaches(name: str, kind: str) -> None:
    """Per GPU, of a GiB: no switch nor PCIe's roots divide by more than two, a server without peer access by 16."""
    device, num_bytes = load_device(name), float(1 << 30)
    pair, eight = ((g - 1) / g * num_bytes / float(device.collective(kind, num_bytes, g).s) for g in (2, 8))
    assert eight > 0.5 * pair
    assert eight > 0.25 * device.spec.nvlink_bytes_per_s
