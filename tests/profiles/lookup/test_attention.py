"""Protects attention prices, softmax and latent: achieved bandwidth and efficiency of the measured kernels, the ragged
hulls, absent head counts, and the difference between an MLA kernel and an MLA module.
"""

import numpy as np
import pytest

from profiles.device import DeviceProfile
from profiles.errors import InputError, NoBasisError
from profiles.lookup.attention import decode_floor
from profiles.lookup.grid import build_grid
from profiles.lookup.mla import mla_projection_weights
from profiles.records import Basis
from profiles.store import device_names, load_device


@pytest.fixture(scope="module")
def h100() -> DeviceProfile:
    return load_device("h100-80gb-sxm")


def kv_bytes(batch: float, context: float, kv_heads: int, head_dim: int = 128) -> float:
    return 2 * 2 * batch * context * kv_heads * head_dim


def test_decode_plateaus_at_93_percent_of_bandwidth(h100: DeviceProfile) -> None:
    for batch, context in [(128, 4096), (64, 8192), (16, 32768)]:
        rate = kv_bytes(batch, context, 8) / float(h100.attention_decode(batch, context, 32, 8, 128).s)
        assert rate == pytest.approx(3.1e12, rel=0.03)


def test_decode_holds_the_bandwidth_beyond_its_hull(h100: DeviceProfile) -> None:
    """The table of 32/8 heads ends at batch 128 for 4k tokens."""
    price = h100.attention_decode([256, 1024, 4096], 4096, 32, 8, 128)
    np.testing.assert_allclose(kv_bytes(np.array([256, 1024, 4096]), 4096, 8) / price.s, 3.1e12, rtol=0.05)
    assert (price.weakest == Basis.ANALYTIC).all()


def test_decode_of_small_caches_costs_a_launch_and_can_run_from_cache(h100: DeviceProfile) -> None:
    assert 9e-6 < float(h100.attention_decode(1, 512, 32, 8, 128).s) < 15e-6
    # Below 30-50 MB the cache holds the KV: the step must survive the interpolation.
    below, above = (float(h100.attention_decode(b, 2048, 32, 8, 128).s) for b in (4, 8))
    assert above / below > 2.0


def test_decode_extrapolates_in_batch(h100: DeviceProfile) -> None:
    """Without the cost per sequence and KV head the held ratio is 30 % short at batch 128 and beyond."""
    table = h100.tables._table("attention_decode", "")  # noqa: SLF001
    keys = table.split("kv_dtype", "head_dim", "heads", "kv_heads")
    errors = []
    for key in [("bf16", 128, 32, 8), ("bf16", 128, 8, 1), ("bf16", 128, 16, 2), ("bf16", 128, 40, 8)]:
        batch, context, latency = table.columns(keys[key], "batch", "context", "latency_s")
        floor = decode_floor(h100.spec, batch, context, key[3], 128, "bf16")
        out = batch >= 128
        ratio, _ = build_grid((batch[~out], context[~out]), (latency / floor)[~out], (0, 1)).at(
            batch[out], context[out]
        )
        errors.append(ratio * floor[out] / latency[out] - 1)
    assert np.median(np.abs(np.concatenate(errors))) < 0.12


def test_fp8_cache_halves_the_bytes(h100: DeviceProfile) -> None:
    sixteen, eight = (float(h100.attention_decode(128, 4096, 32, 8, 128, d).s) for d in ("bf16", "fp8"))
    assert 0.4 < eight / sixteen < 0.75
    with pytest.raises(NoBasisError, match="fp8 KV cache"):
        load_device("a100-80gb-sxm").attention_decode(1, 128, 8, 1, 128, "fp8")


@pytest.mark.parametrize(
    ("seq", "low", "high"), [(1024, 180, 300), (2048, 330, 450), (4096, 450, 580), (16384, 600, 720)]
)
def test_prefill_efficiency_grows_with_sequence_length(h100: DeviceProfile, seq: int, low: int, high: int) -> None:
    """Packed short sequences must be looked up at their own length, not at the length of the pack."""
    flop = 2 * seq**2 * 32 * 128
    assert low < flop / float(h100.attention_prefill(1, seq, 32, 8, 128).s) / 1e12 < high


def test_prefill_grows_with_the_square_beyond_its_hull(h100: DeviceProfile) -> None:
    price = h100.attention_prefill(1, [65536, 131072], 32, 8, 128)
    assert price.s[1] / price.s[0] == pytest.approx(4.0, rel=0.02)
    assert (price.weakest == Basis.ANALYTIC).all()
    price = h100.attention_prefill([2560, 5120], 1024, 32, 8, 128)
    assert price.s[1] / price.s[0] == pytest.approx(2.0, rel=0.05)


def test_absent_heads_take_the_nearest_pair(h100: DeviceProfile) -> None:
    """7/1 and 14/2 heads (28-head models) were not measured: decode costs the KV bytes, prefill the query heads."""
    absent, near = (h100.attention_decode(64, 4096, heads, 1, 128) for heads in (7, 8))
    assert absent.s == pytest.approx(float(near.s), rel=0.02)
    assert absent.weakest == Basis.ANALYTIC and near.weakest == Basis.MEASURED
    absent, near = (h100.attention_prefill(4, 4096, heads, 1, 128) for heads in (7, 8))
    assert absent.s / near.s == pytest.approx(7 / 8, rel=0.05)


def test_absent_kv_heads_are_the_same_work_in_a_larger_batch(h100: DeviceProfile) -> None:
    """32/32 heads at batch 8 read what 8/8 heads read at batch 32."""
    absent, same = h100.attention_decode(8, 2048, 32, 32, 128), h100.attention_decode(32, 2048, 8, 8, 128)
    assert absent.s == pytest.approx(float(same.s), rel=1e-6)
    assert absent.weakest == Basis.ANALYTIC and same.weakest == Basis.MEASURED


def test_absent_head_dim_takes_the_nearest(h100: DeviceProfile) -> None:
    price = h100.attention_prefill(4, 4096, 32, 8, 112)
    assert price.weakest == Basis.ANALYTIC
    assert price.s / h100.attention_prefill(4, 4096, 32, 8, 128).s == pytest.approx(112 / 128, rel=0.05)


def test_heads_may_differ_per_element(h100: DeviceProfile) -> None:
    heads, kv_heads = np.array([32, 8, 7]), np.array([8, 1, 1])
    together = h100.attention_decode([1, 16, 64], 1000, heads, kv_heads, 128)
    for i, batch in enumerate((1, 16, 64)):
        alone = h100.attention_decode(batch, 1000, int(heads[i]), int(kv_heads[i]), 128)
        assert together[i].s == alone.s and together[i].weakest == alone.weakest


@pytest.mark.parametrize("heads", [0, -1, 2.5])
def test_impossible_heads_are_refused(h100: DeviceProfile, heads: float) -> None:
    with pytest.raises(InputError, match="heads is"):
        h100.attention_prefill(1, 128, heads, 1, 128)


def test_nothing_to_attend_takes_no_time(h100: DeviceProfile) -> None:
    assert h100.attention_prefill([0, 4], [128, 0], 8, 1, 128).s.tolist() == [0.0, 0.0]
    assert h100.attention_decode(0, 128, 8, 1, 128).s == 0.0
    assert h100.mla_decode(0, 128, 16).s == 0.0


@pytest.mark.parametrize("name", device_names())
def test_mla_module_holds_the_projections_and_the_kernel_does_not(name: str) -> None:
    """At 131,072 tokens in short sequences a module spends most time in projections; a kernel cannot."""
    profile = load_device(name)
    price = float(profile.mla_prefill(128, 1024, 128).s)
    projections = 2 * 131072 * float(mla_projection_weights(128)) / profile.spec.peak("bf16")
    attention = 128 * 1024**2 * 128 * 320 / profile.spec.peak("bf16")
    if profile.mla_covers_projections:
        assert price > projections + attention
    else:
        assert attention < price < projections + attention


def test_mla_projection_weights_are_those_of_deepseek_v3() -> None:
    q, kv = 7168 * 1536 + 1536 * 128 * 192, 7168 * 576 + 512 * 128 * 256
    assert mla_projection_weights(128) == q + kv + 128 * 128 * 7168


def test_mla_beyond_the_table(h100: DeviceProfile) -> None:
    assert h100.mla_prefill(4, 2048, 16).weakest == Basis.MEASURED
    assert h100.mla_prefill(4, 2048, 24).weakest == Basis.ANALYTIC
    price = h100.mla_decode([4096, 8192], 16384, 16)
    assert price.s[1] / price.s[0] == pytest.approx(2.0, rel=0.05)
    blockwise = h100.mla_decode(1, 1024, 128, "fp8_block")
    assert blockwise.s < h100.mla_decode(1, 1024, 128).s
    with pytest.raises(NoBasisError, match="fp8 projections"):
        h100.mla_decode(1, 1024, 128, "fp8")


@pytest.mark.parametrize("name", ["h100-80gb-sxm", "h200-sxm", "b200-sxm", "gb300"])
def test_heads_of_512_have_rows_of_their_own(name: str) -> None:
    """Gemma-4's layers without a window: a prompt is no multiple of one with heads of 256, which stood in before."""
    wide, narrow = (load_device(name).attention_prefill(2, 4096, 4, 1, head_dim) for head_dim in (512, 256))
    assert wide.weakest.item() == Basis.MEASURED
    assert wide.s.item() > 2.2 * narrow.s.item()
