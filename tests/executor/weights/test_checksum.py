"""Protects the comparison of weights: its sums do not depend on how it cuts a tensor, and it needs little memory."""

import zlib

import pytest
import torch

from executor import checks
from executor.checks import bit_sums
from executor.weights.checksum import box_sum
from executor.weights.memory_meter import MemoryMeter


@pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 4, 5)])
def test_pieces_do_not_change_sums(shape, monkeypatch):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    box = tuple((1, n + 1) for n in shape)
    whole_shape = tuple(n + 2 for n in shape)
    found = []
    for elements in (1, 3, 11, 1000):
        monkeypatch.setattr(checks, "SCRATCH_BYTES", 32 * elements)
        found.append((int(box_sum(weight, box, whole_shape, "w")), int(bit_sums({"w": weight})[0])))
    assert len(set(found)) == 1
    bits = weight.view(torch.int32).long()
    place = torch.arange(torch.Size(whole_shape).numel()).view(whole_shape)[tuple(slice(a, b) for a, b in box)]
    expected = (bits * (2 * place + 1) * (2 * zlib.crc32(b"w") + 1)).sum()
    assert found[0] == (int(expected), int(bits.sum()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_comparison_takes_no_more_scratch_than_it_says(dtype, monkeypatch):
    """A transposed view of 32 MB, which would be copied whole; the scratch is 64 MiB for any model."""
    monkeypatch.setattr(checks, "SCRATCH_BYTES", 1 << 20)
    weight = torch.zeros(2000, 4000, dtype=dtype).t()
    for check in (lambda: box_sum(weight, ((0, 4000), (0, 2000)), (4000, 2000), "w"), lambda: bit_sums({"w": weight})):
        with MemoryMeter() as meter:
            check()
        assert meter.peak_bytes - weight.untyped_storage().nbytes() <= 1 << 20
