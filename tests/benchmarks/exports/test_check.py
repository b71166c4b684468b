"""Protects the exports against the packages themselves; needs the environment that `make check-all` makes."""

import os
from pathlib import Path

import pytest

from benchmarks.exports.check import check_all, table

PEERS = Path(os.environ.get("HYBRIDMAP_PEERS", Path(__file__).parents[3] / ".venv-peers"))
READY = (PEERS / "bin" / "python").exists()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return check_all(PEERS, tmp_path_factory.mktemp("exports"))


@pytest.mark.external
@pytest.mark.skipif(not READY, reason="no environment with verl and OpenRLHF; `make check-all` makes it")
@pytest.mark.parametrize("target", ["verl/fsdp", "verl/megatron", "openrlhf"])
def test_every_example_planned_for_a_target_passes_the_packages_own_checks(rows, target):
    """As it was planned: what is written takes the plan's time."""
    found = [row for row in rows if row.target == target]
    assert len(found) == 8
    planned = [row for row in found if not row.error.startswith("not planned: ")]
    assert len(planned) >= 6
    assert [(row.job, row.error) for row in planned if row.answer is None] == []
    assert [row.job for row in planned if abs(row.written_s / row.planned_s - 1) > 1e-3] == []


@pytest.mark.external
@pytest.mark.skipif(not READY, reason="no environment with verl and OpenRLHF; `make check-all` makes it")
@pytest.mark.parametrize(
    ("job", "trainer", "pool"),
    [
        ("rollout pool", "PPOTrainerSeparateAsync", "global_pool"),
        ("one step off", "OneStepOffRayTrainer", "trainer_pool"),
        ("drained at updates", "FullyAsyncTrainer", "trainer_pool"),
    ],
)
def test_rollout_gpus_are_other_trainers_of_verl(rows, job, trainer, pool):
    row = next(row for row in rows if row.job.endswith(job))
    assert row.answer["trainer"] == trainer
    assert row.answer["pools"] == {pool: [8]}
    assert row.answer["roles"]["ref"] == pool


@pytest.mark.external
@pytest.mark.skipif(not READY, reason="no environment with verl and OpenRLHF; `make check-all` makes it")
def test_the_subclass_gives_the_critic_its_own_pool(rows):
    row = next(row for row in rows if row.job.endswith("split"))
    assert row.answer["trainer"] == "PoolsTrainer"
    assert row.answer["pools"] == {"global_pool": [8], "critic_pool": [8]}
    assert row.answer["roles"]["critic"] == row.answer["roles"]["rm"] == "critic_pool"
    started = ["values started", "log-probs", "critic started", "actor updated", "critic updated"]
    assert row.answer["order"] == started  # the critic works while the actor does
    assert "PoolsTrainer makes" in table([row], "x")[-1]
