"""Protects the count of a batch's bytes that the object store is sized by: no algorithm's batch is larger."""

from dataclasses import replace

import pytest

from executor.batch import largest_batch_bytes
from executor.rl.algorithms import RUNNABLE
from executor.run import run
from tests.executor.plans import colocated, config, job


@pytest.mark.parametrize("algorithm", sorted(RUNNABLE))
def test_no_batch_is_larger_than_what_the_store_is_sized_by(algorithm, tmp_path, monkeypatch):
    script, seen = RUNNABLE[algorithm].script, []

    def watched(models, batches):
        for step in script(models, batches):
            seen.append(step.batch.get())
            yield step

    monkeypatch.setitem(RUNNABLE, algorithm, replace(RUNNABLE[algorithm], script=watched))
    facts = job(algorithm, prompts=4, samples=2, response=60, old_log_prob="trainer")
    run(facts, colocated(algorithm), config(launcher="local"), tmp_path, 1)
    (batch,) = seen
    stored = sum(column.numel() * column.element_size() for column in batch.values())
    assert largest_batch_bytes(facts.workload) / 4 < stored <= largest_batch_bytes(facts.workload)
