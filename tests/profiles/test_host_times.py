"""Protects that no time of the host is forgotten: every constant in seconds stands in one list, or says why not."""

from dataclasses import fields

import pytest

from profiles.engine_facts import GenerationEngine, TrainingEngine, load_generation_engine, load_training_engine
from profiles.host_times import BEFORE_CALLS, BETWEEN_CALLS, IN_PASSES, slowed

OF_A_MEASURED_MACHINE = {
    "call_s",
    "wake_s",
    "call_rank_s",
    "meeting_s",
}
OF_A_SERVER = {"front_end_s", "front_end_s_per_prompt_token", "batch_wait_s"}  # the last is a timer's


def seconds_of(kind):
    return {
        f.name
        for f in fields(kind)
        if (f.name.endswith("_s") and not f.name.endswith("bytes_per_s")) or "_s_per_" in f.name
    }


@pytest.mark.parametrize("kind", [GenerationEngine, TrainingEngine])
def test_every_constant_in_seconds_is_in_one_list(kind):
    lists = (set(IN_PASSES), set(BETWEEN_CALLS), set(BEFORE_CALLS), OF_A_MEASURED_MACHINE, OF_A_SERVER)
    for name in seconds_of(kind):
        assert sum(name in own for own in lists) == 1, name


def test_no_list_names_what_no_engine_has():
    assert {*IN_PASSES, *BETWEEN_CALLS, *BEFORE_CALLS} <= seconds_of(GenerationEngine) | seconds_of(TrainingEngine)


def test_a_slower_host_is_slower_in_what_is_named_alone():
    trainer, engine = load_training_engine("megatron-core@0.16"), load_generation_engine("vllm@0.12")
    slow = slowed(trainer, 2.0, IN_PASSES)
    assert slow.host_s_per_launch == 2.0 * trainer.host_s_per_launch > 0
    assert slow.export_s_per_tensor == trainer.export_s_per_tensor
    assert slowed(engine, 2.0, IN_PASSES).host_s_per_step == 2.0 * engine.host_s_per_step
