"""Protects even work in runs: rows dealt by tokens change who computes, never what comes out."""

import pytest

from executor.run import run
from tests.executor.plans import config, job, learned, metrics, plan

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
SPLIT = {"A": (("actor", "reference"), (1, 1, 2)), "B": (("critic", "reward"), (1, 1, 2))}
ENDS = {"end_token": 3, "kl_coefficient": 0.1}


def test_rows_dealt_by_tokens_give_the_losses_of_rows_in_order(on_ray, tmp_path):
    """PPO on two pools, two optimizer steps, responses of one to eight tokens, and a row that fills a share."""
    work = job("ppo", prompts=14, response=8, minibatches=2, old_log_prob="trainer")
    found = {}
    for balanced in (True, False):
        asked = config(launcher="ray", learning_rate=3e-3, learning=ENDS, balance_batch=balanced)
        run(work, plan("ppo", SPLIT), asked, tmp_path / str(balanced), 3)
        found[balanced] = metrics(tmp_path / str(balanced))
    assert len({line["response_tokens"] for line in found[True]}) > 1  # of many lengths
    for mine, theirs in zip(found[True], found[False], strict=True):
        assert learned(mine) == pytest.approx(learned(theirs), abs=1e-6, rel=1e-6)
