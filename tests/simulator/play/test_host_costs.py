"""Protects the terms that an eager engine and a CPU add: launches, calls, waiting, functions, fp32, the first token."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.store import load_device
from simulator.cost.pricing import role_costs
from simulator.cost.role_layouts import RoleLayouts
from simulator.facts import Facts, Implementation
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import GenerationLayout, ParallelLayout
from tests.builders import TINY, make_facts, workload


def facts(**changes: object) -> Facts:
    return replace(make_facts(model=TINY, work=workload(64, 128, 64, minibatches=2)), **changes)


def layouts(dp: int = 1, micro_batch: int = 4) -> RoleLayouts:
    layout = Layouts.of([ParallelLayout(dp=dp, micro_batch=micro_batch, zero_stage=1)])
    engine = GenerationLayouts.of([GenerationLayout(dp=dp, max_num_seqs=64, kv_cache_bytes=0)])
    return RoleLayouts(training=layout, inference=layout, generation=engine)


def seconds(job: Facts, role: str = "actor", dp: int = 1, micro_batch: int = 4) -> dict[str, float]:
    return {key: float(cost.time.s[0]) for key, cost in role_costs(job, role, layouts(dp, micro_batch)).items()}


def cpu(job: Facts) -> Facts:
    """The same job on a device of the same rates that launches its own work."""
    return replace(job, device=replace(job.device, spec=replace(job.device.spec, kind="cpu")))


def with_training(job: Facts, **changes: float) -> Facts:
    return replace(job, training=replace(job.training, **changes))


def test_launching_adds_to_a_cpu_and_hides_behind_a_gpu() -> None:
    plain, launched = facts(), with_training(facts(), forward_s_per_layer=1e-6, backward_s_per_layer=2e-6)
    assert seconds(launched)["update_actor"] == seconds(plain)["update_actor"]
    added = seconds(cpu(launched))["update_actor"] - seconds(cpu(plain))["update_actor"]
    micro_batches = 64 / 4
    assert added == pytest.approx(micro_batches * TINY.num_layers * 3e-6)


def test_attention_that_is_launched_by_sequence_takes_as_long_however_they_are_packed() -> None:
    plain = cpu(facts())
    each = with_training(plain, forward_s_per_layer_sequence=1e-6, backward_s_per_layer_sequence=2e-6)
    for micro_batch in (4, 16):
        before, after = seconds(plain, micro_batch=micro_batch), seconds(each, micro_batch=micro_batch)
        assert after["update_actor"] - before["update_actor"] == pytest.approx(64 * TINY.num_layers * 3e-6)
    reference = seconds(each, "reference")["compute_ref_log_prob"] - seconds(plain, "reference")["compute_ref_log_prob"]
    assert reference == pytest.approx(64 * TINY.num_layers * 1e-6)


def test_a_gpu_waits_for_its_host_where_launching_takes_longer() -> None:
    slow = with_training(facts(), forward_s_per_layer=1.0)
    found = seconds(slow, "reference")["compute_ref_log_prob"]
    assert found == pytest.approx(64 / 4 * TINY.num_layers * 1.0, rel=0.01)


def test_fixed_costs_count_calls_steps_and_passes() -> None:
    plain = cpu(facts())
    assert seconds(with_training(plain, call_s=1.0))["update_actor"] - seconds(plain)["update_actor"] == pytest.approx(
        1
    )
    step = with_training(plain, step_fixed_s=plain.training.step_fixed_s + 1.0)
    assert seconds(step)["update_actor"] - seconds(plain)["update_actor"] == pytest.approx(2)
    passes = with_training(plain, forward_s_per_pass=1.0)
    assert seconds(passes)["update_actor"] - seconds(plain)["update_actor"] == pytest.approx(64 / 4)


def test_dispatch_and_further_ranks_are_part_of_every_call() -> None:
    plain, late = facts(), with_training(facts(), dispatch_s=1.0, call_rank_s=0.5)
    late = replace(late, generation=replace(late.generation, call_rank_s=0.5))
    for key, before in seconds(plain, dp=4).items():
        assert seconds(late, dp=4)[key] - before == pytest.approx(1.0 + 3 * 0.5)


def test_ranks_wait_for_each_other_only_where_there_are_several() -> None:
    waiting = with_training(facts(), small_reduces_per_step=1, meetings_per_step=4, meeting_s=1.0)
    alone = with_training(facts(), small_reduces_per_step=1)
    assert seconds(waiting)["update_actor"] == seconds(alone)["update_actor"]
    apart = seconds(waiting, dp=2)["update_actor"] - seconds(alone, dp=2)["update_actor"]
    assert apart == pytest.approx(2 * 4 * 1.0)


def test_a_function_takes_its_time_for_each_sample_and_needs_no_model() -> None:
    job = facts()
    roles = {**job.roles, "reward": replace(job.roles["reward"], function_s_per_sample=1e-3)}
    found = seconds(replace(job, roles=roles), "reward", dp=4)
    assert found["compute_reward"] == pytest.approx(64 / 4 * 1e-3)


def test_the_first_token_comes_from_the_prefill() -> None:
    job = facts()
    engine = replace(job.generation, first_token_in_prefill=True, static_batches=True)
    one = replace(job, workload=workload(64, 128, 1, minibatches=2))
    whole, without = (seconds(replace(f, generation=engine))["generate_sequences"] for f in (job, one))
    steps = seconds(job)["generate_sequences"] - seconds(one)["generate_sequences"]  # 63 steps, counted as others count
    assert whole - without == pytest.approx(steps, rel=0.02)


def test_fp32_moves_twice_the_bytes() -> None:
    job = facts(implementation=Implementation(training_dtype="fp32"))
    assert job.activation_bytes == 2 * facts().activation_bytes and job.plain_dtype == "fp32"
    from simulator.cost import memory

    layout = Layouts.of([ParallelLayout(dp=1)])
    double, single = (memory.training_bytes(f, TINY, layout, logits=False)["activations"] for f in (job, facts()))
    assert np.allclose(double, 2 * single)


def test_groups_of_one_need_no_collective_table() -> None:
    device = load_device("a100-80gb-sxm")
    alone = replace(device)
    object.__setattr__(alone, "tables", type(device.tables)(device.tables._folder, device.spec, {}))  # noqa: SLF001
    assert float(alone.collective("all_reduce", 1e6, 1).s) == 0.0
