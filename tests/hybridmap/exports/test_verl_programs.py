"""Protects plans whose schedule is a program of verl's own: it is told the plan, and refused where it cannot."""

import pytest

from benchmarks.exports.check import with_rollout_pool
from hybridmap.exports.follow import without_role
from hybridmap.exports.imported import Given
from hybridmap.exports.systems import export_plan
from hybridmap.exports.verl.import_run import import_verl
from hybridmap.exports.verl.programs import program_with
from hybridmap.exports.verl.read import config_of_script
from simulator.systems.targets import TARGETS
from tests.builders import replace_role
from tests.hybridmap.exports.plans import plan_file

BYPASS = "algorithm.rollout_correction.bypass_mode"
ONE_STEP_OFF = {"schedule": "one-step-off", "in_flight_updates": False}
DRAINED = {"schedule": "async", "in_flight_updates": False, "steps_in_flight": 2}
MODULES = {
    "one-step-off": "verl.experimental.one_step_off_policy.main_ppo",
    "async": "verl.experimental.fully_async_policy.fully_async_main",
}


def apart(name, schedule):
    """A plan with GPUs of its own for generation in a schedule."""
    file = with_rollout_pool(plan_file(name))
    return file.model_copy(update={"plan": file.plan.model_copy(update=schedule)})


def asking(file, giver):
    """The job with who gives old log-probs, and the plan with a pass of the trainer's where that one does."""
    entry = file.plan.role("actor")
    kept = file.plan if giver == "trainer" else replace_role(file.plan, "actor", inference=None)
    assert entry.inference is not None
    return file.model_copy(update={"plan": kept, "job": {**file.job, "implementation": {"old_log_prob": giver}}})


def schedule_points(export):
    return [point.text for point in export.points if point.place == "schedule"]


@pytest.mark.parametrize("schedule", [ONE_STEP_OFF, DRAINED], ids=["one step off", "drained"])
@pytest.mark.parametrize("asked", [None, "trainer", "engine"])
def test_a_schedule_runs_in_verls_own_program_of_it(schedule, asked):
    """Old log-probs are the program's, from the rollout, unless the job says otherwise; then that is said aloud."""
    file = asking(apart("grpo", schedule), asked)
    export = export_plan(file, "apart", "verl")
    script = export.files["run_verl.sh"]
    module = MODULES[schedule["schedule"]]
    assert f"python3 -m {module} \\\n  'hydra.searchpath=[pkg://verl.trainer.config]' \\" in script
    assert schedule_points(export) == []
    assert not any(key.startswith("trainer.v1.") for key in export.settings)
    assert export.settings[BYPASS] is (asked != "trainer")
    aloud = {key.key: key.value for key in export.algorithm}
    assert aloud["program"] == module
    assert (BYPASS in aloud) is (asked == "trainer")
    back = import_verl(config_of_script(script, "run_verl.sh", {"TRAIN_FILES": "x"}), Given("h100-80gb-sxm")).plan
    assert {name: getattr(back, name) for name in schedule} == schedule
    own = back.generation_pool_of("actor")
    assert (own.num_gpus, own.roles) == (file.plan.generation_pool_of("actor").num_gpus, ())


def test_a_fully_asynchronous_run_takes_a_whole_batch_at_a_time():
    """Prompts come one by one, an update of the engines' weights stands behind each batch, and no run ends at 100."""
    settings = export_plan(apart("grpo", DRAINED), "apart", "verl").settings
    assert settings["data.train_batch_size"] == 0
    assert settings["rollout.total_rollout_steps"] is None
    takes = {key.rpartition(".")[2]: value for key, value in settings.items() if key.startswith("async_training.")}
    assert takes == {
        "require_batches": 2,
        "trigger_parameter_sync_step": 1,
        "staleness_threshold": 1,
        "partial_rollout": False,
    }


def in_samples(file):
    """Four samples a micro-batch wherever the plan has one, as the job pins it."""
    roles = []
    for entry in file.plan.roles:
        stages = {stage: getattr(entry, stage) for stage in ("training", "inference")}
        four = {stage: x.model_copy(update={"micro_batch": 4}) for stage, x in stages.items() if x is not None}
        roles.append(entry.model_copy(update=four))
    pinned = {**file.job, "pin": {"actor": {"training": {"micro_batch": 4}}}}
    return file.model_copy(update={"plan": file.plan.model_copy(update={"roles": tuple(roles)}), "job": pinned})


def with_a_reward_function(file):
    """Without the reward model, which would find no GPUs beside generation."""
    models = {role: model for role, model in file.job["models"].items() if role != "reward"}
    return file.model_copy(update={"plan": without_role(file.plan, "reward"), "job": {**file.job, "models": models}})


SYNC = {"schedule": "sync", "in_flight_updates": False}


@pytest.mark.parametrize(
    ("name", "schedule", "changed", "why"),
    [
        ("remax", ONE_STEP_OFF, with_a_reward_function, "generates no greedy baseline"),
        ("grpo", DRAINED, in_samples, "takes micro-batches of tokens alone"),
        ("grpo", SYNC, lambda file: file, "never stops generating"),
    ],
)
def test_what_a_program_lacks_is_said_and_the_main_one_runs(name, schedule, changed, why):
    export = export_plan(changed(apart(name, schedule)), "apart", "verl")
    assert any(why in text for text in schedule_points(export)), schedule_points(export)
    assert export.settings["trainer.v1.trainer_mode"] == "separate_async"
    assert "-m verl.trainer.main_ppo" in export.files["run_verl.sh"]


def test_a_target_leaves_old_log_probs_to_the_programs_that_take_the_rollouts():
    verl, slime = TARGETS["verl/fsdp"], TARGETS["slime"]
    kinds = [(schedule, updates) for schedule in ("sync", "one-step-off", "async") for updates in (False, True)]
    assert {kind for kind in kinds if BYPASS in program_with(*kind).before} == set(verl.bypassing)
    assert set(verl.bypassing) == {("one-step-off", False), ("one-step-off", True), ("async", False)}
    assert not slime.bypassing
