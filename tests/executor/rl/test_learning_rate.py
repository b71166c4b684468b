"""Protects how learning rates move: against transformers' schedules and numbers made by hand."""

import pytest
import torch
from transformers import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup

from executor.engines.model_spec import OptimizerConfig
from executor.rl.learning_rate import RateSchedule
from executor.run_config import RunConfig


@pytest.mark.parametrize("kind", ["constant", "cosine"])
def test_rates_are_those_of_transformers_once_an_iteration(kind):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    theirs = get_constant_schedule_with_warmup(optimizer, 3)
    if kind == "cosine":
        theirs = get_cosine_schedule_with_warmup(optimizer, 3, 10)
    mine = OptimizerConfig(2.0, schedule=RateSchedule(kind, warmup=3, iterations=10, steps=2))
    for num_steps in range(20):
        group = {"lr": -1.0}
        mine.set_rate([group], num_steps)
        assert group["lr"] == pytest.approx(theirs.get_last_lr()[0]), num_steps
        if num_steps % 2:
            optimizer.step()
            theirs.step()


def test_a_cosine_ends_at_its_floor_and_stays():
    schedule = RateSchedule("cosine", iterations=4, floor=0.2)
    assert [schedule.factor(i) for i in (0, 2, 4, 9)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_the_preset_of_the_learning_rules_is_that_of_the_optimizer():
    given = {"weights": {"actor": "x"}, "data": {"task": "modular-sum", "alphabet": "0"}}
    ours, verl = (RunConfig.model_validate({**given, "learning": {"defaults": d}}) for d in ("hybridmap", "verl"))
    assert (ours.optimizer.betas, ours.optimizer.weight_decay) == ((0.9, 0.95), 0.0)
    assert (verl.optimizer.betas, verl.optimizer.weight_decay) == ((0.9, 0.999), 0.01)
    both = RunConfig.model_validate({**given, "learning": {"defaults": "verl"}, "optimizer": {"weight_decay": 0.1}})
    assert (both.optimizer.betas, both.optimizer.weight_decay) == ((0.9, 0.999), 0.1)
