"""Protects the matrix products of a layer: their sizes hold every weight, and what a sustained rate, adapters and FP8
add.
"""

from dataclasses import replace

import numpy as np
import pytest

from profiles.errors import NoBasisError
from profiles.models.catalogue import load_model
from simulator.cost import gemms
from simulator.facts import Facts
from tests.builders import make_facts

LLAMA = load_model("llama-2-7b")


ONE = np.asarray([1], dtype=np.int64)


def built(facts: Facts, **how: object) -> Facts:
    """The same job with its trainer built in another way."""
    return replace(facts, implementation=replace(facts.implementation, **how))


def test_long_dense_work_is_held_to_the_sustained_rate_and_short_work_is_not() -> None:
    facts = make_facts()
    n, k = np.asarray([8192.0]), np.asarray([8192.0])
    for rows in (1.0, 64.0, 16384.0):
        table = facts.device.gemm(rows, n, k).s[0]
        floor = 2 * rows * 8192**2 / facts.device.spec.sustained("bf16")
        short, long = (gemms.run_gemms(facts, np.asarray([rows]), [(n, k)], "bf16", how).s[0] for how in (False, True))
        assert short == pytest.approx(table)
        assert long == pytest.approx(max(table, floor))


def test_backward_gemms_are_the_two_transposed_ones() -> None:
    facts = make_facts()
    n, k, rows = np.asarray([11008.0]), np.asarray([4096.0]), np.asarray([1000.0])
    inputs, into_weights = gemms.run_gemms_backward(facts, rows, [(n, k)])
    assert inputs.s == pytest.approx(gemms.run_gemms(facts, rows, [(k, n)], "bf16", sustained=True).s)
    assert into_weights.s == pytest.approx(gemms.run_gemms(facts, n, [(k, rows)], "bf16", sustained=True).s)


def test_adapters_have_no_weight_gradients_of_the_base_and_their_own_traffic() -> None:
    """Forward: read the input (k), write the adapter's output, read it and the base's, write the sum (4 n)."""
    facts, rows = make_facts(device="h100-80gb-sxm", training="megatron-core@0.16"), np.asarray([8192.0])
    products = [(np.asarray([6144.0]), np.asarray([4096.0])), (np.asarray([4096.0]), np.asarray([14336.0]))]
    parts = ("qkv", "down")
    whole = gemms.linear_training(facts, rows, products, parts, "bf16", sustained=True)
    lora = gemms.linear_training(built(facts, lora_rank=16), rows, products, parts, "bf16", sustained=True)
    n, k = 6144 + 4096, 4096 + 14336
    forward = facts.device.memory_bound(8192 * (k + 4 * n) * 2.0, 6)
    backward = facts.device.memory_bound(8192 * (5 * k + 2 * n) * 2.0, 12)
    assert whole[2].s[0] > 0
    assert lora[2].s.tolist() == [0.0]
    assert lora[0].s[0] - whole[0].s[0] == pytest.approx(float(forward.s))
    assert lora[1].s[0] - whole[1].s[0] == pytest.approx(float(backward.s))


def test_adapters_are_on_the_named_linears_and_read_the_input_once_for_each_layer() -> None:
    facts = make_facts(device="h100-80gb-sxm", training="megatron-core@0.16")
    apart = replace(facts, training=replace(facts.training, fused_projections=False, adapter_ratio=3.0))
    rows, products = np.asarray([8192.0]), [(np.asarray([6144.0]), np.asarray([4096.0]))] * 2

    def there(facts: Facts, *targets: str) -> float:
        some = built(facts, lora_rank=16, lora_targets=targets)
        return float(gemms.adapter_passes(some, rows, products, ("qkv", "down"), launches=0)[0].s[0])

    assert there(facts) == there(facts, "output") == 0.0
    assert there(facts, "qkv", "down") == pytest.approx(2 * there(facts, "qkv"))
    separate = 3.0 * float(facts.device.memory_bound(8192 * (3 * 4096 + 4 * 6144) * 2.0, 0).s)
    assert there(apart, "qkv") == pytest.approx(separate)


def test_fp8_pays_for_quantising_its_operands() -> None:
    """Read bf16, write FP8 twice (once transposed): 4 bytes per element of activations, then of gradients."""
    facts, rows = make_facts(device="h100-80gb-sxm", training="megatron-core@0.16"), np.asarray([8192.0])
    products = [(np.asarray([6144.0]), np.asarray([4096.0])), (np.asarray([4096.0]), np.asarray([14336.0]))]
    forward, inputs, weights = gemms.linear_training(facts, rows, products, ("qkv", "down"), "fp8", sustained=True)
    bare = gemms.run_gemms(facts, rows, products, "fp8", sustained=True)
    bare_inputs, bare_weights = gemms.run_gemms_backward(facts, rows, products, "fp8")
    operands = 8192 * (4096 + 14336)
    assert forward.s[0] - bare.s[0] == pytest.approx(float(facts.device.memory_bound(4.0 * operands, 2).s))
    gradients = 4.0 * 8192 * (6144 + 4096)
    assert inputs.s[0] - bare_inputs.s[0] == pytest.approx(float(facts.device.memory_bound(gradients, 2).s))
    assert weights.s == pytest.approx(bare_weights.s)
    plain = gemms.linear_training(facts, rows, products, ("qkv", "down"), "bf16", sustained=True)
    assert sum(x.s[0] for x in (forward, inputs, weights)) < sum(x.s[0] for x in plain), "large GEMMs still gain"


@pytest.mark.parametrize("device", ["h100-80gb-sxm", "h200-sxm", "b200-sxm", "gb200"])
def test_a_product_in_fp8_is_never_slower_than_block_scaled_or_in_bf16(device: str) -> None:
    """Quantisation is priced by itself, so a table's 70 us for a product that takes 20 are an inference engine's."""
    facts = make_facts(device=device, training="megatron-core@0.16")
    sizes = [(8192, 1536, 2048), (8192, 2048, 768), (2048, 1536, 2048), (16384, 8192, 8192), (4096, 28672, 4096)]
    m, n, k = (np.asarray(column, dtype=np.float64) for column in zip(*sizes, strict=True))
    times = {dtype: facts.device.gemm(m, n, k, dtype).s for dtype in ("fp8", "fp8_block", "bf16")}
    found = gemms.run_gemms(facts, m, [(n, k)], "fp8", sustained=True).s
    rate = 2.0 * m * n * k / facts.device.spec.sustained("fp8")
    assert found == pytest.approx(np.maximum(np.minimum.reduce(list(times.values())), rate))


PRODUCT = [(np.asarray([8192.0]), np.asarray([8192.0]))]
ROWS = np.asarray([16384.0])


def trained_s(device: str, dtype: str) -> float:
    """Seconds of a large trained product, forward and backward, with its quantisation."""
    facts = make_facts(device=device, training="megatron-bridge@0.5")
    return float(
        sum(part.s[0] for part in gemms.linear_training(facts, ROWS, PRODUCT, ("down",), dtype, sustained=True))
    )


@pytest.mark.parametrize("device", ["b200-sxm", "gb200", "b300-sxm", "gb300"])
def test_narrower_operands_train_faster_where_tensor_cores_have_them(device: str) -> None:
    """Also with what quantising costs, and never by more than the peaks say."""
    bf16, fp8, mxfp8, nvfp4 = (trained_s(device, dtype) for dtype in ("bf16", "fp8", "fp8_block", "nvfp4"))
    assert mxfp8 == pytest.approx(fp8)
    assert nvfp4 < fp8 < bf16
    assert bf16 / 2 < fp8 and bf16 / 4 < nvfp4


def test_block_scales_gain_less_on_hopper_which_applies_them_outside_its_tensor_cores() -> None:
    bf16, fp8, block = (trained_s("h100-80gb-sxm", dtype) for dtype in ("bf16", "fp8", "fp8_block"))
    assert fp8 < block < bf16


def test_a_format_that_the_device_lacks_has_no_price() -> None:
    with pytest.raises(NoBasisError, match="nvfp4"):
        trained_s("h100-80gb-sxm", "nvfp4")
