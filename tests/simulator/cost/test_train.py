"""Protects the price of a training call: the pipeline formula on cases worked out by hand, that it counts every epoch,
mini-batch and micro-batch, and what a trainer's build adds: interleaving, waiting ranks, number formats, eager kernels.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.models.catalogue import load_model
from profiles.records import Priced
from profiles.workload import LengthDistribution
from simulator.cost import (
    comms,
    compute,
    data_parallel,
    micro_batches,
    mixers,
    pipeline,
    stage_hops,
    train,
    trainer_layer,
)
from simulator.cost.call_cost import Cost
from simulator.cost.compute import Batch
from simulator.facts import Facts, Implementation
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import MOE, make_facts, workload
from tests.draws import draws

LLAMA = load_model("llama-2-7b")


def one(**degrees: object) -> Layouts:
    return Layouts.of([ParallelLayout.model_validate({"dp": 1, **degrees})])


def cost(facts: Facts, **degrees: object) -> float:
    return float(train.training_cost(facts, LLAMA, "lm", one(**degrees)).time.s[0])


def test_epochs_and_minibatches_multiply() -> None:
    once = cost(make_facts(work=workload(128, minibatches=1)), tp=8)
    four_epochs = cost(make_facts(work=workload(128, minibatches=1, epochs=4)), tp=8)
    eight_steps = cost(make_facts(work=workload(1024, minibatches=8)), tp=8)
    assert four_epochs == pytest.approx(4 * once)
    assert eight_steps == pytest.approx(8 * once)


def unit(seconds: float) -> Cost:
    return Cost.of_compute(Priced.of([seconds], 0))


@pytest.mark.parametrize(
    ("layers", "pp", "micro", "by_hand"),
    [
        (8, 1, 5, 5 * (8 * 1 + 3)),  # one stage: every micro-batch through everything
        (8, 4, 5, 4 * (2 * 1 + 3) + 8 + 3),  # the last stage with the head paces
        (8, 8, 1, 8 + 3),  # one micro-batch: once through
        (10, 4, 5, 4 * (1 * 1 + 3) + 10 + 3),  # stages of 3, 3, 3, 1: the last has one layer and the head
    ],
)
def test_pipeline_by_hand(layers: int, pp: int, micro: int, by_hand: float) -> None:
    """Layers of 1 s, a head of 3 s: (n - 1) x slowest stage + once through all."""
    facts, shape, layouts = make_facts(nodes=4), replace(LLAMA, num_layers=layers), one(pp=pp)
    zero = unit(0.0)
    one_pass = train.Pass(unit(1.0), zero, unit(3.0), zero)
    batch, _ = micro_batches.micro_batch(facts.workload, layouts, np.asarray([float(micro)]))
    found = train.pipeline_cost(facts, shape, layouts, batch, np.asarray([float(micro)]), one_pass)
    hop = stage_hops.point_to_point(facts, float(batch.tokens[0]) * shape.hidden * 2, False)
    hops = float(hop.s) * 2 * (micro + pp - 2) if pp > 1 else 0.0
    assert float(found.compute.s[0]) == pytest.approx(by_hand)
    assert float(found.time.s[0]) == pytest.approx(by_hand + hops)


def test_recomputation_costs_time_in_the_order_of_what_it_saves() -> None:
    facts = make_facts()
    none, selective, full = (cost(facts, tp=8, recompute=r) for r in ("none", "selective", "full"))
    assert none < selective < full < 1.45 * none


def test_an_engine_without_overlap_exposes_its_tensor_parallel_traffic() -> None:
    facts = make_facts()
    none, some, all_of_it = (replace(facts, training=replace(facts.training, overlap_tp=p)) for p in (0.0, 0.78, 1.0))
    assert cost(all_of_it, tp=8) < cost(some, tp=8) < cost(none, tp=8)
    assert cost(all_of_it, tp=1, dp=8) == cost(none, tp=1, dp=8)


def test_a_gathered_input_that_was_kept_is_gathered_no_second_time() -> None:
    facts = make_facts(training="megatron-core@0.6")
    facts = replace(facts, training=replace(facts.training, overlap_tp=0.0))
    kept = replace(facts, training=replace(facts.training, gathers_again=False))
    batch = Batch(np.asarray([4096.0]), np.asarray([4.0]), np.asarray([1024.0]))
    (_, again), (_, once) = (trainer_layer.layer_costs(f, LLAMA, one(tp=8), batch) for f in (facts, kept))
    gather = comms.strided(facts, "all_gather", 4096 * LLAMA.hidden * 2.0, np.asarray([8]), np.asarray([1]))
    assert (again.time.s - once.time.s)[0] == pytest.approx(2 * gather.s[0])


def test_gathers_along_the_sequence_are_copied_where_torch_gathers() -> None:
    facts = make_facts(training="megatron-core@0.6")
    copied = replace(facts, training=replace(facts.training, region_copies=1.0))
    batch = Batch(np.asarray([4096.0]), np.asarray([4.0]), np.asarray([1024.0]))
    state = facts.device.memory_bound(np.asarray([2 * 4096 * LLAMA.hidden * 2.0]), 0).s[0]

    def forward(of, tp):
        return trainer_layer.layer_costs(of, LLAMA, one(tp=tp), batch)[0].time.s[0]

    assert forward(copied, 8) - forward(facts, 8) == pytest.approx(4 * state)
    assert forward(copied, 1) == forward(facts, 1)
    asynchronous = [built(of, tensor_parallel_overlap=True) for of in (facts, copied)]
    assert forward(asynchronous[0], 8) == forward(asynchronous[1], 8)


def test_checkpoints_by_operation_gather_again() -> None:
    facts = built(make_facts(), selective_recompute="every-second-product")
    batch = Batch(np.asarray([4096.0]), np.asarray([4.0]), np.asarray([1024.0]))
    layout = one(tp=8, recompute="selective")
    again = trainer_layer.gathered_again(facts, LLAMA, layout, batch)
    assert again.time.s[0] > 0
    beside = trainer_layer.gathered_again(built(facts, tensor_parallel_overlap=True), LLAMA, layout, batch)
    assert beside.time.s[0] < again.time.s[0] / 7


def test_the_last_of_unbalanced_context_ranks_paces_attention() -> None:
    facts = make_facts()
    ordered = replace(facts, training=replace(facts.training, balances_context=False))
    batch = Batch(np.asarray([4096.0]), np.asarray([1.0]), np.asarray([4096.0]))
    both = [mixers.attention_forward(f, LLAMA, batch, np.asarray([1]), np.asarray([4])).s[0] for f in (facts, ordered)]
    assert both[1] == pytest.approx(1.75 * both[0])  # seven of the sixteen halves of blocks, where the mean is four
    assert mixers.busiest_share(ordered, np.asarray([1]))[0] == 1.0


def test_recomputing_some_layers_takes_the_share_of_recomputing_all() -> None:
    none, every = (cost(make_facts(), recompute=level, pp=2) for level in ("none", "full"))
    some = cost(built(make_facts(), recompute_layers=4), recompute="full", pp=2)
    assert some - none == pytest.approx((every - none) / 4)


def test_every_second_product_takes_longer_to_recompute_than_element_wise_work() -> None:
    small = cost(make_facts(), recompute="selective")
    products = cost(built(make_facts(), selective_recompute="every-second-product"), recompute="selective")
    assert small < products < cost(make_facts(), recompute="full")


def test_fsdp_moves_parameters_in_every_micro_batch() -> None:
    facts = make_facts(nodes=2, zero_stages=(3,), training="megatron-core@0.16")
    num, none = np.asarray([4.0]), unit(0.0)
    once = data_parallel.data_parallel_cost(facts, LLAMA, "lm", one(dp=16, zero_stage=1), num, none, none)
    every = data_parallel.data_parallel_cost(facts, LLAMA, "lm", one(dp=16, zero_stage=3), num, none, none)
    assert 4 * once.comm.s < every.comm.s < 8 * once.comm.s
    shown = replace(facts, implementation=Implementation(fsdp_exposure=1.0))
    assert cost(shown, dp=16, zero_stage=3) > cost(facts, dp=16, zero_stage=3)


def test_pretraining_text_in_an_update_doubles_its_micro_batches_and_not_its_optimizer_step() -> None:
    facts = make_facts()
    layouts = one(tp=8)
    alone, both = (train.training_cost(facts, LLAMA, "lm", layouts, rows).time.s[0] for rows in (1, 2))
    once = data_parallel.optimizer_time(facts, LLAMA, "lm", layouts).s[0] * facts.workload.minibatches
    assert both > 1.8 * alone - once
    assert both < 2.0 * alone - 0.5 * once


def test_a_critic_has_no_vocabulary_head() -> None:
    facts = make_facts()
    actor = train.training_cost(facts, LLAMA, "lm", one(tp=8)).time.s[0]
    critic = train.training_cost(facts, LLAMA, "scalar", one(tp=8)).time.s[0]
    assert 0.9 * actor < critic < actor


def test_model_flop_utilisation_is_possible() -> None:
    """7B on one A100 node, best layout: 6 x params x tokens above 30 % of the peak and below the sustained rate."""
    facts = make_facts()
    layouts = Layouts.of([ParallelLayout(dp=8 // t, tp=t, micro_batch=b) for t in (1, 2, 4, 8) for b in (1, 2, 4)])
    seconds = train.training_cost(facts, LLAMA, "lm", layouts).time.s.min()
    flop = 6 * LLAMA.num_params * facts.workload.tokens
    assert 0.30 * facts.device.spec.peak("bf16") < flop / seconds / 8 < facts.device.spec.sustained("bf16")


def test_experts_pay_for_their_exchange() -> None:
    facts, shape = make_facts("grpo", MOE), load_model(MOE)
    layouts = Layouts.of([ParallelLayout(dp=8), ParallelLayout(dp=8, ep=4)])
    costs = train.training_cost(facts, shape, "lm", layouts)
    assert costs.comm.s[1] > costs.comm.s[0]


def test_many_layouts_at_once_are_priced_as_one_by_one() -> None:
    facts = make_facts(nodes=2)
    records = [
        ParallelLayout(dp=2, tp=8),
        ParallelLayout(dp=2, tp=4, pp=2, micro_batch=4, recompute="full"),
        ParallelLayout(dp=16, zero_stage=3),
        ParallelLayout(dp=1, tp=2, pp=8, recompute="selective"),
    ]
    together = train.training_cost(facts, LLAMA, "lm", Layouts.of(records)).time.s
    alone = [train.training_cost(facts, LLAMA, "lm", Layouts.of([record])).time.s[0] for record in records]
    assert together == pytest.approx(alone, rel=1e-12)


def built(facts: Facts, **how: object) -> Facts:
    """The same job with its trainer built in another way."""
    return replace(facts, implementation=replace(facts.implementation, **how))


@pytest.mark.parametrize(
    ("vpp", "by_hand"), [(1, 5 * 5 + 11 - 5), (2, 5 * 5 + (11 - 5) / 2), (3, 5 * 5 + (11 - 5) / 3)]
)
def test_interleaving_divides_the_ramp_and_multiplies_the_hops(vpp: int, by_hand: float) -> None:
    """8 layers of 1 s and a head of 3 s on 4 stages: five micro-batches of 5 s at the last one, a ramp of 11 - 5 s."""
    facts, shape, layouts = make_facts(nodes=4), replace(LLAMA, num_layers=8), one(pp=4, vpp=vpp)
    zero, five = unit(0.0), np.asarray([5.0])
    batch, _ = micro_batches.micro_batch(facts.workload, layouts, five)
    one_pass = train.Pass(unit(1.0), zero, unit(3.0), zero)
    found = train.pipeline_cost(facts, shape, layouts, batch, five, one_pass)
    hops = (
        2
        * (5 * vpp + 4 - 2)
        * float(stage_hops.point_to_point(facts, float(batch.tokens[0]) * shape.hidden * 2, False).s)
    )
    assert float(found.compute.s[0]) == pytest.approx(by_hand)
    assert float(found.comm.s[0]) == pytest.approx(hops)
    assert float(found.time.s[0]) == pytest.approx(by_hand + hops)


def test_interleaving_changes_nothing_without_a_pipeline() -> None:
    facts = make_facts()
    assert cost(facts, tp=8, vpp=4) == cost(facts, tp=8)
    assert cost(facts, tp=2, pp=4, vpp=4, micro_batch=16) < cost(facts, tp=2, pp=4, micro_batch=16)


def test_the_wait_lengthens_the_passes_and_not_the_optimizer() -> None:
    facts = make_facts(
        work=workload(64, 100, LengthDistribution("lognormal", 1000.0, 100_000), minibatches=1),
        zero_stages=(0, 1, 2, 3),
    )
    at = {"dp": 8, "micro_batch": 2, "zero_stage": 3}
    layouts = one(**at)
    batch, num = micro_batches.micro_batch(facts.workload, layouts, np.asarray([8.0]))
    one_pass = train.one_pass(facts, LLAMA, "lm", layouts, batch)
    passes = train.pipeline_cost(facts, LLAMA, layouts, batch, num, one_pass).time.s[0]
    alone = replace(facts, implementation=Implementation(packed_tokens=10**9))  # packing leaves no wait
    assert pipeline.waiting(alone, layouts, batch, num).tolist() == [1.0]
    waiting = float(pipeline.waiting(facts, layouts, batch, num)[0])
    assert facts.training.overlap_dp == 0, "nothing of the gathers hides, whatever they run beside"
    rest = data_parallel.data_parallel_cost(facts, LLAMA, "lm", layouts, num, unit(0.0), unit(0.0)).time.s[0]
    rest += data_parallel.optimizer_time(facts, LLAMA, "lm", layouts).s[0]
    rest += data_parallel.accumulation_cost(facts, LLAMA, "lm", layouts, num).time.s[0]
    assert cost(facts, **at) == pytest.approx(waiting * passes + rest)


def test_the_training_dtype_reaches_the_step_and_only_its_linear_layers() -> None:
    facts = make_facts(device="h100-80gb-sxm", training="megatron-core@0.16", work=workload(64, minibatches=1))
    eight = built(facts, training_dtype="fp8")
    assert cost(eight, dp=8, micro_batch=8) < cost(facts, dp=8, micro_batch=8)
    batch, _ = micro_batches.micro_batch(facts.workload, one(dp=8, micro_batch=8), np.asarray([8.0]))
    passes = [train.one_pass(f, LLAMA, "lm", one(dp=8, micro_batch=8), batch) for f in (facts, eight)]
    assert passes[0].head_forward.time.s == passes[1].head_forward.time.s


def test_eager_kernels_are_slower_than_fused_ones() -> None:
    facts = make_facts()
    eager = built(facts, kernels="eager")
    assert cost(eager, tp=8) > cost(facts, tp=8)
    tokens, tp = np.asarray([4096.0]), np.asarray([1], dtype=np.int64)
    fused, apart = (float(compute.elementwise(f, LLAMA, tokens, tp).s[0]) for f in (facts, eager))
    extra = apart - fused
    assert fused < float(compute.elementwise(built(facts, kernels="fused-norms"), LLAMA, tokens, tp).s[0]) < apart
    layouts = one(micro_batch=2)
    batch = Batch(tokens, np.asarray([2.0]), np.asarray([2048.0]))
    costs = [trainer_layer.layer_costs(f, LLAMA, layouts, batch) for f in (facts, eager)]
    assert costs[1][0].time.s[0] - costs[0][0].time.s[0] == pytest.approx(extra)
    assert costs[1][1].time.s[0] - costs[0][1].time.s[0] == pytest.approx(2 * extra)


def test_the_fixed_time_of_a_step_is_paid_by_every_step() -> None:
    facts = make_facts(work=workload(1024, minibatches=8, epochs=2))
    slower = replace(facts, training=replace(facts.training, step_fixed_s=facts.training.step_fixed_s + 0.5))
    assert cost(slower, tp=8) - cost(facts, tp=8) == pytest.approx(16 * 0.5)


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("tokens", [1.0, 64.0, 8192.0])
def test_overlapped_tensor_parallelism_leaves_one_chunk(tp: int, tokens: float) -> None:
    """All but one of ``t`` chunks of the forward traffic hide behind the layer's compute, as far as that lasts."""
    facts = make_facts()
    batch = Batch(np.asarray([tokens]), np.asarray([1.0]), np.asarray([tokens]))
    plain, _ = trainer_layer.layer_costs(facts, LLAMA, one(tp=tp), batch)
    beside, _ = trainer_layer.layer_costs(built(facts, tensor_parallel_overlap=True), LLAMA, one(tp=tp), batch)
    compute_s, comm_s = float(plain.compute.s[0]), float(plain.comm.s[0])
    assert float(plain.exposed.s[0]) == pytest.approx(comm_s)
    assert float(beside.comm.s[0]) == pytest.approx(comm_s)
    assert float(beside.exposed.s[0]) == pytest.approx(comm_s / tp + max(comm_s * (1 - 1 / tp) - compute_s, 0.0))


@settings(max_examples=draws(25))
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2]),
    micro=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    model=st.sampled_from(["llama-2-7b", MOE]),
)
def test_overlapped_tensor_parallelism_is_never_slower(
    tp: int, pp: int, micro: int, recompute: str, model: str
) -> None:
    facts, shape = make_facts(model=model, nodes=2), load_model(model)
    tp = tp if model != MOE else min(tp, 4)
    layouts = one(tp=tp, pp=pp, micro_batch=micro, recompute=recompute)
    plain, beside = (
        train.training_cost(f, shape, "lm", layouts).time.s[0]
        for f in (facts, built(facts, tensor_parallel_overlap=True))
    )
    assert beside <= plain * (1 + 1e-12)
    assert bool(beside < plain * (1 - 1e-9)) is (tp > 1)
