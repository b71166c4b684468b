"""Protects the price of a training call: the pipeline formula on cases worked out by hand, what hides behind what, and
that it counts every epoch, mini-batch and micro-batch.
"""

from dataclasses import replace

import numpy as np
import pytest

from profiles.catalogue import load_model
from profiles.records import Priced
from profiles.workload import LengthDistribution
from simulator import training
from simulator.cost import Cost
from simulator.facts import Facts, Implementation
from simulator.layouts import Layouts
from simulator.plan import ParallelLayout
from tests.builders import MOE, make_facts, workload

LLAMA = load_model("llama-2-7b")


def one(**degrees: object) -> Layouts:
    return Layouts.of([ParallelLayout.model_validate({"dp": 1, **degrees})])


def cost(facts: Facts, **degrees: object) -> float:
    return float(training.training_cost(facts, LLAMA, "lm", one(**degrees)).time.s[0])


def test_micro_batches_have_the_mean_number_of_tokens_without_padding() -> None:
    work = workload(128, 100, LengthDistribution.histogram((100, 300), (1.0, 1.0)), minibatches=1)
    batch, num = training.micro_batch(work, one(dp=4, micro_batch=8), np.asarray([32.0]))
    assert num.tolist() == [4.0]
    assert batch.tokens.tolist() == [8 * (100 + 200)]
    lengths = np.asarray([200.0, 400.0])
    assert batch.length == pytest.approx((lengths**2).sum() / lengths.sum())
    assert batch.sequences * batch.length == pytest.approx(batch.tokens)


def test_a_partial_last_micro_batch_counts_as_one_of_the_mean_size() -> None:
    work = workload(128, minibatches=1)
    batch, num = training.micro_batch(work, one(micro_batch=4), np.asarray([6.0]))
    assert num.tolist() == [2.0]
    assert batch.tokens.tolist() == [3 * 2048]


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
    one_pass = training.Pass(unit(1.0), zero, unit(3.0), zero)
    batch, _ = training.micro_batch(facts.workload, layouts, np.asarray([float(micro)]))
    found = training.pipeline_cost(facts, shape, layouts, batch, np.asarray([float(micro)]), one_pass)
    hops = float(training.hop(facts, shape, layouts, batch).s[0]) * 2 * (micro + pp - 2) if pp > 1 else 0.0
    assert float(found.compute.s[0]) == pytest.approx(by_hand)
    assert float(found.time.s[0]) == pytest.approx(by_hand + hops)


def test_recomputation_costs_time_in_the_order_of_what_it_saves() -> None:
    facts = make_facts()
    none, selective, full = (cost(facts, tp=8, recompute=r) for r in ("none", "selective", "full"))
    assert none < selective < full < 1.45 * none


def test_data_parallel_traffic_hides_behind_compute_unless_there_is_none_to_hide_behind() -> None:
    facts = make_facts(nodes=2)
    layouts = one(dp=2, tp=8)
    num = np.asarray([4.0])
    none, plenty = unit(0.0), unit(100.0)
    bare = training.data_parallel_cost(facts, LLAMA, "lm", layouts, num, none, none)
    beside = training.data_parallel_cost(facts, LLAMA, "lm", layouts, num, plenty, plenty)
    assert bare.time.s == pytest.approx(bare.comm.s)
    assert beside.comm.s == pytest.approx(bare.comm.s)
    assert beside.time.s == pytest.approx(bare.comm.s / 32), "only the first and last bucket, one layer of 32, shows"
    exposed = replace(facts, training=replace(facts.training, overlap_dp=0.0))
    assert training.data_parallel_cost(exposed, LLAMA, "lm", layouts, num, plenty, plenty).time.s == pytest.approx(
        bare.comm.s
    )


def test_fsdp_moves_parameters_in_every_micro_batch() -> None:
    facts = make_facts(nodes=2, zero_stages=(3,))
    num, none = np.asarray([4.0]), unit(0.0)
    once = training.data_parallel_cost(facts, LLAMA, "lm", one(dp=16, zero_stage=1), num, none, none)
    every = training.data_parallel_cost(facts, LLAMA, "lm", one(dp=16, zero_stage=3), num, none, none)
    assert 4 * once.comm.s < every.comm.s < 8 * once.comm.s
    shown = replace(facts, implementation=Implementation(fsdp_exposure=1.0))
    assert cost(shown, dp=16, zero_stage=3) > cost(facts, dp=16, zero_stage=3)


def test_the_optimizer_works_on_owned_parameters() -> None:
    facts = make_facts(nodes=2)
    whole, owned = (training.optimizer_time(facts, LLAMA, "lm", one(dp=8, zero_stage=z)).s[0] for z in (0, 1))
    launch = facts.device.memory_bound(0.0, 4).s
    assert (whole - launch) / (owned - launch) == pytest.approx(8)
    assert whole == pytest.approx(facts.device.memory_bound(LLAMA.num_params * 34, 4).s)


def test_a_critic_has_no_vocabulary_head() -> None:
    facts = make_facts()
    actor = training.training_cost(facts, LLAMA, "lm", one(tp=8)).time.s[0]
    critic = training.training_cost(facts, LLAMA, "scalar", one(tp=8)).time.s[0]
    assert 0.9 * actor < critic < actor


def test_model_flop_utilisation_is_possible() -> None:
    """7B on one A100 node, best layout: 6 x params x tokens above 30 % of the peak and below the sustained rate."""
    facts = make_facts()
    layouts = Layouts.of([ParallelLayout(dp=8 // t, tp=t, micro_batch=b) for t in (1, 2, 4, 8) for b in (1, 2, 4)])
    seconds = training.training_cost(facts, LLAMA, "lm", layouts).time.s.min()
    flop = 6 * LLAMA.num_params * facts.workload.tokens
    assert 0.30 * facts.device.spec.peak("bf16") < flop / seconds / 8 < facts.device.spec.sustained("bf16")


def test_experts_pay_for_their_exchange() -> None:
    facts, shape = make_facts("grpo", MOE), load_model(MOE)
    layouts = Layouts.of([ParallelLayout(dp=8), ParallelLayout(dp=8, ep=4)])
    costs = training.training_cost(facts, shape, "lm", layouts)
    assert costs.comm.s[1] > costs.comm.s[0]


def test_many_layouts_at_once_are_priced_as_one_by_one() -> None:
    facts = make_facts(nodes=2)
    records = [
        ParallelLayout(dp=2, tp=8), ParallelLayout(dp=2, tp=4, pp=2, micro_batch=4, recompute="full"),
        ParallelLayout(dp=16, zero_stage=3), ParallelLayout(dp=1, tp=2, pp=8, recompute="selective"),
    ]  # fmt: skip
    together = training.training_cost(facts, LLAMA, "lm", Layouts.of(records)).time.s
    alone = [training.training_cost(facts, LLAMA, "lm", Layouts.of([record])).time.s[0] for record in records]
    assert together == pytest.approx(alone, rel=1e-12)
