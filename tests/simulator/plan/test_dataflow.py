"""Protects the algorithms as data: who calls what, on whose outputs, in the order of the paper's scripts."""

import pytest

from profiles.errors import InputError, UnknownNameError
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.dataflow import STAGES, build_dataflow

PPO = ("actor", "critic", "reference", "reward")


def keys(algorithm: str, roles: tuple[str, ...]) -> list[str]:
    return [call.key for call in build_dataflow(algorithm, roles).calls]


def test_ppo_is_the_papers_seven_calls_in_their_order_plus_the_transition() -> None:
    assert keys("ppo", PPO) == [
        "transition",
        "generate_sequences",
        "compute_values",
        "compute_ref_log_prob",
        "compute_reward",
        "compute_advantage",
        "update_critic",
        "update_actor",
    ]


def test_remax_generates_and_scores_twice_and_has_no_critic() -> None:
    flow = build_dataflow("remax", ("actor", "reference", "reward"))
    assert [call.key for call in flow.calls] == [
        "transition",
        "generate_sequences",
        "generate_sequences:greedy",
        "compute_ref_log_prob",
        "compute_reward",
        "compute_reward:greedy",
        "compute_advantage",
        "update_actor",
    ]
    inputs = {call.key: call.inputs for call in flow.calls}
    assert inputs["compute_reward"] == ("generate_sequences",)
    assert inputs["compute_reward:greedy"] == ("generate_sequences:greedy",)


def test_remax_with_a_reward_function_scores_the_greedy_responses_too() -> None:
    flow = build_dataflow("remax", ("actor",))
    rewards = [call for call in flow.calls if call.api == "compute_reward"]
    assert [(call.key, call.role) for call in rewards] == [
        ("compute_reward", "controller"),
        ("compute_reward:greedy", "controller"),
    ]
    assert rewards[1].inputs == ("generate_sequences:greedy",)
    assert {call.key for call in rewards} <= set(flow.calls[flow.index("compute_advantage")].inputs)


def test_safe_rlhf_adds_a_cost_model_and_the_pretraining_loss() -> None:
    ppo, safe = keys("ppo", PPO), keys("safe-rlhf", (*PPO, "cost"))
    assert [key for key in safe if key not in ppo] == ["compute_cost", "compute_loss"]
    flow = build_dataflow("safe-rlhf", (*PPO, "cost"))
    assert flow.calls[flow.index("update_actor")].inputs == ("compute_advantage", "compute_loss")
    assert flow.calls[flow.index("update_critic")].inputs == ("compute_advantage",)


def test_without_a_reward_model_the_controller_scores() -> None:
    flow = build_dataflow("grpo", ("actor",))
    reward = flow.calls[flow.index("compute_reward")]
    assert (reward.role, reward.stage) == ("controller", "other")
    assert build_dataflow("grpo", ("actor", "reward")).calls_of("reward")[0].key == "compute_reward"


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize("with_optional", [False, True])
def test_every_dataflow_is_well_formed(algorithm: str, with_optional: bool) -> None:
    roles = ALGORITHMS[algorithm].roles + (ALGORITHMS[algorithm].optional_roles if with_optional else ())
    flow = build_dataflow(algorithm, tuple(reversed(roles)))  # the order in which roles are named does not matter
    assert flow == build_dataflow(algorithm, roles)
    assert set(flow.roles) == set(roles)
    seen: set[str] = set()
    for call in flow.calls:
        assert call.key not in seen
        assert seen >= set(call.inputs), "inputs point backwards"
        assert call.stage in STAGES
        assert call.role in (*roles, "controller")
        seen.add(call.key)
    assert flow.generates("actor")
    assert [role for role in flow.roles if flow.is_trained(role)] == [r for r in ("actor", "critic") if r in roles]
    advantage = flow.calls[flow.index("compute_advantage")]
    before = flow.calls[: flow.index("compute_advantage")]
    assert {c.key for c in before if c.stage in ("preparation", "generation")} <= set(advantage.inputs)
    for call in flow.calls:
        if call.stage == "training":
            assert "compute_advantage" in call.inputs


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="unknown algorithm 'pppo'; did you mean ppo"):
        build_dataflow("pppo", PPO)
    with pytest.raises(InputError, match="ppo needs a model for critic; models names actor, reference"):
        build_dataflow("ppo", ("actor", "reference"))
    with pytest.raises(UnknownNameError, match="unknown role of dapo 'reference'"):
        build_dataflow("dapo", ("actor", "reference"))
