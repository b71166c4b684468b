"""Protects the price of moving the actor's weights: the paper's Table 2 to the printed digit, and what the transition
costs beyond its bytes.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from profiles.errors import InputError
from profiles.models.catalogue import load_model
from simulator.cost import comms
from simulator.cost.engine_memory import generation_weight_bytes
from simulator.cost.handover import (
    conversion_bucket_bytes,
    export_time,
    named_gather_time,
    nests,
    num_tensors,
    receiving_bucket_bytes,
)
from simulator.cost.reshard import transition_cost, transition_peak_bytes, transition_volume_bytes
from simulator.cost.role_layouts import layouts_of
from simulator.cost.weight_sync import weight_sync_cost
from simulator.facts import Facts, Implementation
from simulator.plan.groups import METHODS, Degrees, transition_shares
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import ParallelLayout
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan

GB = 1e9
# The paper's Fig 14 at 128 GPUs: billions of parameters; training p, t; generation p_g, t_g; volumes in GB.
FIG_14 = [
    pytest.param(7, (1, 8), (1, 2), ("13.9", "12.2", "5.25"), id="7b"),
    pytest.param(13, (1, 8), (1, 4), ("25.8", "22.8", "3.25"), id="13b"),
    pytest.param(34, (4, 8), (1, 8), ("67.5", "65.9", "6.4"), id="34b"),
    pytest.param(70, (8, 8), (1, 8), ("139", "138", "15.3"), id="70b"),
]


@pytest.mark.parametrize(("billions", "training", "generation", "printed"), FIG_14)
def test_table_2_volumes_at_128_gpus(
    billions: int, training: tuple[int, int], generation: tuple[int, int], printed: tuple[str, ...]
) -> None:
    (p, t), (pg, tg) = training, generation
    weight = billions * 1e9 * 2
    for method, text in zip(("ds-chat", "hybridflow-v", "hybridflow"), printed, strict=True):
        volume = transition_volume_bytes(method, weight, p, t, 128 // (p * t), pg, tg) / GB
        digits = len(text.partition(".")[2])
        assert abs(volume - float(text)) <= 0.5 * 10**-digits + 1e-9, (method, volume)


@pytest.mark.parametrize(("billions", "training", "generation", "printed"), FIG_14)
def test_table_2_peak_and_redundancy(
    billions: int, training: tuple[int, int], generation: tuple[int, int], printed: tuple[str, ...]
) -> None:
    (p, t), (pg, tg), weight = training, generation, billions * 1e9 * 2
    d = 128 // (p * t)
    assert transition_peak_bytes("ds-chat", weight, pg, tg) == weight
    assert transition_peak_bytes("hybridflow-v", weight, pg, tg) == weight
    assert transition_peak_bytes("hybridflow", weight, pg, tg) == weight / (tg * pg)
    redundant = [transition_shares(method, Degrees(p, t, d, pg, tg)).redundant for method in METHODS]
    assert redundant == [0, Fraction(1, p * t), Fraction(1, 128)]


def test_table_2_by_its_other_form() -> None:
    """((d_g - 1) / (t p)) M: the volume is what the other ranks of the micro-DP group hold."""
    for p, t, pg, tg in [(1, 8, 1, 2), (4, 8, 1, 8), (8, 8, 2, 4), (2, 2, 2, 2)]:
        dg = p * t // (pg * tg)
        assert transition_volume_bytes("hybridflow", 1.0, p, t, 4, pg, tg) == pytest.approx((dg - 1) / (t * p))
    with pytest.raises(InputError, match="do not fill"):
        transition_volume_bytes("hybridflow", 1.0, 1, 4, 1, 1, 8)


def pair(
    dp: int, tp: int, pp: int, engine_tp: int, engine_pp: int = 1, zero: int = 1
) -> tuple[Layouts, GenerationLayouts]:
    training = Layouts.of([ParallelLayout(dp=dp, tp=tp, pp=pp, zero_stage=zero)])
    engine_dp = dp * tp * pp // (engine_tp * engine_pp)
    return training, GenerationLayouts(*np.asarray([[engine_dp], [engine_tp], [engine_pp], [64]]))


def seconds(model: str, dp: int, tp: int, pp: int, engine_tp: int, **more: int) -> float:
    facts = make_facts(model=model, nodes=max(1, dp * tp * pp // 8))
    return float(transition_cost(facts, load_model(model), *pair(dp, tp, pp, engine_tp, **more), "bf16").time.s[0])


def test_equal_layouts_cost_nothing_where_the_engine_uses_the_training_buffers() -> None:
    facts = make_facts(nodes=2)
    assert facts.generation.shares_weights
    assert seconds("llama-2-7b", 2, 8, 1, 8) == 0.0
    assert seconds("llama-2-7b", 2, 8, 1, 8, zero=3) > 0.0
    newer = make_facts(nodes=2, generation="vllm@0.32")
    assert not newer.generation.shares_weights
    assert float(transition_cost(newer, load_model("llama-2-7b"), *pair(2, 8, 1, 8), "bf16").time.s[0]) > 0.0


def test_fewer_ranks_per_replica_take_longer_since_each_fills_more_weights() -> None:
    times = [seconds("llama-2-7b", 2, 8, 1, tg) for tg in (8, 4, 2, 1)]
    assert times == sorted(times)
    assert len(set(times)) == 4


def test_nested_layouts_gather_less_than_others() -> None:
    training, engine = pair(1, 4, 4, 2)
    assert nests(training, engine).tolist() == [1.0]
    assert nests(*pair(4, 2, 2, 4)).tolist() == [0.0]
    facts, shape = make_facts(nodes=2), load_model("llama-2-7b")
    inside = transition_cost(facts, shape, *pair(2, 8, 1, 4), "bf16")  # micro-DP groups of 2 inside a node
    general = transition_cost(facts, shape, *pair(1, 2, 8, 4), "bf16")  # same shard, groups do not nest
    assert inside.comm.s[0] < general.comm.s[0]
    assert inside.compute.s[0] == general.compute.s[0]


@pytest.mark.parametrize(
    ("layouts", "ranks", "in_a_domain"),
    [
        ((2, 8, 1, 4, 1), 2, 2),  # nested: micro-DP groups of neighbours
        ((1, 4, 4, 2, 1), 8, 4),  # two blocks of two in each node of eight
        ((1, 4, 4, 2, 2), 4, 4),
        ((2, 2, 4, 4, 1), 8, 8),  # not nested: all of a replica
        ((1, 8, 4, 1, 2), 16, 8),  # one block a node
    ],
)
def test_who_gathers_a_generation_shard_by_hand(
    layouts: tuple[int, int, int, int, int], ranks: int, in_a_domain: int
) -> None:
    dp, tp, pp, engine_tp, engine_pp = layouts
    facts, shape = make_facts(nodes=max(1, dp * tp * pp // 8)), load_model("llama-2-7b")
    training, engine = pair(dp, tp, pp, engine_tp, engine_pp)
    shard = generation_weight_bytes(shape, engine, 2)
    expected = comms.collective(facts, "all_gather", shard, ranks, in_a_domain).s[0]
    assert transition_cost(facts, shape, training, engine, "bf16").comm.s[0] == pytest.approx(expected)


def test_weights_sharded_by_zero_are_gathered_from_every_replica() -> None:
    facts, shape = make_facts(nodes=4), load_model("llama-2-7b")
    for zero, ranks in ((1, 8), (3, 32)):
        training, engine = pair(4, 2, 4, 4, zero=zero)
        shard = generation_weight_bytes(shape, engine, 2)
        expected = comms.strided(facts, "all_gather", shard, ranks, 1).s[0]
        assert transition_cost(facts, shape, training, engine, "bf16").comm.s[0] == pytest.approx(expected)


def test_buckets_by_hand() -> None:
    """Llama-2 7B in two bytes: embeddings 32,000 x 4,096, gate and up 2 x 11,008 x 4,096; a bucket 2^26 elements."""
    facts, shape = make_facts(nodes=2), load_model("llama-2-7b")
    facts = replace(facts, generation=replace(facts.generation, shares_weights=False))
    embedding, gate_up, bucket = 32_000 * 4_096, 2 * 11_008 * 4_096, 1 << 26

    def elements(*layouts: int, **more: int) -> float:
        return float(conversion_bucket_bytes(facts, shape, *pair(*layouts, **more), "bf16")[0]) / 2

    assert elements(2, 8, 1, 1) == embedding  # gathered whole
    assert elements(2, 8, 1, 4) == bucket  # a quarter of it is less
    assert elements(1, 4, 4, 1) == 4 * gate_up  # the layers of four stages at once, embeddings apart
    assert elements(1, 4, 4, 2) == 2 * gate_up
    assert elements(1, 4, 4, 1, 2) == 2 * gate_up
    assert elements(2, 8, 1, 1, zero=3) == bucket  # not nested, so in pieces
    assert elements(4, 2, 2, 4) == bucket
    sharing = make_facts(nodes=2)
    assert float(conversion_bucket_bytes(sharing, shape, *pair(2, 8, 1, 8), "bf16")[0]) == 0.0
    assert receiving_bucket_bytes(shape, pair(2, 8, 1, 4)[1], "bf16").tolist() == [2 * 2 * embedding]
    small = load_model("qwen2.5-0.5b")
    largest = max(small.embedding_params, 2 * small.ffn * small.hidden) * 2
    assert receiving_bucket_bytes(small, pair(2, 8, 1, 4)[1], "bf16").tolist() == [2 * max(largest, 64 << 20)]
    toy = replace(small, vocab=2_000, num_layers=2)
    assert toy.num_params * 2 < 128 << 20
    assert receiving_bucket_bytes(toy, pair(2, 8, 1, 4)[1], "bf16").tolist() == [2 * min(toy.num_params * 2, 64 << 20)]


@pytest.mark.parametrize(
    ("model", "training", "engine_tp", "nodes", "measured"),
    [
        ("llama-2-7b", (8, 1), 2, 2, 2.8),
        ("llama-2-13b", (8, 1), 4, 4, 3.0),
        ("codellama-34b", (8, 4), 8, 4, 5.2),
        ("llama-2-70b", (8, 8), 8, 8, 10.0),
    ],
)
def test_regression_fig_14(model: str, training: tuple[int, int], engine_tp: int, nodes: int, measured: float) -> None:
    """Regression guard: within 40 % of the paper's transition times (the fit's own error, not a claim)."""
    tp, pp = training
    facts = make_facts(model=model, nodes=nodes)
    layouts = pair(nodes * 8 // (tp * pp), tp, pp, engine_tp)
    predicted = float(transition_cost(facts, load_model(model), *layouts, "bf16").time.s[0])
    assert predicted == pytest.approx(measured, rel=0.4)


def test_gathering_the_whole_model_is_slower_than_gathering_shards() -> None:
    """Table 2 in time: the strided method moves least, DeepSpeed-Chat's gather over all GPUs most."""
    facts, shape = make_facts(nodes=16), load_model("llama-2-13b")
    strided, consecutive, over_all = (
        transition_cost(facts, shape, *pair(16, 8, 1, 4), "bf16", method)
        for method in ("hybridflow", "hybridflow-v", "ds-chat")
    )
    assert strided.comm.s[0] < consecutive.comm.s[0] < over_all.comm.s[0]
    assert strided.time.s[0] < consecutive.time.s[0] < over_all.time.s[0]


def test_the_plans_method_reaches_its_timeline_and_its_memory() -> None:
    facts = make_facts(nodes=4)
    plan = make_plan(facts, (("actor",), ("critic",), ("reference",), ("reward",)), (8, 8, 8, 8), tp=8)
    other = plan.model_copy(update={"resharding": "ds-chat"})
    assert simulate(plan, facts).stages["transition"] == 0.0
    assert simulate(other, facts).stages["transition"] > 0.0
    shape = load_model("llama-2-7b")
    engine = layouts_of(plan.role("actor")).generation
    assert engine is not None
    shard = float(generation_weight_bytes(shape, engine, 2)[0])
    layers = shape.num_layers  # this engine gathers layer by layer: one is whole beside the others' shards
    by_layer = shard * (layers - 1) / layers + 2 * shape.num_params / layers
    peaks = [timeline.memory["A"] for timeline in (simulate(plan, facts), simulate(other, facts))]
    assert peaks[1].used_bytes >= peaks[0].used_bytes
    assert peaks[1].classes.get("gathered weights", 0) in (0, int(np.ceil(by_layer)))


@pytest.mark.parametrize(
    ("model", "tensors"),
    [
        ("llama-3.1-8b", 32 * (4 + 2 + 3) + 3),  # 291, as its index file lists
        ("llama-2-7b", 32 * (4 + 2 + 3) + 3),
        ("qwen2.5-7b", 28 * (4 + 3 + 2 + 3) + 3),  # biases on query, key and value
        ("qwen3-8b", 36 * (4 + 2 + 2 + 3) + 3),  # norms on query and key
        ("qwen3-30b-a3b", 48 * (4 + 2 + 2 + 1 + 128 * 3) + 3),  # 18867
        ("mixtral-8x7b-v0.1", 32 * (4 + 2 + 1 + 8 * 3) + 3),
        ("deepseek-v3", 61 * (7 + 2) + 3 * 3 + 58 * (1 + 1 + 256 * 3 + 3) + 3),  # a bias beside each router
    ],
)
def test_tensors_of_a_checkpoint(model: str, tensors: int) -> None:
    assert num_tensors(load_model(model)) == tensors


def test_tensors_as_published() -> None:
    assert [num_tensors(load_model(m)) for m in ("llama-3.1-8b", "qwen3-30b-a3b")] == [291, 18867]


@pytest.mark.parametrize(
    ("model", "tensors"),
    [
        ("llama-3.2-1b", 16 * (4 + 2 + 3) + 2),  # no head of its own
        ("deepseek-v2-lite", 27 * (5 + 2) + 3 + 26 * (1 + 64 * 3 + 3) + 3),  # queries without a latent and its norm
        ("qwen1.5-moe-a2.7b", 24 * (4 + 3 + 2 + 1 + 60 * 3 + 3 + 1) + 3),  # a gate beside the shared expert
    ],
)
def test_tensors_that_are_one_off(model: str, tensors: int) -> None:
    assert num_tensors(load_model(model)) == tensors


def modern(**how: object) -> Facts:
    facts = make_facts("grpo", "llama-3.1-8b", nodes=2, training="megatron-core@0.16", generation="vllm@0.32")
    return replace(facts, implementation=Implementation(**how))  # type: ignore[arg-type]


def transition(facts: Facts) -> float:
    shape = facts.roles["actor"].shape
    return float(transition_cost(facts, shape, *pair(2, 4, 2, 2), "bf16").time.s[0])


def test_handing_over_a_model_takes_host_time_per_tensor() -> None:
    facts, shape = modern(), load_model("llama-3.1-8b")
    assert facts.training.export_s_per_tensor > 0
    assert float(export_time(facts, shape).s) == pytest.approx(291 * facts.training.export_s_per_tensor)
    free = replace(facts, training=replace(facts.training, export_s_per_tensor=0.0, send_s_per_tensor=0.0))
    assert transition(facts) - transition(free) == pytest.approx(float(export_time(facts, shape).s))
    engine = GenerationLayouts(*np.asarray([[4], [2], [1], [64]]))
    synced = [float(weight_sync_cost(f, shape, [8], engine, "bf16").time.s[0]) for f in (facts, free)]
    assert synced[0] - synced[1] == pytest.approx(291 * facts.training.send_s_per_tensor)


def test_a_model_that_spans_nodes_goes_through_every_card_when_it_is_handed_over_by_name() -> None:
    """16 GPUs hold one model on two nodes: each takes the half that the other node has through its share of 25 GB/s."""
    facts, shape = modern(), load_model("llama-3.1-8b")
    across, inside = (Layouts.of([ParallelLayout(tp=t, pp=2, dp=16 // (2 * t))]) for t in (8, 4))
    whole = shape.num_params * 2.0
    by_hand = whole / 2 / (facts.group.inter_node_bytes_per_s * 0.85 / 8)
    mixture, spread = load_model("qwen3-30b-a3b"), Layouts.of([ParallelLayout(tp=2, pp=2, dp=4, ep=8)])
    assert float(named_gather_time(facts, mixture, spread, whole).s[0]) == pytest.approx(by_hand)  # 32, at most 16
    assert float(named_gather_time(facts, shape, spread, whole).s[0]) == 0.0  # experts of a dense model are none
    assert float(named_gather_time(facts, shape, across, whole).s[0]) == pytest.approx(by_hand)
    assert float(named_gather_time(facts, shape, inside, whole).s[0]) == 0.0


def test_an_engine_that_keeps_its_weights_asleep_copies_them_out_and_in() -> None:
    """Its shard, half of 8 B parameters in bf16, to pinned memory and back; a pool of its own never sleeps."""
    drops, keeps = modern(sleeping_engine="drops-weights"), modern(sleeping_engine="keeps-weights")
    shard = load_model("llama-3.1-8b").num_params * 2 / 2
    by_hand = 2 * float(keeps.device.host_copy(shard).s)
    assert transition(keeps) - transition(drops) == pytest.approx(by_hand)
    engine = GenerationLayouts(*np.asarray([[4], [2], [1], [64]]))
    shape = load_model("llama-3.1-8b")
    synced = [weight_sync_cost(f, shape, [8], engine, "bf16").time.s for f in (drops, keeps)]
    assert synced[0] == synced[1]


def test_an_engine_on_the_training_buffers_has_nothing_to_export_or_to_copy() -> None:
    facts = make_facts(nodes=2, training="megatron-core@0.16")
    facts = replace(facts, implementation=Implementation(sleeping_engine="keeps-weights"))
    assert facts.generation.shares_weights
    assert float(transition_cost(facts, load_model("llama-2-7b"), *pair(2, 8, 1, 8), "bf16").time.s[0]) == 0.0
