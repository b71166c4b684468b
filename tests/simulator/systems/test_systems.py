"""Protects the simulated systems: plans the checker accepts, priced as ours are, and what each is known for."""

import pytest

from profiles.errors import InfeasibleError, UnknownNameError
from simulator.feasibility import check_plan
from simulator.systems.run import role_sets, run_system
from simulator.systems.system import SYSTEMS
from tests.builders import make_facts

pytestmark = pytest.mark.thorough

PAPER = ("deepspeed-chat", "openrlhf", "nemo-aligner")


@pytest.mark.parametrize("name", sorted(SYSTEMS))
@pytest.mark.parametrize("algorithm", ["ppo", "safe-rlhf", "remax"])
def test_every_plan_of_a_system_passes_the_checker_and_covers_every_call(name: str, algorithm: str) -> None:
    run = run_system(name, make_facts(algorithm, nodes=2))
    assert check_plan(run.plan, run.facts) == []
    assert {span.call for span in run.timeline.spans} == {call.key for call in run.facts.dataflow.calls}
    assert run.plan.num_gpus == 16


def test_who_shares_gpus_is_as_the_paper_s_table_says() -> None:
    facts = make_facts()
    assert role_sets(SYSTEMS["deepspeed-chat"], facts) == (("actor", "critic", "reference", "reward"),)
    assert role_sets(SYSTEMS["nemo-aligner"], facts) == (("actor", "reference"), ("critic", "reward"))
    pools = role_sets(SYSTEMS["openrlhf"], facts)
    assert len(pools) == 5
    plan = run_system("openrlhf", facts).plan
    actor = plan.role("actor")
    assert actor.separate_generation
    assert plan.pool(actor.generation_pool or "").roles == ()


def test_two_copies_cost_memory_and_a_sync_and_one_layout_costs_no_transition() -> None:
    facts = make_facts(nodes=2)
    assert run_system("nemo-aligner", facts).timeline.stages["transition"] == 0
    openrlhf = run_system("openrlhf", facts)
    assert next(s for s in openrlhf.timeline.spans if s.call == "transition").end_s > 0


def test_more_gpus_never_slow_a_system_down() -> None:
    for name in PAPER:
        small, large = (run_system(name, make_facts(nodes=n)).timeline.iteration_s for n in (2, 4))
        assert large < small, name


def test_a_system_that_does_not_fit_says_so() -> None:
    with pytest.raises(InfeasibleError, match=r"DeepSpeed-Chat 0.14.0 does not fit: .* 8 x a100-80gb-sxm"):
        run_system("deepspeed-chat", make_facts(model="llama-2-70b"))
    with pytest.raises(UnknownNameError, match="unknown system 'trlx'"):
        run_system("trlx", make_facts())
