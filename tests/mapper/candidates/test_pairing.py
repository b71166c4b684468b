"""Protects the pairs of weights and engines: what is left out before pairs are joined is in no table afterwards."""

import numpy as np
import pytest

from mapper.candidates import pairing
from mapper.candidates.listing import bounding_tables
from mapper.candidates.table import RoleTable
from mapper.problem import make_problem
from tests.builders import MOE, make_facts, workload


def contents(table: RoleTable) -> list[list[float]]:
    """Every row by GPUs, seconds and bytes, in order."""
    columns = [table.num_gpus, *table.durations_s.values(), table.resident_bytes, table.transient_bytes]
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1).tolist()


@pytest.mark.parametrize(("algorithm", "model"), [("grpo", "llama-2-7b"), ("remax", "llama-2-7b"), ("grpo", MOE)])
def test_engines_that_others_beat_beside_the_same_shards_are_in_no_table(
    algorithm: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(make_facts(algorithm, model, nodes=2, work=workload(128)))
    few = bounding_tables(problem, ["actor"])["actor"]
    monkeypatch.setattr(pairing, "_unbeaten", lambda engines, shards, rows, beside: np.arange(len(beside.shards)))
    all_joined = bounding_tables(problem, ["actor"])["actor"]
    assert all_joined.num_priced > few.num_priced
    assert contents(few) == contents(all_joined)
