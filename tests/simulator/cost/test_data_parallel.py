"""Protects what data-parallel ranks do once a step: traffic and what hides it, FSDP's copies, the optimizer."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from profiles.records import Priced
from simulator.cost import data_parallel, parameters
from simulator.cost.call_cost import Cost
from simulator.facts import Facts
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import make_facts

LLAMA = load_model("llama-2-7b")


def one(**degrees: object) -> Layouts:
    return Layouts.of([ParallelLayout.model_validate({"dp": 1, **degrees})])


def unit(seconds: float) -> Cost:
    return Cost.of_compute(Priced.of([seconds], 0))


def built(facts: Facts, **how: object) -> Facts:
    """The same job with its trainer built in another way."""
    return replace(facts, implementation=replace(facts.implementation, **how))


def fsdp(**how: object) -> Facts:
    return built(make_facts(nodes=2, device="h100-80gb-sxm", training="fsdp@2.13"), **how)


def reduced(facts: Facts, compute_s: float, num: float = 4.0, **degrees: object) -> Cost:
    work = unit(compute_s)
    return data_parallel.data_parallel_cost(facts, LLAMA, "lm", one(**degrees), np.asarray([num]), work, work)


def test_data_parallel_traffic_hides_behind_compute_unless_there_is_none_to_hide_behind() -> None:
    facts = make_facts(nodes=2, training="megatron-core@0.16")
    layouts = one(dp=2, tp=8)
    num = np.asarray([4.0])
    none, plenty = unit(0.0), unit(100.0)
    bare = data_parallel.data_parallel_cost(facts, LLAMA, "lm", layouts, num, none, none)
    beside = data_parallel.data_parallel_cost(facts, LLAMA, "lm", layouts, num, plenty, plenty)
    assert bare.time.s == pytest.approx(bare.comm.s)
    assert beside.comm.s == pytest.approx(bare.comm.s)
    assert beside.time.s == pytest.approx(bare.comm.s / 32), "only the first and last bucket, one layer of 32, shows"
    exposed = replace(facts, training=replace(facts.training, overlap_dp=0.0))
    assert data_parallel.data_parallel_cost(exposed, LLAMA, "lm", layouts, num, plenty, plenty).time.s == pytest.approx(
        bare.comm.s
    )


def test_the_optimizer_works_on_owned_parameters() -> None:
    facts = make_facts(nodes=2)
    whole, owned = (data_parallel.optimizer_time(facts, LLAMA, "lm", one(dp=8, zero_stage=z)).s[0] for z in (0, 1))
    launch = facts.device.memory_bound(0.0, 4).s
    assert (whole - launch) / (owned - launch) == pytest.approx(8)
    assert whole == pytest.approx(facts.device.memory_bound(LLAMA.num_params * 34, 4).s)


def test_exposure_shows_the_forward_gathers_and_nothing_else() -> None:
    """Beside plenty of compute one layer of 32 shows; exposure shows the rest of the forward gathers."""
    hidden, half, shown = (reduced(fsdp(fsdp_exposure=e), 100.0, dp=16, zero_stage=3) for e in (0.0, 0.5, 1.0))
    whole = float(reduced(fsdp(), 0.0, dp=16, zero_stage=3).comm.s[0])  # 4 x (2 gathers + 1 scatter)
    adapters = reduced(fsdp(lora_rank=1), 0.0, dp=16, zero_stage=3)  # the scatter all but gone
    assert shown.comm.s == hidden.comm.s
    gathers = 4.0 * LLAMA.num_params * 2.0  # bytes of the gathers, bf16, of one pass each
    scatters = 4.0 * LLAMA.num_params * 4.0
    gather = whole * gathers / (2 * gathers + scatters)  # the network is the same for both
    assert float(adapters.comm.s[0]) == pytest.approx(2 * gather, rel=0.01)
    assert float(hidden.exposed.s[0]) == pytest.approx(whole / 32)
    assert float(shown.exposed.s[0] - hidden.exposed.s[0]) == pytest.approx(gather * 31 / 32, rel=1e-3)
    assert float(half.exposed.s[0] - hidden.exposed.s[0]) == pytest.approx(gather * 31 / 64, rel=1e-3)


def test_exposure_is_none_of_the_business_of_other_stages() -> None:
    hidden, shown = (reduced(fsdp(fsdp_exposure=e), 100.0, dp=16, zero_stage=1) for e in (0.0, 1.0))
    assert hidden.time.s == shown.time.s


def test_copies_of_fsdp_run_on_the_compute_stream_in_every_micro_batch() -> None:
    """Two gathers of 4 bytes per parameter and a scatter of 6, from the engine's facts, over 4 micro-batches."""
    facts = fsdp()
    found = reduced(facts, 0.0, dp=16, zero_stage=3)
    by_hand = 4 * float(facts.device.memory_bound(LLAMA.num_params * (2 * 4 + 6), 0).s)
    assert float(found.compute.s[0]) == pytest.approx(by_hand)
    assert reduced(facts, 0.0, dp=16, zero_stage=1).compute.s.tolist() == [0.0]


def test_frozen_weights_are_gathered_and_only_adapters_are_scattered_and_stepped() -> None:
    facts, lora = fsdp(), fsdp(lora_rank=16)
    layouts = one(dp=16, zero_stage=1)
    adapters = float(parameters.adapter_params(LLAMA, lora.implementation, False, layouts)[0])
    assert adapters < 0.01 * LLAMA.num_params
    assert data_parallel.trained_params(lora, LLAMA, "lm", layouts).tolist() == [adapters]
    assert data_parallel.trained_params(facts, LLAMA, "lm", layouts).tolist() == [LLAMA.num_params]
    none = [float(reduced(f, 0.0, dp=16, zero_stage=1).comm.s[0]) for f in (facts, lora)]
    latency = 15 * 1e-3  # generous for the hops of a ring
    assert none[1] == pytest.approx(none[0] * (2 + 4 * adapters / LLAMA.num_params) / 6, abs=latency)
    owned = data_parallel.optimizer_time(lora, LLAMA, "lm", layouts).s[0]
    assert owned == pytest.approx(float(facts.device.memory_bound(adapters / 16 * 34, 4).s))


def deepspeed() -> Facts:
    return make_facts(nodes=2, device="h100-80gb-sxm", training="deepspeed@0.19")


def test_zero_2_scatters_in_every_micro_batch_and_zero_1_once() -> None:
    """Four micro-batches: three scatters more; gathers of the updated parameters stay one."""
    first, second = (reduced(deepspeed(), 0.0, dp=16, zero_stage=z) for z in (1, 2))
    more = float(second.comm.s[0] - first.comm.s[0])
    both = replace(deepspeed().training, grad_reduce_bytes_per_param=0.0)
    gather = float(reduced(replace(deepspeed(), training=both), 0.0, dp=16, zero_stage=1).comm.s[0])
    assert more == pytest.approx(3.0 * (float(first.comm.s[0]) - gather), rel=1e-3)  # latency of a scatter of nothing
    assert more > 0


def test_a_gather_at_the_end_of_a_step_has_nothing_beside_it() -> None:
    """DeepSpeed's ZeRO 1 and 2 against the same trainer that gathers beside the next forward pass."""
    facts = deepspeed()
    later = replace(facts, training=replace(facts.training, gathers_at_step=False))
    bare, beside = (reduced(each, 100.0, dp=16, zero_stage=1) for each in (facts, later))
    assert bare.comm.s == beside.comm.s
    gather = float(reduced(facts, 100.0, dp=16, zero_stage=1).exposed.s[0])
    assert gather > 10 * float(beside.exposed.s[0])
    assert reduced(facts, 100.0, dp=16, zero_stage=3).time.s == reduced(later, 100.0, dp=16, zero_stage=3).time.s


def test_gathers_that_nothing_runs_beside_are_bare_and_reductions_are_not() -> None:
    """DeepSpeed-Chat keeps so few parameters alive that no layer is fetched ahead."""
    facts = make_facts(nodes=2, training="deepspeed-chat@0.14")
    ahead = replace(facts, training=replace(facts.training, gathers_ahead=1.0))
    bare, beside = (reduced(f, 100.0, 1.0, dp=16, zero_stage=3).time.s[0] for f in (facts, ahead))
    gather = data_parallel.gather_time(facts, LLAMA, "lm", one(dp=16)).s[0]
    assert bare - beside == pytest.approx(2 * gather * 31 / 32, rel=1e-3)  # one layer of 32 is bare either way


def test_each_layers_round_costs_by_the_gpus_that_meet() -> None:
    facts = make_facts(nodes=2, training="openrlhf@0.2.5")
    plain = replace(facts, training=replace(facts.training, gather_s_per_layer_per_gpu=0.0))
    more = [
        data_parallel.gather_time(facts, LLAMA, "lm", one(dp=dp)).s[0]
        - data_parallel.gather_time(plain, LLAMA, "lm", one(dp=dp)).s[0]
        for dp in (1, 8, 16)
    ]
    assert more == pytest.approx([0.0, 8 * 32 * 0.3e-3, 16 * 32 * 0.3e-3])


def test_a_layer_larger_than_the_look_ahead_is_gathered_again_after_recomputation() -> None:
    """Of 70B up to 1.71e9 parameters lie between a module's recomputation and its backward pass: two layers."""
    facts, large = make_facts(training="deepspeed-chat@0.14"), load_model("llama-2-70b")
    whole, none = one(dp=8, zero_stage=3, recompute="full"), one(dp=8, zero_stage=3, recompute="none")
    passed = 2 * large.layer_params / large.num_layers
    assert data_parallel.regathered_share(facts, large, whole) == pytest.approx(1 - 1e9 / passed)
    assert data_parallel.regathered_share(facts, LLAMA, whole) == 0
    assert data_parallel.regathered_share(facts, large, none) == 0
    assert data_parallel.regathered_share(fsdp(), large, whole) == 0
