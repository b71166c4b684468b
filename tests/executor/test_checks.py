"""Protects what a run checks of itself: results are numbers, copies of weights are equal, and the odd one is named."""

import pytest
import torch
from tensordict import TensorDict

from executor.checks import (
    NotANumberError,
    UnequalWeightsError,
    bit_sums,
    difference,
    require_equal_totals,
    require_numbers,
)
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.native.engine import TorchNativeEngine
from executor.engines.native.transition import group_totals, require_gathered
from executor.records import Identity
from executor.weights.checksum import require_arrived, sums_of_stored
from executor.worker.inject_faults import flip_bit
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY

pytestmark = pytest.mark.filterwarnings("ignore")
ALONE = Degrees(1, 1, 1, 1, 1)


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


def test_the_odd_replica_is_named_and_of_two_both():
    assert difference(["a", "b"], [[1, 2], [1, 2], [1, 2]], (4, 5, 6)) is None
    told = difference(["a", "b"], [[1, 2], [1, 3], [1, 2]], (4, 5, 6))
    assert told == "b is not the same on all its replicas: rank 5 differs from rank 4, 6"
    told = difference(["a", "b"], [[0, 2], [1, 3]], (0, 2))
    assert told == "a is not the same on all its replicas: rank 2 differs from rank 0; 1 other weights differ too"


@pytest.fixture
def engine():
    spec = ModelSpec(str(TINY), optimizer=OptimizerConfig(1e-3))
    made = TorchNativeEngine(Identity("A", 0, 1), "", ALONE, spec)
    made.load()
    return made


def test_what_generates_is_compared_with_what_was_trained(engine):
    """That layouts which are right pass is protected by every run: the comparison is on."""
    transition = engine.transition
    trained = group_totals(transition.plan, 0, transition.training, engine.groups.micro_dp)
    engine.to_generation()
    require_gathered(transition.generation, trained)
    flip_bit({"model.norm.weight": transition.generation["model.norm.weight"]})
    with pytest.raises(UnequalWeightsError, match=r"after the transition model.norm.weight differs from what was"):
        require_gathered(transition.generation, trained)


def test_what_arrives_in_another_pool_is_compared_with_the_sums_that_came_with_it(engine):
    tensors = engine.tensors()
    given = (engine.arch, engine.layout, engine.identity, tensors)
    trained = sums_of_stored(engine.layout.stored(0), tensors, engine.arch)
    require_arrived(*given, trained)
    flip_bit({"lm_head.weight": tensors["lm_head.weight"]})
    with pytest.raises(UnequalWeightsError, match=r"lm_head\.weight"):
        require_arrived(*given, trained)
