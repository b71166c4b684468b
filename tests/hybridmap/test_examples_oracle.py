"""Protects the proof on the shipped examples: no choice over the same tables beats what CP-SAT calls optimal."""

from pathlib import Path

import pytest

from hybridmap.job.load import load_job
from mapper.model.instance import make_instance
from mapper.problem import make_problem
from mapper.search.find_plan import best_choice
from tests.mapper.exhaustive import exhaustive
from tests.work import HANGS_S

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_exhaustive_finds_nothing_better(path):
    """Brute force over every placement, allocation and fitting combination that takes no longer than the answer."""
    x = make_instance(make_problem(load_job(path).facts()))
    choice, solution = best_choice(x, seed=0, time_limit_s=HANGS_S)
    found, ticks = exhaustive(x, limit_ticks=solution.objective_ticks)
    assert choice is not None
    assert found is not None, "the answer itself must be found again"
    assert ticks == solution.objective_ticks
    assert solution.bound_ticks == solution.objective_ticks
