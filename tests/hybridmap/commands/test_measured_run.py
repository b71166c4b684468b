"""Protects which iterations `validate` compares: those on cores as the profile's, all where these are too few."""

import pytest

from executor.profiling.core_pace import Pace
from executor.profiling.visits import LEAST, Made
from hybridmap.commands.measured_run import that_count
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, workload


@pytest.mark.parametrize(
    ("num_slow", "num_kept", "disturbed"),
    [(0, LEAST + 2, 0), (2, LEAST, 2), (3, LEAST + 2, 3), (LEAST + 2, LEAST + 2, LEAST + 2)],
)
def test_iterations_on_slowed_cores_do_not_count(num_slow: int, num_kept: int, disturbed: int) -> None:
    facts = make_facts("ppo", work=workload(64, 512, 256))
    one = simulate(make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8), facts)
    num = LEAST + 2
    visit = [one.model_copy(update={"iteration": i}) for i in range(num)]
    paces = (*[1.7] * num_slow, *[1.0] * (num - num_slow), 1.0 if num_slow < num else 1.7)
    kept, left_out = that_count(Made(visit, paces), Pace(2, 1.0))
    assert (len(kept), left_out) == (num_kept, disturbed)
    assert kept == visit[-num_kept:]


def test_a_short_run_counts_whole_or_not() -> None:
    facts = make_facts("ppo", work=workload(64, 512, 256))
    one = simulate(make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,), tp=8), facts)
    assert that_count(Made([one, one], (1.0, 1.0, 1.0)), Pace(2, 1.0)) == ([one, one], 0)
    assert that_count(Made([one, one], (1.0, 1.0, 2.0)), Pace(2, 1.0)) == ([one, one], 1)
