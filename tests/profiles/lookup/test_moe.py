"""Protects prices of routed experts: what ``num_tokens`` and ``ffn`` mean, absent keys, routing, and the exchange."""

import numpy as np
import pytest

from profiles.device import DeviceProfile
from profiles.errors import InputError, NoBasisError
from profiles.records import Basis
from profiles.store import load_device

QWEN_30B = (2048, 768, 8, 128)


@pytest.fixture(scope="module")
def h100() -> DeviceProfile:
    return load_device("h100-80gb-sxm")


def test_tokens_are_counted_before_the_split_over_ranks(h100: DeviceProfile) -> None:
    """If they were those of one rank, the price could not fall with ep; it falls, and never below a fair share."""
    price = h100.moe(16384, *QWEN_30B, tp=1, ep=[1, 2, 4, 8]).s
    assert (np.diff(price) < 0).all()
    assert price[0] / 8 < price[3] < price[0] / 2


def test_width_is_counted_before_the_split_over_ranks(h100: DeviceProfile) -> None:
    price = h100.moe(128, 4096, 1536, 8, 128, tp=[1, 2, 4]).s
    np.testing.assert_allclose(price[0] / price[1:], [2, 4], rtol=0.2)


def test_decode_streams_the_touched_experts(h100: DeviceProfile) -> None:
    every_expert = 128 * 3 * 4096 * 1536 * 2 / 3.35e12
    assert 0.7 < every_expert / float(h100.moe(128, 4096, 1536, 8, 128).s) < 1.0
    assert float(h100.moe(1, 4096, 1536, 8, 128).s) < every_expert / 8


def test_measured_interpolated_and_beyond(h100: DeviceProfile) -> None:
    price = h100.moe([1024, 1000, 163_840, 327_680], *QWEN_30B)
    measured, interpolated, analytic = Basis.MEASURED, Basis.INTERPOLATED, Basis.ANALYTIC
    assert price.weakest.tolist() == [measured, interpolated, analytic, analytic]
    assert price.s[3] / price.s[2] == pytest.approx(2.0, rel=0.05)
    assert h100.moe(0, *QWEN_30B).s == 0.0


def test_an_absent_key_takes_the_ratio_of_the_nearest(h100: DeviceProfile) -> None:
    near = h100.moe(4096, *QWEN_30B)
    absent = h100.moe(4096, 2048, 800, 8, 128)
    assert absent.weakest == Basis.ANALYTIC
    assert absent.s == pytest.approx(float(near.s), rel=0.15)
    # Tensor and expert parallel together were never measured.
    both = h100.moe(4096, *QWEN_30B, tp=2, ep=4)
    assert both.weakest == Basis.ANALYTIC
    assert h100.moe(4096, *QWEN_30B, tp=1, ep=8).s / 3 < both.s < h100.moe(4096, *QWEN_30B, tp=1, ep=2).s


def test_uneven_routing_costs_more_in_a_full_batch(h100: DeviceProfile) -> None:
    uneven, even = (h100.moe(8192, *QWEN_30B, distribution=d) for d in ("power_law_1.2", "balanced"))
    assert uneven.s > even.s
    assert uneven.weakest == even.weakest == Basis.MEASURED


def test_a_device_without_balanced_routing_uses_its_flattest(h100: DeviceProfile) -> None:
    a100 = load_device("a100-80gb-sxm")
    flattest = a100.moe(1024, *QWEN_30B, distribution="power_law_1.01")
    stand_in = a100.moe(1024, *QWEN_30B, distribution="balanced")
    assert stand_in.s == flattest.s
    assert flattest.weakest == Basis.MEASURED and stand_in.weakest == Basis.ANALYTIC


def test_what_was_not_measured_is_named(h100: DeviceProfile) -> None:
    with pytest.raises(NoBasisError, match="fp8_block"):
        load_device("a100-80gb-sxm").moe(1, *QWEN_30B, dtype="fp8_block")
    with pytest.raises(InputError, match="ep is 0"):
        h100.moe(1, *QWEN_30B, tp=1, ep=0)


def test_engines_turn_experts_in_a_format_without_products_to_16_bits() -> None:
    engine = load_device("a100-80gb-sxm").of_engine("vllm", "0.18")
    plain, narrow = (engine.moe([64, 16384], *QWEN_30B, dtype=dtype) for dtype in ("bf16", "mxfp4"))
    assert plain.s[0] / narrow.s[0] > 2.0
    assert narrow.s[1] == pytest.approx(plain.s[1], rel=0.1)


def test_exchange_moves_the_tokens_of_one_rank(h100: DeviceProfile) -> None:
    """Below 60 % and above 10 % of the link: neither bits for bytes nor microseconds for milliseconds."""
    tokens, ranks = 32768, 7 * (1 - (7 / 8) ** 8)
    sent = 2 * tokens * 7168 * 2 * ranks
    assert 0.1 < sent / float(h100.moe_all_to_all(tokens, 7168, 8, 256, 8).s) / 450e9 < 0.6
    low_latency = h100.moe_all_to_all(16, 7168, 8, 256, 8, "decode")
    assert 50e-6 < float(low_latency.s) < 250e-6
    assert low_latency.s < h100.moe_all_to_all(16, 7168, 8, 256, 8, "prefill").s


def test_exchange_beyond_the_table(h100: DeviceProfile) -> None:
    assert h100.moe_all_to_all(1024, 7168, 8, 256, 8).weakest == Basis.MEASURED
    assert h100.moe_all_to_all(1024, 2048, 8, 128, 4).weakest == Basis.ANALYTIC
    assert h100.moe_all_to_all([0, 1024], 7168, 8, 256, [8, 1]).s.tolist() == [0.0, 0.0]
    price = h100.moe_all_to_all([655_360, 1_310_720], 7168, 8, 256, 8)
    assert price.s[1] / price.s[0] == pytest.approx(2.0, rel=0.05)
    with pytest.raises(NoBasisError, match="no phase 'train'"):
        h100.moe_all_to_all(1, 7168, 8, 256, 8, "train")


def test_a_tuned_kernel_is_the_fastest_that_any_table_measured() -> None:
    """SGLang's own table of 256 experts is slower than vLLM's of the same kernel; a shape that none has stays."""
    sglang = load_device("h200-sxm").of_engine("sglang", "0.5.9")
    shape = (7168, 2048, 8, 256)
    own, tuned = (sglang.moe([4, 16, 64], *shape, tp=8, dtype="fp8_block", tuned=t) for t in (False, True))
    assert (tuned.s < 0.9 * own.s).all()
    assert (tuned.weakest >= Basis.INTERPOLATED).all(), "no release of this engine was timed so"
    absent = [sglang.moe(16, 7168, 2048, 8, 250, tp=8, dtype="fp8_block", tuned=t) for t in (False, True)]
    assert absent[0].s == absent[1].s
