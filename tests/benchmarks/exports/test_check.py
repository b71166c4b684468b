"""Protects the exports against the packages themselves; needs the environment that `make check-all` makes."""

import os
from pathlib import Path

import pytest

from benchmarks.exports.check import check_all, table

PEERS = Path(os.environ.get("HYBRIDMAP_PEERS", Path(__file__).parents[3] / ".venv-peers"))
READY = (PEERS / "bin" / "python").exists()


MIXED = "grpo-qwen2.5-7b-16xh100-32xa100"
"""Its plan uses two kinds of GPU, which no export can say."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return check_all(PEERS, tmp_path_factory.mktemp("exports"))


@pytest.mark.external
@pytest.mark.skipif(not READY, reason="no environment with verl and OpenRLHF; `make check-all` makes it")
@pytest.mark.parametrize("system", ["verl", "openrlhf"])
def test_every_example_passes_the_packages_own_checks(rows, system):
    found = [row for row in rows if row.system == system and row.job != MIXED]
    assert len(found) >= 7
    assert [(row.job, row.error) for row in found if row.answer is None] == []
    (refused,) = (row for row in rows if row.system == system and row.job == MIXED)
    assert refused.error.startswith("not exported: ") and "h100" in refused.error and "a100" in refused.error


@pytest.mark.external
@pytest.mark.skipif(not READY, reason="no environment with verl and OpenRLHF; `make check-all` makes it")
def test_rollout_gpus_are_another_trainer_of_verl(rows):
    row = next(row for row in rows if row.system == "verl" and row.job.endswith("rollout pool"))
    assert row.answer["trainer"] == "PPOTrainerSeparateAsync"
    assert row.answer["pools"] == {"global_pool": [8]}
    assert row.answer["roles"]["ref"] == "global_pool"


@pytest.mark.external
@pytest.mark.skipif(not READY, reason="no environment with verl and OpenRLHF; `make check-all` makes it")
def test_the_subclass_gives_the_critic_its_own_pool(rows):
    row = next(row for row in rows if row.system == "verl" and row.job.endswith("split"))
    assert row.answer["trainer"] == "PoolsTrainer"
    assert row.answer["pools"] == {"global_pool": [8], "critic_pool": [8]}
    assert row.answer["roles"]["critic"] == row.answer["roles"]["rm"] == "critic_pool"
    started = ["values started", "log-probs", "critic started", "actor updated", "critic updated"]
    assert row.answer["order"] == started  # the critic works while the actor does
    assert "PoolsTrainer makes" in table([row], "x")
