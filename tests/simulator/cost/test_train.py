"""Protects the price of a training call: the pipeline formula on cases worked out by hand, what hides behind what,
that it counts every epoch, mini-batch and micro-batch, and what each way to build a trainer adds: interleaving,
packing, ranks that wait for the slowest, adapters, FP8, eager kernels and FSDP's copies.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.models.catalogue import load_model
from profiles.records import Priced
from profiles.workload import LengthDistribution
from simulator.cost import comms, compute, memory, train
from simulator.cost.call_cost import Cost
from simulator.cost.compute import Batch
from simulator.facts import Facts, Implementation
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import MOE, make_facts, workload

LLAMA = load_model("llama-2-7b")


def one(**degrees: object) -> Layouts:
    return Layouts.of([ParallelLayout.model_validate({"dp": 1, **degrees})])


def cost(facts: Facts, **degrees: object) -> float:
    return float(train.training_cost(facts, LLAMA, "lm", one(**degrees)).time.s[0])


def test_micro_batches_have_the_mean_number_of_tokens_without_padding() -> None:
    work = workload(128, 100, LengthDistribution.histogram((100, 300), (1.0, 1.0)), minibatches=1)
    batch, num = train.micro_batch(work, one(dp=4, micro_batch=8), np.asarray([32.0]))
    assert num.tolist() == [4.0]
    assert batch.tokens.tolist() == [8 * (100 + 200)]
    lengths = np.asarray([200.0, 400.0])
    assert batch.length == pytest.approx((lengths**2).sum() / lengths.sum())
    assert batch.sequences * batch.length == pytest.approx(batch.tokens)


def test_a_partial_last_micro_batch_counts_as_one_of_the_mean_size() -> None:
    work = workload(128, minibatches=1)
    batch, num = train.micro_batch(work, one(micro_batch=4), np.asarray([6.0]))
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
    one_pass = train.Pass(unit(1.0), zero, unit(3.0), zero)
    batch, _ = train.micro_batch(facts.workload, layouts, np.asarray([float(micro)]))
    found = train.pipeline_cost(facts, shape, layouts, batch, np.asarray([float(micro)]), one_pass)
    hop = comms.point_to_point(facts, float(batch.tokens[0]) * shape.hidden * 2, False)
    hops = float(hop.s) * 2 * (micro + pp - 2) if pp > 1 else 0.0
    assert float(found.compute.s[0]) == pytest.approx(by_hand)
    assert float(found.time.s[0]) == pytest.approx(by_hand + hops)


def test_recomputation_costs_time_in_the_order_of_what_it_saves() -> None:
    facts = make_facts()
    none, selective, full = (cost(facts, tp=8, recompute=r) for r in ("none", "selective", "full"))
    assert none < selective < full < 1.45 * none


def test_data_parallel_traffic_hides_behind_compute_unless_there_is_none_to_hide_behind() -> None:
    facts = make_facts(nodes=2, training="megatron-core@0.16")
    layouts = one(dp=2, tp=8)
    num = np.asarray([4.0])
    none, plenty = unit(0.0), unit(100.0)
    bare = train.data_parallel_cost(facts, LLAMA, "lm", layouts, num, none, none)
    beside = train.data_parallel_cost(facts, LLAMA, "lm", layouts, num, plenty, plenty)
    assert bare.time.s == pytest.approx(bare.comm.s)
    assert beside.comm.s == pytest.approx(bare.comm.s)
    assert beside.time.s == pytest.approx(bare.comm.s / 32), "only the first and last bucket, one layer of 32, shows"
    exposed = replace(facts, training=replace(facts.training, overlap_dp=0.0))
    assert train.data_parallel_cost(exposed, LLAMA, "lm", layouts, num, plenty, plenty).time.s == pytest.approx(
        bare.comm.s
    )


def test_an_engine_without_overlap_exposes_its_tensor_parallel_traffic() -> None:
    facts = make_facts()
    assert not facts.training.overlap_tp
    beside = replace(facts, training=replace(facts.training, overlap_tp=1.0))
    assert cost(beside, tp=8) < cost(facts, tp=8)
    assert cost(beside, tp=1, dp=8) == cost(facts, tp=1, dp=8)


def test_fsdp_moves_parameters_in_every_micro_batch() -> None:
    facts = make_facts(nodes=2, zero_stages=(3,), training="megatron-core@0.16")
    num, none = np.asarray([4.0]), unit(0.0)
    once = train.data_parallel_cost(facts, LLAMA, "lm", one(dp=16, zero_stage=1), num, none, none)
    every = train.data_parallel_cost(facts, LLAMA, "lm", one(dp=16, zero_stage=3), num, none, none)
    assert 4 * once.comm.s < every.comm.s < 8 * once.comm.s
    shown = replace(facts, implementation=Implementation(fsdp_exposure=1.0))
    assert cost(shown, dp=16, zero_stage=3) > cost(facts, dp=16, zero_stage=3)


def test_the_optimizer_works_on_owned_parameters() -> None:
    facts = make_facts(nodes=2)
    whole, owned = (train.optimizer_time(facts, LLAMA, "lm", one(dp=8, zero_stage=z)).s[0] for z in (0, 1))
    launch = facts.device.memory_bound(0.0, 4).s
    assert (whole - launch) / (owned - launch) == pytest.approx(8)
    assert whole == pytest.approx(facts.device.memory_bound(LLAMA.num_params * 34, 4).s)


def test_pretraining_text_in_an_update_doubles_its_micro_batches_and_not_its_optimizer_step() -> None:
    facts = make_facts()
    layouts = one(tp=8)
    alone, both = (train.training_cost(facts, LLAMA, "lm", layouts, rows).time.s[0] for rows in (1, 2))
    once = train.optimizer_time(facts, LLAMA, "lm", layouts).s[0] * facts.workload.minibatches
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
    batch, _ = train.micro_batch(facts.workload, layouts, five)
    one_pass = train.Pass(unit(1.0), zero, unit(3.0), zero)
    found = train.pipeline_cost(facts, shape, layouts, batch, five, one_pass)
    hops = (
        2 * (5 * vpp + 4 - 2) * float(comms.point_to_point(facts, float(batch.tokens[0]) * shape.hidden * 2, False).s)
    )
    assert float(found.compute.s[0]) == pytest.approx(by_hand)
    assert float(found.comm.s[0]) == pytest.approx(hops)
    assert float(found.time.s[0]) == pytest.approx(by_hand + hops)


def test_interleaving_changes_nothing_without_a_pipeline() -> None:
    facts = make_facts()
    assert cost(facts, tp=8, vpp=4) == cost(facts, tp=8)
    assert cost(facts, tp=2, pp=4, vpp=4, micro_batch=16) < cost(facts, tp=2, pp=4, micro_batch=16)


def packs_by_hand(lengths: list[float], capacity: float) -> int:
    """First fit decreasing, written another way: each pack is the list of what it holds."""
    packs: list[list[float]] = []
    for length in sorted(lengths)[::-1]:
        for pack in packs:
            if sum(pack) + length <= capacity:
                pack.append(length)
                break
        else:
            packs.append([length])
    return len(packs)


@settings(max_examples=20)
@given(
    prompt=st.integers(1, 600),
    capacity=st.integers(600, 5000),
    lengths=st.lists(st.integers(1, 4000), min_size=1, max_size=6, unique=True),
)
def test_packs_are_those_of_first_fit_decreasing(prompt: int, capacity: int, lengths: list[int]) -> None:
    response = LengthDistribution.histogram(tuple(lengths), (1.0,) * len(lengths))
    work = workload(64, prompt, response, minibatches=1)
    samples = train.sample_lengths(work).tolist()
    found = train.packs_per_sample(work, capacity) * train.NUM_LENGTHS
    assert found == packs_by_hand(samples, capacity)
    assert found >= np.sum(np.minimum(samples, capacity)) / capacity - 1e-9, "no pack is fuller than full"
    assert found <= len(samples)


@pytest.mark.parametrize(
    ("capacity", "packs"),
    [
        (300, 256 + 256),  # the long ones do not fit and have packs of their own
        (400, 256 + 128),  # a long one alone, two short ones together
        (600, 256),  # one of each
        (800, 128 + 64),  # two long ones, four short ones
        (1200, 86 + 42),  # three long ones; the last one, alone, takes four short ones, the rest go six by six
    ],
)
def test_packs_of_two_lengths_by_hand(capacity: int, packs: int) -> None:
    """Of 512 samples half have 200 tokens and half 400."""
    work = workload(64, 100, LengthDistribution.histogram((100, 300), (1.0, 1.0)), minibatches=1)
    assert train.packs_per_sample(work, capacity) == packs / 512


def test_micro_batches_hold_packs() -> None:
    """64 samples of 600 tokens, three to a pack of 2000: 21.4 packs are 22, in micro-batches of 4 they are 6."""
    work = workload(64, 100, 500, minibatches=1)
    assert train.packs_per_sample(work, 2000) == pytest.approx(171 / 512)
    batch, num = train.micro_batch(work, one(micro_batch=4), np.asarray([64.0]), 2000)
    assert num.tolist() == [6.0]
    assert batch.tokens == pytest.approx(64 * 600 / 6)
    assert batch.length.tolist() == [600.0], "attention does not cross the samples of a pack"


def lengths_of(cv: str) -> LengthDistribution:
    return LengthDistribution("lognormal", 1000.0, 100_000) if cv == "wide" else LengthDistribution.fixed(1000)


def fullest(facts: Facts, sequences: float = 1.0, num: float = 1.0, **degrees: object) -> float:
    """Tokens of the fullest rank over the mean, for ``num`` micro-batches of ``sequences`` samples."""
    tokens = np.asarray([sequences * facts.workload.trained_tokens_per_sample])
    batch = Batch(tokens, np.asarray([sequences]), tokens / sequences)
    return float(train.waiting(facts, one(**degrees), batch, np.asarray([num]))[0])


def test_ranks_wait_only_for_lengths_that_differ() -> None:
    wide, fixed = (make_facts(work=workload(1024, 100, lengths_of(k))) for k in ("wide", "fixed"))
    assert fullest(wide, dp=8, zero_stage=3) > 1.2
    assert fullest(fixed, dp=8, zero_stage=3) == 1.0
    assert fullest(wide, dp=1, zero_stage=3) == 1.0
    assert fullest(built(wide, packed_tokens=4096), dp=8, zero_stage=3) == 1.0


def test_the_wait_grows_with_the_ranks_and_shrinks_with_what_they_average_over() -> None:
    facts = make_facts(work=workload(1024, 100, lengths_of("wide")))
    by_ranks = [fullest(facts, dp=d, zero_stage=3) for d in (1, 2, 4, 8, 64)]
    assert by_ranks == sorted(set(by_ranks))
    by_size = [fullest(facts, n, dp=8, zero_stage=3) for n in (1.0, 4.0, 16.0)]
    assert by_size[0] - 1 == pytest.approx(2 * (by_size[1] - 1)) == pytest.approx(4 * (by_size[2] - 1))


def test_fsdp_waits_in_every_micro_batch_and_others_once_per_step() -> None:
    facts = make_facts(work=workload(1024, 100, lengths_of("wide")))
    assert fullest(facts, 2.0, 8.0, dp=8, zero_stage=3) == fullest(facts, 2.0, 1.0, dp=8, zero_stage=3)
    assert fullest(facts, 2.0, 8.0, dp=8, zero_stage=1) == fullest(facts, 16.0, 1.0, dp=8, zero_stage=1)
    assert fullest(facts, 2.0, 8.0, dp=8, zero_stage=1) < fullest(facts, 2.0, 8.0, dp=8, zero_stage=3)


@pytest.mark.parametrize(("ranks", "sequences"), [(4, 8), (8, 16), (32, 32)])
def test_the_wait_is_that_of_drawn_lengths(ranks: int, sequences: int) -> None:
    """Monte Carlo: 4000 times the largest of ``ranks`` sums of lognormal lengths, which are a little skewed: 6 %."""
    facts = make_facts(work=workload(1024, 100, lengths_of("wide")))
    lengths = 100 + facts.workload.response.quantile(
        np.random.default_rng(7).random((4000, ranks, sequences)).clip(1e-9, 1 - 1e-9)
    )
    drawn = (lengths.sum(axis=2).max(axis=1) / (lengths.mean() * sequences)).mean()
    assert fullest(facts, float(sequences), dp=ranks, zero_stage=3) == pytest.approx(drawn, rel=0.06)


def test_the_wait_lengthens_the_passes_and_not_the_optimizer() -> None:
    facts = make_facts(work=workload(64, 100, lengths_of("wide"), minibatches=1), zero_stages=(0, 1, 2, 3))
    at = {"dp": 8, "micro_batch": 2, "zero_stage": 3}
    layouts = one(**at)
    batch, num = train.micro_batch(facts.workload, layouts, np.asarray([8.0]))
    one_pass = train.one_pass(facts, LLAMA, "lm", layouts, batch)
    passes = train.pipeline_cost(facts, LLAMA, layouts, batch, num, one_pass).time.s[0]
    alone = replace(facts, implementation=Implementation(packed_tokens=10**9))  # packing leaves no wait
    assert train.waiting(alone, layouts, batch, num).tolist() == [1.0]
    waiting = float(train.waiting(facts, layouts, batch, num)[0])
    assert facts.training.overlap_dp == 0, "nothing of the gathers hides, whatever they run beside"
    rest = train.data_parallel_cost(facts, LLAMA, "lm", layouts, num, unit(0.0), unit(0.0)).time.s[0]
    rest += train.optimizer_time(facts, LLAMA, "lm", layouts).s[0]
    assert cost(facts, **at) == pytest.approx(waiting * passes + rest)


def test_adapters_have_no_weight_gradients_of_the_base_and_their_own_traffic() -> None:
    """Forward: read the input (k), write the adapter's output, read and write the sum (3 n). Backward: 4 k + 2 n."""
    facts, rows = make_facts(device="h100-80gb-sxm", training="megatron-core@0.16"), np.asarray([8192.0])
    gemms = [(np.asarray([6144.0]), np.asarray([4096.0])), (np.asarray([4096.0]), np.asarray([14336.0]))]
    whole = compute.linear_training(facts, rows, gemms, "bf16", sustained=True)
    lora = compute.linear_training(built(facts, lora_rank=16), rows, gemms, "bf16", sustained=True)
    n, k = 6144 + 4096, 4096 + 14336
    forward = facts.device.memory_bound(8192 * (k + 3 * n) * 2.0, 6)
    backward = facts.device.memory_bound(8192 * (4 * k + 2 * n) * 2.0, 12)
    assert whole[2].s[0] > 0
    assert lora[2].s.tolist() == [0.0]
    assert lora[0].s[0] - whole[0].s[0] == pytest.approx(float(forward.s))
    assert lora[1].s[0] - whole[1].s[0] == pytest.approx(float(backward.s))


def test_fp8_pays_for_quantising_its_operands() -> None:
    """Read bf16, write FP8 twice (once transposed): 4 bytes per element of activations and weights, then gradients."""
    facts, rows = make_facts(device="h100-80gb-sxm", training="megatron-core@0.16"), np.asarray([8192.0])
    gemms = [(np.asarray([6144.0]), np.asarray([4096.0])), (np.asarray([4096.0]), np.asarray([14336.0]))]
    forward, inputs, weights = compute.linear_training(facts, rows, gemms, "fp8", sustained=True)
    bare = compute.run_gemms(facts, rows, gemms, "fp8", sustained=True)
    bare_inputs, bare_weights = compute.run_gemms_backward(facts, rows, gemms, "fp8")
    operands = 8192 * (4096 + 14336) + 6144 * 4096 + 4096 * 14336
    assert forward.s[0] - bare.s[0] == pytest.approx(float(facts.device.memory_bound(4.0 * operands, 4).s))
    gradients = 4.0 * 8192 * (6144 + 4096)
    assert inputs.s[0] - bare_inputs.s[0] == pytest.approx(float(facts.device.memory_bound(gradients, 2).s))
    assert weights.s == pytest.approx(bare_weights.s)
    plain = compute.linear_training(facts, rows, gemms, "bf16", sustained=True)
    assert sum(x.s[0] for x in (forward, inputs, weights)) < sum(x.s[0] for x in plain), "large GEMMs still gain"


def test_the_training_dtype_reaches_the_step_and_only_its_linear_layers() -> None:
    facts = make_facts(device="h100-80gb-sxm", training="megatron-core@0.16", work=workload(64, minibatches=1))
    eight = built(facts, training_dtype="fp8")
    assert cost(eight, dp=8, micro_batch=8) < cost(facts, dp=8, micro_batch=8)
    batch, _ = train.micro_batch(facts.workload, one(dp=8, micro_batch=8), np.asarray([8.0]))
    passes = [train.one_pass(f, LLAMA, "lm", one(dp=8, micro_batch=8), batch) for f in (facts, eight)]
    assert passes[0].head_forward.time.s == passes[1].head_forward.time.s


def test_eager_kernels_are_slower_than_fused_ones() -> None:
    facts = make_facts()
    eager = built(facts, kernels="eager")
    assert cost(eager, tp=8) > cost(facts, tp=8)
    tokens, tp = np.asarray([4096.0]), np.asarray([1], dtype=np.int64)
    fused, apart = (float(compute.elementwise(f, LLAMA, tokens, tp).s[0]) for f in (facts, eager))
    extra = apart - fused
    layouts = one(micro_batch=2)
    batch = Batch(tokens, np.asarray([2.0]), np.asarray([2048.0]))
    costs = [train.layer_costs(f, LLAMA, layouts, batch) for f in (facts, eager)]
    assert costs[1][0].time.s[0] - costs[0][0].time.s[0] == pytest.approx(extra)
    assert costs[1][1].time.s[0] - costs[0][1].time.s[0] == pytest.approx(2 * extra)


def fsdp(**how: object) -> Facts:
    return built(make_facts(nodes=2, device="h100-80gb-sxm", training="fsdp@2.13"), **how)


def data_parallel(facts: Facts, compute_s: float, num: float = 4.0, **degrees: object) -> Cost:
    work = unit(compute_s)
    return train.data_parallel_cost(facts, LLAMA, "lm", one(**degrees), np.asarray([num]), work, work)


def test_exposure_shows_the_forward_gathers_and_nothing_else() -> None:
    """Beside plenty of compute one layer of 32 shows; exposure shows the rest of the forward gathers."""
    hidden, half, shown = (data_parallel(fsdp(fsdp_exposure=e), 100.0, dp=16, zero_stage=3) for e in (0.0, 0.5, 1.0))
    whole = float(data_parallel(fsdp(), 0.0, dp=16, zero_stage=3).comm.s[0])  # 4 x (2 gathers + 1 scatter)
    adapters = data_parallel(fsdp(lora_rank=1), 0.0, dp=16, zero_stage=3)  # the scatter all but gone
    assert shown.comm.s == hidden.comm.s
    gathers = 4.0 * LLAMA.num_params * 2.0  # bytes of the gathers, bf16, of one pass each
    scatters = 4.0 * LLAMA.num_params * 4.0
    gather = whole * gathers / (2 * gathers + scatters)  # the network is the same for both
    assert float(adapters.comm.s[0]) == pytest.approx(2 * gather, rel=0.01)
    assert float(hidden.exposed.s[0]) == pytest.approx(whole / 32)
    assert float(shown.exposed.s[0] - hidden.exposed.s[0]) == pytest.approx(gather * 31 / 32, rel=1e-3)
    assert float(half.exposed.s[0] - hidden.exposed.s[0]) == pytest.approx(gather * 31 / 64, rel=1e-3)


def test_exposure_is_none_of_the_business_of_other_stages() -> None:
    hidden, shown = (data_parallel(fsdp(fsdp_exposure=e), 100.0, dp=16, zero_stage=1) for e in (0.0, 1.0))
    assert hidden.time.s == shown.time.s


def test_copies_of_fsdp_run_on_the_compute_stream_in_every_micro_batch() -> None:
    """Two gathers of 4 bytes per parameter and a scatter of 6, from the engine's facts, over 4 micro-batches."""
    facts = fsdp()
    found = data_parallel(facts, 0.0, dp=16, zero_stage=3)
    by_hand = 4 * float(facts.device.memory_bound(LLAMA.num_params * (2 * 4 + 6), 0).s)
    assert float(found.compute.s[0]) == pytest.approx(by_hand)
    assert data_parallel(facts, 0.0, dp=16, zero_stage=1).compute.s.tolist() == [0.0]


def test_frozen_weights_are_gathered_and_only_adapters_are_scattered_and_stepped() -> None:
    facts, lora = fsdp(), fsdp(lora_rank=16)
    layouts = one(dp=16, zero_stage=1)
    adapters = float(memory.adapter_params(LLAMA, 16, layouts)[0])
    assert adapters < 0.01 * LLAMA.num_params
    assert train.trained_params(lora, LLAMA, "lm", layouts).tolist() == [adapters]
    assert train.trained_params(facts, LLAMA, "lm", layouts).tolist() == [LLAMA.num_params]
    none = [float(data_parallel(f, 0.0, dp=16, zero_stage=1).comm.s[0]) for f in (facts, lora)]
    latency = 15 * 1e-3  # generous for the hops of a ring
    assert none[1] == pytest.approx(none[0] * (2 + 4 * adapters / LLAMA.num_params) / 6, abs=latency)
    owned = train.optimizer_time(lora, LLAMA, "lm", layouts).s[0]
    assert owned == pytest.approx(float(facts.device.memory_bound(adapters / 16 * 34, 4).s))


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
    plain, _ = train.layer_costs(facts, LLAMA, one(tp=tp), batch)
    beside, _ = train.layer_costs(built(facts, tensor_parallel_overlap=True), LLAMA, one(tp=tp), batch)
    compute_s, comm_s = float(plain.compute.s[0]), float(plain.comm.s[0])
    assert float(plain.exposed.s[0]) == pytest.approx(comm_s)
    assert float(beside.comm.s[0]) == pytest.approx(comm_s)
    assert float(beside.exposed.s[0]) == pytest.approx(comm_s / tp + max(comm_s * (1 - 1 / tp) - compute_s, 0.0))


@settings(max_examples=25)
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
