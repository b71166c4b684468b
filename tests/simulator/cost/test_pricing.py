"""Protects what the search relies on, over random layouts, models, devices and work: every call takes at least its
larger part and at most both, better hardware is never slower, and what is asked twice is answered alike.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.candidates import layouts
from profiles.calibration import Calibration
from profiles.models.catalogue import load_model
from profiles.records import Basis
from profiles.workload import LengthDistribution
from simulator.cost import generate, pricing
from simulator.cost.role_layouts import RoleLayouts, head_of, layouts_of
from simulator.cost.role_memory import role_memory
from simulator.cost.weight_sync import weight_sync_cost
from simulator.facts import Facts, Implementation
from simulator.plan.layouts import Layouts
from simulator.plan.plan import Offload
from tests.builders import (
    MOE,
    TINY,
    call_of,
    make_facts,
    make_plan,
    replace_role,
    tiny_facts,
    with_engine_pool,
    workload,
)
from tests.draws import draws

NUM_LAYOUTS = 12
MODELS = ["llama-2-7b", "qwen2.5-7b", "llama-2-70b", MOE, "deepseek-v2-lite", "qwen3-30b-a3b"]
responses = st.one_of(
    st.integers(16, 8192).map(LengthDistribution.fixed),
    st.integers(64, 4096).map(lambda mean: LengthDistribution("lognormal", float(mean), 4 * mean)),
)


@st.composite
def jobs(draw: st.DrawFn) -> Facts:
    """One actor with every kind of call (Safe-RLHF's), on any device, of any size and work."""
    model = draw(st.sampled_from(MODELS))
    prompts = draw(st.sampled_from([64, 96, 512, 1024]))
    work = workload(
        prompts,
        draw(st.sampled_from([128, 1024, 12000])),
        draw(responses),
        samples_per_prompt=draw(st.sampled_from([1, 4])),
        minibatches=draw(st.sampled_from([1, 4])),
    )
    facts = make_facts(
        "safe-rlhf",
        model,
        nodes=draw(st.integers(1, 4)),
        work=work,
        device=draw(st.sampled_from(["a100-80gb-sxm", "h100-80gb-sxm", "b200-sxm"])),
        inter_node_bytes_per_s=draw(st.sampled_from([5e9, 25e9, 400e9])),
        zero_stages=(0, 1, 2, 3),
        generation=draw(st.sampled_from(["vllm@0.3.1", "vllm@0.32"])),
    )
    implementation = Implementation(
        loss_head=draw(st.sampled_from(["parallel", "fused", "fp32", "unfused"])),
        attention_kernel=draw(st.sampled_from(["newest", "flash-2"])),
        kernels=draw(st.sampled_from(["fused", "eager"])),
        tensor_parallel_overlap=draw(st.booleans()),
        lora_rank=draw(st.sampled_from([0, 16])),
        packed_tokens=draw(st.sampled_from([None, 16384])),
        expert_imbalance=draw(st.sampled_from([1.0, 1.3])),
        sleeping_engine=draw(st.sampled_from(["drops-weights", "keeps-weights"])),
        fsdp_exposure=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    return replace(facts, implementation=implementation)


def some_layouts(facts: Facts, seed: int) -> RoleLayouts:
    """Random layouts of the actor on all GPUs of the job."""
    rng = np.random.default_rng(seed)
    shape, n = facts.roles["actor"].shape, facts.group.num_gpus
    spread = layouts.degrees(facts, shape, n, facts.workload.minibatch_samples)
    spread = [spread[i] for i in rng.permutation(len(spread))[:NUM_LAYOUTS]]
    whole, _ = layouts.cross(spread, (0, 1, 2, 3), (0, 1, 2), np.full(len(spread), 64))
    engines = layouts.generation_layouts(facts, shape, n)
    at = rng.integers(0, len(whole), NUM_LAYOUTS)
    scored = whole.take(at)
    inference = Layouts(
        scored.dp,
        scored.tp,
        scored.pp,
        scored.cp,
        scored.ep,
        scored.zero_stage,
        2 ** rng.integers(0, 4, NUM_LAYOUTS),
        0 * scored.recompute,
    )
    return RoleLayouts(whole.take(at), inference, engines.take(rng.integers(0, len(engines), NUM_LAYOUTS)))


@settings(max_examples=draws(60))
@given(facts=jobs(), seed=st.integers(0, 1000))
def test_every_call_takes_at_least_its_larger_part_and_at_most_both(facts: Facts, seed: int) -> None:
    costs = pricing.role_costs(facts, "actor", some_layouts(facts, seed))
    assert {call_of(facts.dataflow, key).kind for key in costs} == {"transition", "generate", "forward", "train"}
    for key, cost in costs.items():
        compute, comm, time = cost.compute.s, cost.comm.s, cost.time.s
        assert np.all(np.isfinite(time)), key
        assert np.all(np.maximum(compute, comm) <= time * (1 + 1e-9)), key
        assert np.all(time <= (compute + comm) * (1 + 1e-9)), key
        assert np.all(time > 0) or key == "transition", key


@settings(max_examples=draws(40))
@given(facts=jobs(), seed=st.integers(0, 1000), factor=st.floats(1.0, 50.0))
def test_a_faster_network_never_makes_a_call_slower(facts: Facts, seed: int, factor: float) -> None:
    layouts = some_layouts(facts, seed)
    rate = facts.group.inter_node_bytes_per_s * factor
    faster = replace(facts, group=replace(facts.group, inter_node_bytes_per_s=rate))
    here, there = (pricing.role_costs(f, "actor", layouts) for f in (facts, faster))
    for key, cost in here.items():
        assert np.all(there[key].time.s <= cost.time.s * (1 + 1e-12)), key
    advantage = call_of(facts.dataflow, "compute_advantage")
    assert pricing.controller_cost(faster, advantage).time.s <= pricing.controller_cost(facts, advantage).time.s


@settings(max_examples=draws(15))
@given(facts=jobs(), seed=st.integers(0, 1000))
def test_one_by_one_is_the_same_as_together(facts: Facts, seed: int) -> None:
    layouts = some_layouts(facts, seed)
    together = pricing.role_costs(facts, "actor", layouts)
    assert layouts.training is not None
    assert layouts.inference is not None
    assert layouts.generation is not None
    i = np.asarray([seed % NUM_LAYOUTS])
    alone = RoleLayouts(layouts.training.take(i), layouts.inference.take(i), layouts.generation.take(i))
    for key, cost in pricing.role_costs(facts, "actor", alone).items():
        assert cost.time.s[0] == pytest.approx(together[key].time.s[i[0]], rel=1e-12), key


def test_a_call_made_twice_is_priced_once_and_alike() -> None:
    facts = tiny_facts("remax", 2)
    layouts = RoleLayouts(inference=Layouts(*np.asarray([[2], [1], [1], [1], [1], [0], [1], [0]])))
    costs = pricing.role_costs(facts, "reward", layouts)
    assert costs["compute_reward"] is costs["compute_reward:greedy"]


def test_the_controller_takes_its_fixed_time_and_moves_every_samples_fields_once() -> None:
    facts = make_facts(nodes=2)
    cost = pricing.controller_cost(facts, call_of(facts.dataflow, "compute_advantage"))
    assert float(cost.compute.s) == 0.0
    assert float(cost.comm.s) == pytest.approx(1024 * 2048 * 40 / (25e9 * 2))
    assert float(cost.time.s) == pytest.approx(float(cost.compute.s + cost.comm.s))


def test_a_factor_of_a_call_leaves_alone_what_comes_before_it() -> None:
    """Factors are learned from spans, which begin when the ranks do: dispatch is in none of them."""
    facts = tiny_facts("remax", 2)
    alone = replace(facts, calibration=Calibration({"compute_reward": 0.5}, "x"))
    behind = replace(alone, training=replace(facts.training, dispatch_s=0.25))
    one = RoleLayouts(inference=Layouts(*np.asarray([[2], [1], [1], [1], [1], [0], [1], [0]])))
    call = call_of(facts.dataflow, "compute_reward")
    whole, half, late = (float(pricing.call_cost(job, call, one).time.s[0]) for job in (facts, alone, behind))
    assert half == pytest.approx(whole / 2)
    assert late == pytest.approx(half + 0.25)


def test_a_function_reward_takes_its_stated_time() -> None:
    facts = make_facts("grpo", work=workload(1024, samples_per_prompt=2, reward_s_per_sample=0.5))
    reward = call_of(facts.dataflow, "compute_reward")
    assert pricing.is_controller(reward)
    assert float(pricing.controller_cost(facts, reward).time.s) == pytest.approx(0.5 * 2048 / 8)


def test_heads() -> None:
    assert [head_of(r) for r in ("actor", "reference", "critic", "reward", "cost")] == [
        "lm",
        "lm",
        *["scalar"] * 3,
    ]


def test_memory_of_a_role_is_its_resident_part_and_the_largest_call() -> None:
    facts = make_facts("safe-rlhf", TINY)
    layouts = some_layouts(facts, 0)
    memory = role_memory(facts, "actor", layouts)
    assert set(memory.resident) == {"parameters", "gradients", "optimizer", "engine reserve"}
    assert set(memory.transient) == {"transition", "generate_sequences", "compute_loss", "update_actor"}
    assert set(memory.transient["transition"]) == {"generation weights", "conversion bucket"}
    each = np.stack([sum(classes.values()) for classes in memory.transient.values()])
    assert memory.transient_bytes == pytest.approx(each.max(axis=0))
    frozen = role_memory(facts, "reference", RoleLayouts(inference=layouts.inference))
    assert set(frozen.resident) == {"parameters"}


def test_an_engine_that_shares_the_training_buffers_needs_no_second_copy_where_layouts_agree() -> None:
    facts = make_facts("grpo")
    engines = layouts.generation_layouts(facts, load_model("llama-2-7b"), 8)
    engines = engines.take(np.flatnonzero(engines.pp == 1))
    one = np.ones(len(engines), dtype=np.int64)
    weights = Layouts(one * 2, one * 4, one, one, one, one, one, 0 * one)
    copies = role_memory(facts, "actor", RoleLayouts(weights, weights, engines)).transient["generate_sequences"]
    assert np.array_equal(copies["generation weights"] == 0, engines.tp == 4)


def test_times_carry_their_evidence() -> None:
    facts = make_facts("safe-rlhf", nodes=2)
    for cost in pricing.role_costs(facts, "actor", some_layouts(facts, 1)).values():
        shares = cost.time.share()
        assert sum(shares.values()) == pytest.approx(1.0)
        assert set(shares) == {b.name.lower() for b in Basis}


def host_traffic(role: str, offload: tuple[Offload, ...], apart: bool = False) -> dict[str, float]:
    """Bytes that the time added by offloading copies, by call of a role of a tiny PPO job on eight GPUs."""
    facts = make_facts("ppo", TINY, work=workload(64, 512, 512, minibatches=2), generation="vllm@0.32")
    plan = make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,))
    plan = with_engine_pool(plan, 8) if apart else plan
    costs = [
        pricing.role_costs(facts, role, layouts_of(p.role(role), p))
        for p in (plan, replace_role(plan, role, offload=offload))
    ]
    rate = facts.training.offload_bytes_per_s
    return {key: float(costs[1][key].time.s[0] - cost.time.s[0]) * rate for key, cost in costs[0].items()}


LM, SCALAR = TINY.num_params, TINY.num_params_of("scalar")
BOTH: tuple[Offload, ...] = ("parameters", "optimizer")


@pytest.mark.parametrize(
    ("role", "offload", "by_hand"),
    [
        # Bf16 parameters (2) and optimizer states (12, over 8 ranks) make room for the engine and come back to train.
        ("actor", BOTH, dict.fromkeys(("transition", "update_actor"), LM * 2 + LM * 12 / 8)),
        ("actor", ("optimizer",), dict.fromkeys(("transition", "update_actor"), LM * 12 / 8)),
        # A critic fetches its parameters to score, everything to train, and puts that back.
        ("critic", BOTH, {"compute_values": SCALAR * 2, "update_critic": 2 * (SCALAR * 2 + SCALAR * 12 / 8)}),
        ("critic", ("optimizer",), {"update_critic": 2 * SCALAR * 12 / 8}),
        # A frozen role has parameters alone: in for its pass; where it swapped, what made room comes back.
        ("reference", BOTH, {"compute_ref_log_prob": LM * 2}),
        ("reference", ("parameters",), {"compute_ref_log_prob": LM * 2}),
        ("reference", ("swap",), {"compute_ref_log_prob": 2 * LM * 2}),
        ("reward", ("parameters",), {"compute_reward": SCALAR * 2}),
        ("reward", (), {}),
    ],
)
def test_host_traffic_by_hand(role: str, offload: tuple[Offload, ...], by_hand: dict[str, float]) -> None:
    found = host_traffic(role, offload)
    assert found == pytest.approx(dict.fromkeys(found, 0.0) | by_hand, rel=1e-6, abs=1.0)


def test_an_actor_with_engines_elsewhere_fetches_like_a_critic() -> None:
    found = host_traffic("actor", BOTH, apart=True)
    by_hand = dict.fromkeys(found, 0.0) | {"update_actor": 2 * (LM * 2 + LM * 12 / 8)}
    assert found == pytest.approx(by_hand, rel=1e-6, abs=1.0)


def test_host_copies_overlap_nothing_and_are_communication() -> None:
    facts = make_facts("ppo", TINY, work=workload(64, 512, 512, minibatches=2))
    plan = make_plan(facts, (("actor", "critic", "reference", "reward"),), (8,))
    layouts = layouts_of(plan.role("critic"))
    call = call_of(facts.dataflow, "update_critic")
    plain, away = (pricing.call_cost(facts, call, replace(layouts, offload=o)) for o in ((), BOTH))
    assert away.compute.s == plain.compute.s
    assert away.exposed.s - plain.exposed.s == pytest.approx(away.comm.s - plain.comm.s)


def test_new_weights_reach_engines_elsewhere_as_a_weight_sync() -> None:
    facts = make_facts("grpo", "llama-2-7b", nodes=2)
    plan = with_engine_pool(make_plan(facts, (("actor",),), (8,), tp=4), 8)
    layouts = layouts_of(plan.role("actor"), plan)
    assert layouts.generation is not None
    assert layouts.separate_generation
    found = pricing.call_cost(facts, call_of(facts.dataflow, "transition"), layouts)
    shape = facts.roles["actor"].shape
    assert found.time.s == weight_sync_cost(facts, shape, np.asarray([8]), layouts.generation, "bf16").time.s
    together = pricing.call_cost(
        facts, call_of(facts.dataflow, "transition"), replace(layouts, separate_generation=False)
    )
    assert together.time.s.tolist() == [0.0], "equal layouts of this engine share the training buffers"


def test_only_an_async_schedule_keeps_the_engines_full() -> None:
    """``one-step-off`` drains its engines in every iteration; ``async`` generates at the rate of the steady state."""
    lengths = LengthDistribution("lognormal", 512.0, 4096)
    facts = make_facts("grpo", TINY, nodes=2, work=workload(256, 512, lengths), generation="vllm@0.32")
    call, shape = call_of(facts.dataflow, "generate_sequences"), facts.roles["actor"].shape
    times = {}
    for schedule, steps in (("sync", 1), ("one-step-off", 1), ("async", 1), ("async", 4)):
        plan = with_engine_pool(
            make_plan(facts, (("actor",),), (8,), slots=64), 8, schedule=schedule, steps_in_flight=steps
        )
        layouts = layouts_of(plan.role("actor"), plan)
        assert layouts.generation is not None
        times[schedule, steps] = float(pricing.call_cost(facts, call, layouts).time.s[0])
        steady = generate.steady_generation_cost(facts, shape, layouts.generation, "bf16", steps)
        assert (times[schedule, steps] == float(steady.time.s[0])) is (schedule == "async")
    assert times["sync", 1] == times["one-step-off", 1]
    assert times["async", 4] < times["sync", 1]
