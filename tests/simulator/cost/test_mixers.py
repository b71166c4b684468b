"""Protects attention in the trainer: it grows with the square of the length, and an older kernel has its own rate."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from simulator.cost import compute, gemm_sizes, gemms, mixers
from simulator.cost.compute import Batch
from simulator.facts import AttentionKernel, Implementation
from tests.builders import make_facts

ONE = np.asarray([1], dtype=np.int64)


LLAMA = load_model("llama-2-7b")


def batch(tokens: float = 4096.0, length: float = 1024.0) -> Batch:
    return Batch(np.asarray([tokens]), np.asarray([tokens / length]), np.asarray([length]))


def test_attention_grows_with_the_square_of_the_length() -> None:
    facts = make_facts()
    short, long = (mixers.attention_forward(facts, LLAMA, batch(32768.0, s), ONE, ONE).s[0] for s in (2048.0, 16384.0))
    assert 5 < long / short < 10  # equal tokens: 8 times the work
    halves = mixers.attention_forward(facts, LLAMA, batch(), ONE, 2 * ONE).s
    assert halves * 2 == pytest.approx(mixers.attention_forward(facts, LLAMA, batch(), ONE, ONE).s)


def attention(device: str, kernel: AttentionKernel, length: float) -> tuple[float, float]:
    """Attention of one layer, forward and backward: what is left of it without its linear and small parts."""
    facts = replace(make_facts(device=device), implementation=Implementation(attention_kernel=kernel))
    tokens = np.asarray([16384.0])
    layer = compute.dense_layer(facts, LLAMA, batch(16384.0, length), ONE, ONE)
    products = gemm_sizes.attention_gemms(LLAMA, ONE) + gemm_sizes.mlp_gemms(LLAMA, np.asarray([11008.0]))
    linear, _, _ = gemms.linear_training(facts, tokens, products, ("",) * len(products), "bf16", sustained=True)
    small = compute.elementwise(facts, LLAMA, tokens, ONE)
    forward = layer.forward.s[0] - linear.s[0] - small.s[0]
    return float(forward), float(layer.backward_other.s[0] - 2 * small.s[0])


RATES = {
    "h100-80gb-sxm": (370e12, 310e12),
    "h200-sxm": (370e12, 310e12),
    "b200-sxm": (390e12, 325e12),
    "gb200": (390e12, 325e12),
}


@pytest.mark.parametrize(("device", "rates"), RATES.items())
def test_flash_2_takes_the_longer_of_the_table_and_its_own_rate(device: str, rates: tuple[float, float]) -> None:
    """Causal attention of 16384 tokens: 2 x tokens x length x width FLOPs forward, 2.5 times that backward."""
    for length in (256.0, 16384.0):
        flop = 2 * 16384 * length * LLAMA.q_width
        at_rate = (flop / rates[0], 2.5 * flop / rates[1])
        newest, flash_2 = attention(device, "newest", length), attention(device, "flash-2", length)
        assert flash_2 == pytest.approx([max(table, rate) for table, rate in zip(newest, at_rate, strict=True)])
        assert (flash_2[0] > 1.2 * newest[0]) is (length > 8192), "short sequences are slower than any rate"


def test_flash_2_changes_nothing_where_the_tables_hold_it() -> None:
    assert attention("a100-80gb-sxm", "flash-2", 16384.0) == attention("a100-80gb-sxm", "newest", 16384.0)


def test_blackwell_gains_little_from_an_older_kernel() -> None:
    """Its own rate, not the H100's: more SMs, the A100's instructions."""
    hopper, blackwell = (attention(d, "flash-2", 16384.0)[0] for d in ("h100-80gb-sxm", "b200-sxm"))
    assert hopper / blackwell == pytest.approx(390 / 370)


def test_attention_in_tensor_operations_by_hand() -> None:
    """Every score of the square, masked or not: bytes of the operations beside products, and what products take."""
    device = "a100-80gb-sxm"
    spec = make_facts(device=device).device.spec
    scores = 16384.0 * 2048.0 * LLAMA.num_heads
    product = max(2 * scores / (0.8 * spec.memory_bytes_per_s), 2 * scores * LLAMA.head_dim / spec.sustained("bf16"))
    operations = 20 * scores / (0.8 * spec.memory_bytes_per_s)
    there, back = attention(device, "math", 2048.0)
    assert there == pytest.approx(operations + 2 * product, rel=1e-3)
    assert back == pytest.approx(operations + 4 * product, rel=1e-3)
    flash = attention(device, "newest", 2048.0)
    assert there > 3 * flash[0]
    assert back > 2 * flash[1]
