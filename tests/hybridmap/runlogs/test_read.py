"""Protects what logs say: every format gives the same steps, cut and mixed lines are counted, nothing is made up."""

import json
import random

import pytest

from hybridmap.runlogs.read import read_log
from hybridmap.runlogs.records import (
    ALL_SCORES,
    BOTH_LOG_PROBS,
    BOTH_UPDATES,
    CHECKPOINT,
    STEP,
    VALIDATION,
    Lengths,
    LoggedStep,
    RunLog,
)
from hybridmap.runlogs.steady import steady
from profiles.errors import InputError
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, workload

METRICS = {
    "timing_s/gen": 31.5,
    "timing_s/old_log_prob": 9.25,
    "timing_s/update_actor": 33.5,
    "timing_s/step": 80.0,
    "response_length/mean": 248.5,
    "response_length/clip_ratio": 0.02,
    "prompt_length/mean": 102.5,
    "perf/max_memory_reserved_gb": 55.0,
    "actor/kl_loss": -0.5,
    "critic/score/mean": 0.8,
}
SECONDS = {"generate_sequences": 31.5, "compute_log_prob": 9.25, "update_actor": 33.5, STEP: 80.0}


def console(step=3, metrics=METRICS, prefix="\x1b[36m(TaskRunner pid=195)\x1b[0m "):
    return prefix + " - ".join([f"step:{step}", *(f"{k}:{v!r}" for k, v in metrics.items())]) + "\n"


def written(tmp_path, text, name="train.log"):
    path = tmp_path / name
    path.write_text(text)
    return path


def wide(step_column, rename=str):
    names = [name for name in METRICS if name != "actor/kl_loss"]
    values = ["3", *(str(METRICS[name]) for name in names)]
    return ",".join([step_column, *map(rename, names)]) + "\n" + ",".join(values) + "\n"


PIECES = (b"", b"\x00", b"\xff", b"-", b"1e9", b"nan", b",", b"{")
FORMATS = {
    "train.log": console() + "Training Progress:  64%|...| 134/210 [3:32:45<1:49:40, 86.58s/it]\n",
    "wrapped.log": console().replace("31.5", "np.float64(31.5)").replace("33.5", "tensor(33.5, device='cuda:0')"),
    "bars.log": f"Training Progress:  64%|...| 134/210 [3:32:45<1:49:40, 86.58s/it]\r{console().rstrip()}\r\n",
    "bars_alone.log": f"Training:  64%|...| 134/210\r{console().rstrip()}\rTraining:  65%|...| 135/210\r",
    "terminal.log": f"\x1b[2K\x1b[1A\x1b[?25l{console().rstrip()}\x1b[K\x1b[0m\n",
    "repeated.log": f"{console().rstrip()}\x1b[32m [repeated 2x across cluster] (Ray deduplicates logs)\x1b[0m\n",
    "kubernetes.log": f"2026-11-24T06:00:00.123456Z stdout F {console(prefix='(main_task pid=19, ip=10.0.0.3) ')}",
    "validated.log": console() + "(TaskRunner pid=195) step:3 - val-core/gsm8k/reward/mean@1:0.7\n",
    "metrics.jsonl": json.dumps({"step": 3, "data": METRICS}) + "\n",
    "history.jsonl": json.dumps({"_step": 3, **METRICS}) + "\n",
    "history.csv": wide("_step"),
    "chart.csv": wide("Step", lambda name: f'"my run - {name}"'),
    "mlflow.csv": "run_id,key,value,step,timestamp\n" + "".join(f"r,{k},{v},3,0\n" for k, v in METRICS.items()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_step(tmp_path, name):
    log = read_log(written(tmp_path, FORMATS[name], name))
    (step,) = log.steps
    assert (log.system, log.damaged, step.number) == ("verl", 0, 3)
    assert dict(step.seconds) == SECONDS
    assert (step.lengths.response_mean, step.lengths.clipped, step.lengths.prompt_mean) == (248.5, 0.02, 102.5)
    assert step.memory_gib == 55.0
    assert step.unnamed_s == pytest.approx(80.0 - 31.5 - 9.25 - 33.5)


def test_events_of_tensorboard(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path / "tb" / "run")) as writer:
        for step in (1, 2):
            for name, value in METRICS.items():
                writer.add_scalar(name, value, step)
    log = read_log(tmp_path / "tb")
    assert [step.number for step in log.steps] == [1, 2]
    assert log.steps[0].seconds["generate_sequences"] == 31.5


def test_nemo_rl_prints_a_list_of_times(tmp_path):
    text = """
========================= Step 7/100 =========================
📊 Training Results:
  • Loss: 0.0123
  • Mean Generation Length: 512.5000

⏱️  Timing:
  • Total step time: 40.00s
  • generation: 20.00s (50.0%)
  • policy_training: 10.00s (25.0%)
  • policy_and_reference_logprobs: 5.00s (12.5%)
  • prepare_for_generation/total: 2.00s (5.0%)
  • prepare_for_generation/transfer_and_update_weights: 1.50s (3.8%)
"""
    log = read_log(written(tmp_path, text))
    (step,) = log.steps
    assert (log.system, step.number, step.lengths.response_mean) == ("nemo-rl", 7, 512.5)
    assert step.calls == {
        "generate_sequences": 20.0,
        "update_actor": 10.0,
        BOTH_LOG_PROBS: 5.0,
        "transition": 2.0,  # the transfer is part of it
    }


def test_slime_prints_dictionaries(tmp_path):
    text = (
        "[2026-01-01] INFO perf 4: {'perf/actor_train_time': 12.5, 'perf/update_weights_time': np.float64(1.5), "
        "'perf/step_time': 30.0}\n"
        "[2026-01-01] INFO perf 4: {'rollout/response_len/mean': 900.0, 'rollout/truncated_ratio': 0.1, "
        "'perf/rollout_time': 14.0}\n"
    )
    log = read_log(written(tmp_path, text))
    (step,) = log.steps
    assert (log.system, step.number, log.damaged) == ("slime", 4, 0)
    assert step.calls == {"generate_sequences": 14.0, "update_actor": 12.5, "transition": 1.5}
    assert (step.lengths.response_mean, step.lengths.clipped) == (900.0, 0.1)


@pytest.mark.parametrize("mark", ["✨ ", ""])  # the asynchronous trainer prints none
def test_openrlhf_prints_dictionaries_of_its_own(tmp_path, mark):
    status = {
        "policy_loss": -0.01,
        "timing/make_experience": 16.0,
        "timing/ppo_train": 42.0,
        "timing/broadcast": 3.0,
        "rollout/response_length_mean": 700.5,
        "rollout/truncated_rate": 0.03,
        "timing/generation": 30.0,
        "timing/step_total": 91.0,
    }
    prefix = "\x1b[36m(PPOTrainer pid=195)\x1b[0m INFO 11-24 06:40:00 ppo_trainer.py:550] "
    log = read_log(written(tmp_path, f"{prefix}{mark}Global step 4: {status}\n{prefix}✨ Evaluation, global_step 4\n"))
    (step,) = log.steps
    assert (log.system, step.number, log.damaged) == ("openrlhf", 4, 0)
    assert step.calls == {"generate_sequences": 30.0, "transition": 3.0, ALL_SCORES: 16.0, BOTH_UPDATES: 42.0}
    assert (step.lengths.response_mean, step.lengths.clipped) == (700.5, 0.03)
    assert step.unnamed_s is None, "the step is a sum, which says nothing of what happens between"


OTHERS = {
    "openrlhf": (
        "train/global_step",
        {
            "train/timing/generation": 30.0,
            "train/timing/make_experience": 16.0,
            "train/timing/ppo_train": 42.0,
            "train/timing/broadcast": 3.0,
            "train/timing/step_total": 91.0,
            "train/rollout/response_length_mean": 700.5,
            "train/rollout/truncated_rate": 0.03,
        },
        {"generate_sequences": 30.0, ALL_SCORES: 16.0, BOTH_UPDATES: 42.0, "transition": 3.0, STEP: 91.0},
    ),
    "nemo-rl": (
        "Step",
        {
            "timing/train/generation": 20.0,
            "timing/train/policy_and_reference_logprobs": 5.0,
            "timing/train/policy_training": 10.0,
            "timing/train/prepare_for_generation/total": 2.0,
            "timing/train/total_step_time": 40.0,
            "train/mean_gen_tokens_per_sample": 512.5,
            "train/mean_prompt_length": 110.0,
        },
        {"generate_sequences": 20.0, BOTH_LOG_PROBS: 5.0, "update_actor": 10.0, "transition": 2.0, STEP: 40.0},
    ),
    "slime": (
        "rollout/step",
        {
            "perf/rollout_time": 14.0,
            "perf/log_probs_time": 3.0,
            "perf/ref_log_probs_time": 2.5,
            "perf/actor_train_time": 12.5,
            "perf/update_weights_time": 1.5,
            "perf/step_time": 35.0,
            "rollout/response_len/mean": 900.0,
            "rollout/truncated_ratio": 0.1,
        },
        {
            "generate_sequences": 14.0,
            "compute_log_prob": 3.0,
            "compute_ref_log_prob": 2.5,
            "update_actor": 12.5,
            "transition": 1.5,
            STEP: 35.0,
        },
    ),
}


def files_of(column, metrics):
    """A step as W&B and MLflow export it: history and chart as CSV, history as JSON lines, MLflow's long table."""
    names, values = list(metrics), ",".join(map(str, metrics.values()))
    chart = ",".join(f'"a run - {name}","a run - {name}__MIN"' for name in names)
    return {
        "history.csv": f"{column},{','.join(names)}\n4,{values}\n",
        "chart.csv": f"{column},{chart}\n4,{','.join(f'{v},0.0' for v in metrics.values())}\n",
        "history.jsonl": json.dumps({"_step" if column == "Step" else column: 4, "_runtime": 3.5, **metrics}) + "\n",
        "mlflow.csv": "key,value,step\n" + "".join(f"{name},{value},4\n" for name, value in metrics.items()),
    }


@pytest.mark.parametrize("kind", ["history.csv", "chart.csv", "history.jsonl", "mlflow.csv", "events"])
@pytest.mark.parametrize("system", OTHERS)
def test_other_systems_metrics_are_read_from_every_kind_of_file(tmp_path, system, kind):
    column, metrics, expected = OTHERS[system]
    if kind == "events":
        tensorboard = pytest.importorskip("torch.utils.tensorboard")
        with tensorboard.SummaryWriter(str(tmp_path / "tb")) as writer:
            for name, value in metrics.items():
                writer.add_scalar(name, value, 4)
        log = read_log(tmp_path / "tb")
    else:
        log = read_log(written(tmp_path, files_of(column, metrics)[kind], kind))
    (step,) = log.steps
    assert (log.system, step.number, log.damaged) == (system, 4, 0)
    assert dict(step.seconds) == expected
    assert step.lengths.response_mean == max(v for name, v in metrics.items() if "mean_gen" in name or "len" in name)


def test_a_timeline_of_ours_is_a_log_of_one_step_and_a_simulated_one_is_none(tmp_path):
    facts = make_facts("grpo", roles={"actor": "llama-2-7b", "reference": "llama-2-7b"}, work=workload(64, 512, 256))
    simulated = simulate(make_plan(facts, (("actor", "reference"),), (8,)), facts)
    measured = simulated.model_copy(update={"source": "measured"})
    log = read_log(written(tmp_path, measured.model_dump_json(), "timeline.json"))
    (step,) = log.steps
    assert (log.system, step.iteration_s) == ("hybridmap", measured.iteration_s)
    assert step.calls == {span.call: span.duration_s for span in measured.spans}
    with pytest.raises(InputError, match="a timeline that was simulated, which says nothing about a run"):
        read_log(written(tmp_path, simulated.model_dump_json(), "plain.json"))


def test_what_was_cut_is_counted_and_the_rest_is_kept(tmp_path):
    log = read_log(
        written(tmp_path, console(1) + console(2) + console(3).partition("timing_s/update")[0] + "timing_s/up\n")
    )
    assert [step.number for step in log.steps] == [1, 2, 3]
    assert log.damaged == 1
    assert "update_actor" not in log.steps[2].seconds


GEN, UPDATE = "timing_s/gen:31.5", "timing_s/update_actor:33.5"
MIXED = {
    "a newline that was lost": (
        f"step:3 - {GEN}step:4 - {UPDATE}\n",
        {3: {"generate_sequences": 31.5}, 4: {"update_actor": 33.5}},
        0,
    ),
    "a record inside another": (
        f"step:3 - {GEN} - step:4 - {UPDATE} - timing_s/step:80.0\n",
        {3: {"generate_sequences": 31.5}, 4: {"update_actor": 33.5, STEP: 80.0}},
        0,
    ),
    "a worker's text in a number": (
        f"step:3 - timing_s/gen:3(WorkerDict pid=2) loaded: 10%| 1.5 - {UPDATE}\n",
        {3: {"update_actor": 33.5}},
        1,
    ),
    "a worker's line after the last number": (
        f"step:3 - {UPDATE} - {GEN}(WorkerDict pid=2) loaded: 5\n",
        {3: {"update_actor": 33.5}},
        1,
    ),
    "a worker's line between": (
        f"step:3 - {GEN}\n(WorkerDict pid=2) loaded\n - {UPDATE}\n",
        {3: {"generate_sequences": 31.5}},
        1,
    ),
    "the end of the file within a number": (f"step:3 - {GEN} - timing_s/step:8", {3: {"generate_sequences": 31.5}}, 1),
    "the end of the file within a name": (f"step:3 - {GEN} - timing_s/st", {3: {"generate_sequences": 31.5}}, 1),
    "a metric that ends with step": (
        f"step:3 - training/global_step:4 - {GEN}\n",
        {3: {"generate_sequences": 31.5}},
        0,
    ),
    "two of slime's records": (
        "perf 4: {'perf/actor_train_time': 12.5, 'perf/upd(Worker) perf 5: {'perf/step_time': 30.0}\n",
        {4: {"update_actor": 12.5}, 5: {STEP: 30.0}},
        1,
    ),
}


@pytest.mark.parametrize("mixed", MIXED)
def test_lines_of_several_processes_in_one_keep_what_is_whole_and_count_the_rest(tmp_path, mixed):
    text, expected, damaged = MIXED[mixed]
    whole = console(1) if "perf 4" not in text else "perf 1: {'perf/step_time': 20.0}\n"
    log = read_log(written(tmp_path, whole + text))
    assert {step.number: dict(step.seconds) for step in log.steps[1:]} == expected
    assert log.damaged == damaged


def test_a_step_that_was_run_again_counts_once(tmp_path):
    log = read_log(written(tmp_path, console(1) + console(2) + console(2, METRICS | {"timing_s/gen": 40.0})))
    assert [step.seconds["generate_sequences"] for step in log.steps] == [31.5, 40.0]


@pytest.mark.parametrize(
    ("beside", "expected"),
    [({VALIDATION: 30.0}, 80.0), ({CHECKPOINT: 5.0}, 75.0), ({VALIDATION: 3.0, CHECKPOINT: 2.0}, 75.0), ({}, 80.0)],
)
def test_what_is_done_beside_an_iteration_is_taken_off_where_it_was_counted(beside, expected):
    assert LoggedStep(1, SECONDS | beside).iteration_s == expected


def test_warm_up_and_interruptions_are_left_out():
    times = [300.0, 120.0, *[80.0 + i % 3 for i in range(20)], 400.0, 80.0]
    found = steady(RunLog("verl", "x", tuple(LoggedStep(i, {STEP: s}) for i, s in enumerate(times))))
    assert found.warm_up == (0, 1)
    assert found.interrupted == (22,)
    assert len(found.steps) == 21


def test_a_call_longer_than_its_step_is_no_measurement_where_calls_take_turns():
    steps = [LoggedStep(i, {"generate_sequences": 30.0, STEP: 80.0}) for i in range(5)]
    steps[3] = LoggedStep(3, {"generate_sequences": 9999.5, STEP: 80.0})
    log = RunLog("verl", "x", tuple(steps))
    assert steady(log, synchronous=True).left_out == {"contradictory": (3,)}
    assert len(steady(log).steps) == 5  # generation may go on beside several steps


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.log", "nothing here\n", "no times of a run's stages"),
        ("empty.log", "", "no times of a run's stages"),
        ("table.csv", "a,b\n1,2\n", "the first line names no step"),
        ("none.jsonl", '{"step": 1, "data": {"loss": 1}}\n', "no times of a run's stages"),
        ("x.json", "[]", "not a timeline"),
    ],
)
def test_what_is_no_log_says_what_was_looked_for(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        read_log(written(tmp_path, text, name))


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_log(tmp_path / "none.log")
    with pytest.raises(InputError, match="no TensorBoard events"):
        read_log(tmp_path)


def test_ten_thousand_steps_are_read(tmp_path):
    log = read_log(written(tmp_path, "".join(console(i) for i in range(10_000))))
    assert len(log.steps) == 10_000


@pytest.mark.parametrize("name", ["timing_s/" + "genming_s/" * 60 + "gen", "a/b"])
@pytest.mark.parametrize("value", ["", "12x", "9" * 100_000 + "x"])
def test_a_pair_that_is_none_is_passed_over_however_long_it_is(tmp_path, name, value):
    """Names of many parts and numbers of many digits can be split in many ways, all of which were tried."""
    text = f"step:3 - {name}:{value} - timing_s/gen:2.5 - timing_s/step:9.25\n"
    (step,) = read_log(written(tmp_path, text)).steps
    assert step.seconds["generate_sequences"] == 2.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_length/clip_ratio", 8.5),
        ("timing_s/gen", 3e7),
        ("response_length/mean", 1e12),
        ("perf/max_memory_reserved_gb", 1e9),
    ],
)
def test_what_no_machine_has_is_damage(tmp_path, name, value):
    """A share of more than all ended in a traceback where lengths were learned from it."""
    text = f"step:3 - timing_s/step:9.25 - {name}:{value} - timing_s/update_actor:2.5\n"
    log = read_log(written(tmp_path, text))
    (step,) = log.steps
    assert log.damaged == 1 and step.seconds == {STEP: 9.25, "update_actor": 2.5}
    assert step.lengths == Lengths() and step.memory_gib is None


@pytest.mark.parametrize("num", [500, pytest.param(5_000, marks=pytest.mark.thorough)])
def test_damage_of_any_kind_ends_in_steps_or_one_message(tmp_path, num):
    """Cut, doubled and mixed bytes: no fault of ours, and no time that is none."""
    draw = random.Random(0)
    good = [(name, text.encode()) for name, text in FORMATS.items()]
    refused = 0
    for i in range(num):
        name, text = good[i % len(good)]
        raw = bytearray(text * draw.choice((1, 2)))
        for _ in range(draw.randint(1, 8)):
            at = draw.randrange(len(raw))
            raw[at : at + draw.choice((0, 1, 9))] = draw.choice(
                (b"", b"\x00", b"\xff", b"-", b"1e9", b"nan", b",", b"{")
            )
            raw = raw or bytearray(b"x")
        path = tmp_path / name
        path.write_bytes(raw)
        try:
            log = read_log(path)
        except InputError:
            refused += 1
            continue
        for step in log.steps:
            assert all(0 <= s < 1e7 for s in step.seconds.values())
    assert 0 < refused < num / 2
