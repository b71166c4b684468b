"""Protects which degrees an engine can run a model in, each rule from both sides; a plan of others has no time."""

from dataclasses import replace

import pytest

from profiles.errors import InfeasibleError
from profiles.models.catalogue import load_model
from profiles.models.shape import ModelShape
from simulator.cost.role_layouts import layouts_of
from simulator.cost.role_memory import role_memory
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.plan.plan import Plan
from simulator.play.simulate import simulate
from tests.builders import MOE, TINY, engine_layout, make_facts, make_plan, replace_role, with_engine_pool, workload

QWEN = load_model("qwen2.5-7b")
MIXTURE = load_model("qwen3-30b-a3b")
LATENT = load_model("deepseek-v2-lite")


def job(shape: ModelShape, nodes: int = 1, trainer: str = "megatron-core@0.16") -> tuple[Facts, Plan]:
    facts = make_facts(
        "grpo",
        roles={"actor": shape},
        nodes=nodes,
        work=workload(64, 512, 512, minibatches=1),
        memory_bytes=2**45,
        device="h100-80gb-sxm",
        training=trainer,
        generation="vllm@0.32",
    )
    return facts, make_plan(facts, (("actor",),), (8 * nodes,))


def faults_of_engine(shape: ModelShape, dp: int, tp: int, pp: int = 1, **more: int) -> list[str]:
    facts, plan = job(shape, max(1, dp * tp * pp // 8))
    engine = engine_layout(facts, "actor", dp, 1, 1).model_copy(
        update={"tp": tp, "pp": pp, "kv_cache_bytes": 2**34, **more}
    )
    return [v.message for v in check_plan(replace_role(plan, "actor", generation=engine), facts)]


@pytest.mark.parametrize(
    ("shape", "degrees", "why"),
    [
        (TINY, {"dp": 4, "tp": 2, "attention_dp": 2}, "tiny is dense: its attention runs as 2 copies"),
        (TINY, {"dp": 4, "tp": 2, "attention_dp": 8}, "tiny is dense: its attention runs as 8 copies"),
        (TINY, {"dp": 4, "tp": 2, "ep": 2}, "tiny is dense: it has no experts to spread 2 ways"),
        (MIXTURE, {"dp": 2, "tp": 4, "ep": 8}, "experts spread 8 ways over 4 GPUs"),
        (MIXTURE, {"dp": 2, "tp": 4, "attention_dp": 8}, "8 copies of the attention on 4 GPUs"),
        (MIXTURE, {"dp": 1, "tp": 8, "ep": 3}, "experts spread 3 ways over 8 GPUs"),
        (MIXTURE, {"dp": 1, "tp": 8, "attention_dp": 3}, "3 copies of the attention on 8 GPUs"),
        (load_model(MOE), {"dp": 1, "tp": 8, "ep": 8}, "60 experts spread 8 ways"),
        (QWEN, {"dp": 1, "tp": 1, "pp": 8}, "8 stages leave the last one without any of 28 layers"),
        (QWEN, {"dp": 1, "tp": 1, "pp": 29}, "29 pipeline stages for 28 layers"),
        (QWEN, {"dp": 1, "tp": 8}, "cannot be split 8 ways"),
    ],
)
def test_engines_that_cannot_exist(shape: ModelShape, degrees: dict[str, int], why: str) -> None:
    found = faults_of_engine(shape, **degrees)
    assert any(why in message for message in found), found


@pytest.mark.parametrize(
    ("shape", "degrees"),
    [
        (TINY, {"dp": 4, "tp": 2}),
        (MIXTURE, {"dp": 1, "tp": 8, "ep": 8, "attention_dp": 8}),
        (MIXTURE, {"dp": 1, "tp": 8, "ep": 2, "attention_dp": 2}),
        (MIXTURE, {"dp": 1, "tp": 64, "ep": 64, "attention_dp": 64}),  # a GPU has all 32 heads and two whole experts
        (LATENT, {"dp": 2, "tp": 4, "ep": 4, "attention_dp": 4}),
        (QWEN, {"dp": 2, "tp": 1, "pp": 4}),
        (QWEN, {"dp": 1, "tp": 1, "pp": 7}),
    ],
)
def test_engines_that_can(shape: ModelShape, degrees: dict[str, int]) -> None:
    assert faults_of_engine(shape, **degrees) == []


def test_an_engine_that_cannot_exist_has_no_time() -> None:
    """On GPUs of its own or the trainer's: it was called faster than the best plan."""
    facts, _ = job(QWEN, 2)
    together = make_plan(facts, (("actor",),), (16,))
    for good in (together, with_engine_pool(make_plan(facts, (("actor",),), (8,)), 8)):
        engine = good.role("actor").generation
        assert engine is not None
        half = engine.model_copy(update={"tp": 2, "dp": engine.dp // 2})
        simulate(replace_role(good, "actor", generation=half), facts)
        broken = replace_role(good, "actor", generation=half.model_copy(update={"attention_dp": 8}))
        with pytest.raises(InfeasibleError, match=r"qwen2\.5-7b is dense: its attention runs as 8 copies"):
            simulate(broken, facts)


def trained(shape: ModelShape, trainer: str = "megatron-core@0.16", **degrees: int) -> list[str]:
    facts, plan = job(shape, 2, trainer)
    layout = plan.role("actor").training
    assert layout is not None
    zero = facts.training.zero_stages[-1]
    changed = layout.model_copy(update={"zero_stage": zero, **degrees})
    return [v.message for v in check_plan(replace_role(plan, "actor", training=changed), facts)]


def test_interleaving_needs_equal_chunks_and_whole_rounds_of_micro_batches() -> None:
    """64 samples on two ranks of four stages: 32 micro-batches of one, and 28 layers in stages of seven."""
    assert trained(QWEN, dp=2, pp=4, vpp=7) == []
    assert "4 stages x 2 chunks" in trained(QWEN, dp=2, pp=4, vpp=2)[0]
    assert "whole rounds" in trained(QWEN, dp=2, pp=4, vpp=7, micro_batch=16)[0]
    assert "interleaving needs stages" in trained(QWEN, dp=2, pp=1, vpp=7)[0]
    assert "runs no interleaved pipelines" in trained(QWEN, "fsdp@2.13", dp=2, pp=4, vpp=7)[0]


def test_trainers_spread_experts_over_ranks_that_they_divide() -> None:
    assert trained(MIXTURE, dp=8, ep=8) == []
    assert "expert parallel 3 does not divide 128 experts" in trained(MIXTURE, dp=8, ep=3)[0]
    assert "expert parallel 16 does not divide the 8 ranks" in trained(MIXTURE, dp=8, ep=16)[0]
    assert "qwen2.5-7b is dense: it has no experts" in trained(QWEN, dp=8, ep=2)[0]


def test_attention_copies_hold_whole_weights_and_experts_lie_once() -> None:
    """Eight copies on eight GPUs: each has the attention whole, and an eighth of the experts."""
    facts, plan = job(MIXTURE)
    engine = engine_layout(facts, "actor", 1, 8)

    def weights(copies: int) -> float:
        entry = replace_role(plan, "actor", generation=engine.model_copy(update={"attention_dp": copies})).role("actor")
        return float(
            role_memory(facts, "actor", layouts_of(entry)).transient["generate_sequences"]["generation weights"][0]
        )

    experts = MIXTURE.num_moe_layers * 128 * MIXTURE.expert_params
    others = MIXTURE.num_params - experts
    assert weights(1) == pytest.approx(2 * MIXTURE.num_params / 8)
    assert weights(8) == pytest.approx(2 * (others + experts / 8))


def test_a_dense_layer_of_a_mixture_stays_with_its_attention_copy() -> None:
    """Its width has to divide over the GPUs of a copy, not over all."""
    odd = replace(LATENT, ffn=LATENT.ffn + 2)
    assert faults_of_engine(odd, 1, 8) != []
    assert faults_of_engine(odd, 1, 8, ep=8, attention_dp=8) == []
