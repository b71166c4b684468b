"""Protects what a run checks of itself: results are numbers, copies of weights are equal, and the odd one is named."""

import pytest
import torch
from tensordict import TensorDict

from benchmarks.rank_pool import run_on_ranks
from executor.checks import NotANumberError, UnequalWeightsError, bit_sums, require_equal_totals, require_numbers
from executor.engines.torch_native.engine import ModelSpec, TorchNativeEngine
from executor.engines.torch_native.optimizer import OptimizerConfig
from executor.fault_injection import flip_bit
from executor.records import Identity
from simulator.groups import Degrees
from tests.executor.plans import TINY

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_column_without_numbers_is_named_and_integers_pass():
    batch = TensorDict({"uid": torch.arange(4), "values": torch.zeros(4, 3), "scores": torch.ones(4)}, batch_size=[4])
    require_numbers(batch)
    batch["values"][2, 1] = float("nan")
    with pytest.raises(NotANumberError, match="values is NaN in 1 of 4 rows"):
        require_numbers(batch)
    batch["values"], batch["scores"] = torch.full((4, 3), float("-inf")), torch.tensor([1.0, float("nan"), 1.0, 1.0])
    with pytest.raises(NotANumberError, match="scores is NaN in 1 of 4 rows"):
        require_numbers(batch)


def test_a_metric_that_is_no_number_is_named():
    require_numbers({"loss": 0.5, "staleness": 1.0})
    require_numbers(None)
    with pytest.raises(NotANumberError, match="grad_norm is inf; weights that learned from it are lost"):
        require_numbers({"loss": 0.5, "grad_norm": float("inf")})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_flipped_bit_shows_and_cuts_add_up(dtype):
    weight = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = bit_sums({"w": weight})
    cut = bit_sums({"a": weight[:, :2], "b": weight[:, 2:]})
    assert cut.sum() == whole[0]
    for bit in range(8 * weight.element_size()):
        other = weight.clone()
        kind = {4: torch.int32, 2: torch.int16}[weight.element_size()]
        mask = torch.tensor(1, dtype=torch.int64) << bit
        other.view(kind).view(-1)[17] ^= (
            mask - ((mask >> (8 * weight.element_size() - 1)) << (8 * weight.element_size()))
        ).to(kind)
        assert bit_sums({"w": other})[0] != whole[0]
    with pytest.raises(UnequalWeightsError, match="after the transition w differs from what was trained"):
        require_equal_totals({"v": 3, "w": 4}, {"v": 3, "w": 5})


def engine_of(rank, degrees, address):
    spec = ModelSpec(str(TINY), zero_stage=0, optimizer=OptimizerConfig(1e-3))
    engine = TorchNativeEngine(Identity("A", rank, degrees.num_ranks), address, degrees, spec)
    engine.load()
    return engine


def flipped(rank, victim, degrees):
    """Check, flip a bit of one rank's weights, check again; what each rank is told."""
    engine = engine_of(rank, degrees, "")
    engine.check_replicas()
    if rank == victim:
        flip_bit(engine.flat.weights)
    try:
        engine.check_replicas()
    except UnequalWeightsError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_one_flipped_bit_in_one_of_three_replicas_is_noticed_and_the_rank_named():
    told = run_on_ranks(3, flipped, 1, Degrees(1, 1, 3, 1, 1))
    assert told == ["lm_head.weight is not the same on all its replicas: rank 1 differs from rank 0, 2"] * 3


def gathered(rank, corrupt):
    """A transition from t2 to t1 whose gathered buffer is corrupted on one rank."""
    engine = engine_of(rank, Degrees(1, 2, 1, 1, 1), "")
    group, found = engine.groups.micro_dp, type(engine.groups.micro_dp).all_gather
    calls = []

    def gather(self, tensor):
        parts = found(self, tensor)
        calls.append(1)
        if corrupt and rank == 1 and len(calls) == 1:
            parts[0].view(torch.int32)[5] ^= 1
        return parts

    type(group).all_gather = gather
    try:
        engine.to_generation()
    except UnequalWeightsError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_what_generates_is_compared_with_what_was_trained():
    assert run_on_ranks(2, gathered, False) == ["", ""]
    told = run_on_ranks(2, gathered, True)
    assert told[0] == ""
    assert "after the transition model.embed_tokens.weight differs from what was trained" in told[1]
