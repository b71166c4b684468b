"""Protects mixture-of-experts layers: how many rows a GPU's experts see, and that experts cost what their parts do."""

import numpy as np
import pytest

from profiles.catalogue import load_model
from profiles.errors import NoBasisError
from simulator import comms, moe
from simulator.compute import Batch
from tests.builders import MOE, TINY, make_facts

SHAPE = load_model(MOE)  # 60 experts of 1408, 4 per token, shared 5632
ONE = np.asarray([1], dtype=np.int64)
TOKENS = np.asarray([4096.0])


def batch(tokens: float = 4096.0) -> Batch:
    return Batch(np.asarray([tokens]), np.asarray([tokens / 1024]), np.asarray([1024.0]))


def test_rows_of_a_gpus_experts() -> None:
    """Without expert parallelism every rank works on all copies of its slice; with it on its share of the tokens."""
    assert moe.routed_rows(SHAPE, TOKENS, 2 * ONE, ONE).tolist() == [4096 * 4]
    assert moe.routed_rows(SHAPE, TOKENS, 2 * ONE, 4 * ONE).tolist() == [4096 * 4 / 2]


def test_a_dense_model_has_no_experts() -> None:
    with pytest.raises(NoBasisError, match="tiny has no experts"):
        moe.routed_rows(TINY, TOKENS, ONE, ONE)


def test_experts_split_over_ranks_are_faster() -> None:
    facts = make_facts(model=MOE)
    whole = moe.experts_training(facts, SHAPE, batch(), ONE, ONE, ONE)
    sliced = moe.experts_training(facts, SHAPE, batch(), 2 * ONE, ONE, ONE)
    for one, half in zip(whole, sliced, strict=True):
        assert 0 < half.s[0] < one.s[0]
    assert whole[1].s[0] > 1.5 * whole[0].s[0], "backward has two GEMMs for each of forward"


def test_expert_parallelism_keeps_each_gpus_work_but_makes_larger_gemms() -> None:
    """Equal rows per GPU in fewer, fuller experts: never slower."""
    facts = make_facts(model=MOE)
    alone = moe.experts_training(facts, SHAPE, batch(), ONE, ONE, ONE)[0].s[0]
    spread = moe.experts_training(facts, SHAPE, batch(), ONE, ONE, 4 * ONE)[0].s[0]
    assert spread <= alone


def test_dispatch_and_combine_is_two_exchanges_of_the_routed_rows() -> None:
    facts = make_facts(model=MOE, nodes=2)
    sent = 4096 * 4 * SHAPE.hidden * 2.0
    for ep in (4, 20):
        found = moe.dispatch_and_combine(facts, SHAPE, TOKENS, ONE, ep * ONE).s
        assert found == pytest.approx(2 * comms.strided(facts, "all_to_all", [sent], ep * ONE, ONE).s)
    assert moe.dispatch_and_combine(facts, SHAPE, TOKENS, ONE, ONE).s == [0.0]


def test_decode_experts_grow_with_the_batch_and_shrink_with_tensor_parallelism() -> None:
    facts = make_facts(model=MOE)
    times = [moe.experts_decode(facts, SHAPE, np.asarray([float(n)]), ONE, ONE, "bf16").s[0] for n in (1, 64, 4096)]
    assert times == sorted(times)
    assert moe.experts_decode(facts, SHAPE, TOKENS, 4 * ONE, ONE, "bf16").s[0] < times[-1]


def test_fp8_experts_are_never_slower_than_block_scaled_ones() -> None:
    """The table's per-tensor kernel was left untuned at some shapes; an engine takes the better one."""
    facts = make_facts(device="h100-80gb-sxm")
    shape = load_model("qwen3-235b-a22b")
    for rows in (4.0, 64.0, 1024.0):
        plain, block = (
            moe.experts_decode(facts, shape, np.asarray([rows]), ONE, 4 * ONE, t).s[0] for t in ("fp8", "fp8_block")
        )
        assert plain <= 1.05 * block
