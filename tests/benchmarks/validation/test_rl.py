"""Protects the predictions of published RL iterations: no row is lost, each stage is the sum of its calls, and what is
not comparable is not compared.
"""

import pandas as pd
import pytest

from benchmarks.validation import rl
from benchmarks.validation.guard import INTERNAL
from benchmarks.validation.rl_plan import given_plan
from benchmarks.validation.rl_work import given_facts
from benchmarks.validation.tables import read_tables
from simulator.play.simulate import simulate
from tests.benchmarks.validation.conftest import PUBLISHED
from tests.builders import RL_CELLS
from tests.draws import ALL

TIMES = {
    "gen_time_s": "30",
    "logprob_time_s": "20",
    "old_logprob_time_s": "10",
    "ref_logprob_time_s": "10",
    "critic_time_s": "5",
    "train_time_s": "30",
    "refit_time_s": "4",
    "tokens_per_s_per_gpu": "1500",
}
APART = {"placement": "separate", "schedule": "one-step-off", "train_gpus": "8", "gen_gpus": "8"}


def predict(**changes):
    return {row.quantity: row for row in rl.predict(pd.DataFrame([RL_CELLS | changes], dtype=object))}


def test_every_published_row_comes_back(published):
    table, rows = read_tables("rl", [PUBLISHED / "rl_steps.csv"]), published.gave["rl"]
    assert {row.id for row in rows} == set(table["id"])
    assert len({(row.id, row.quantity) for row in rows}) == len(rows)
    for row in rows:
        assert (row.predicted is not None) or row.reason, row
        assert not row.reason.startswith(INTERNAL), row
        assert row.predicted is not None or row.level not in ("A", "B"), row


def test_stages_are_the_durations_of_their_calls():
    cells = RL_CELLS | TIMES
    facts = given_facts(cells, [])
    timeline = simulate(given_plan(cells, facts, []), facts)
    last = {span.call: span.duration_s for span in timeline.spans}
    rows = {quantity: row.predicted for quantity, row in predict(**TIMES).items() if row.predicted is not None}
    assert rows == {
        "step_time_s": pytest.approx(timeline.iteration_s),
        "gen_time_s": pytest.approx(last["generate_sequences"]),
        "logprob_time_s": pytest.approx(last["compute_log_prob"] + last["compute_ref_log_prob"]),
        "old_logprob_time_s": pytest.approx(last["compute_log_prob"]),
        "ref_logprob_time_s": pytest.approx(last["compute_ref_log_prob"]),
        "train_time_s": pytest.approx(last["update_actor"]),
        "refit_time_s": pytest.approx(last["transition"]),
        "tokens_per_s_per_gpu": pytest.approx(2048 * 1100 / timeline.iteration_s / 16),
    }


def test_a_rollout_of_verl_holds_the_hand_over_that_it_does_not_print():
    """Its early releases moved weights inside ``generate_sequences``; later ones print ``update_weights`` apart."""
    verl = TIMES | {"system": "verl", "train_backend": "FSDP", "train_pp": "1", "global_batch": "64"}
    apart, within = predict(**verl), predict(**verl | {"refit_time_s": ""})
    both = apart["gen_time_s"].predicted + apart["refit_time_s"].predicted
    assert within["gen_time_s"].predicted == pytest.approx(both)
    assert within["step_time_s"].predicted == apart["step_time_s"].predicted
    others = predict(**TIMES), predict(**TIMES | {"refit_time_s": ""})
    assert others[0]["gen_time_s"].predicted == others[1]["gen_time_s"].predicted


def test_an_engine_whose_layout_is_not_stated_is_not_taken_for_one_gpu_wide():
    rows = predict(**TIMES, gen_tp="")
    for quantity in ("step_time_s", "gen_time_s", "refit_time_s", "tokens_per_s_per_gpu"):
        assert rows[quantity].predicted is None
        assert rows[quantity].reason == "the engine's layout is not stated"
    assert rows["train_time_s"].predicted == pytest.approx(predict(**TIMES)["train_time_s"].predicted)


def test_a_mean_length_follows_from_published_rates_and_says_so():
    """1,500 tokens/s on each of 16 GPUs for 90 s are 2,160,000 tokens of 64 x 32 samples: 1,055 each."""
    row = predict(mean_response_len="", mean_prompt_len="", tokens_per_s_per_gpu="1500")["step_time_s"]
    assert row.predicted > 0
    assert "mean response length inferred from published rates: 940 tokens" in row.reason


def test_a_call_that_the_row_does_not_make_is_not_predicted():
    assert predict(**TIMES)["critic_time_s"].reason == "the row describes no such call"
    engines = predict(**TIMES, logprob_passes="reference")
    assert engines["old_logprob_time_s"].reason == "the row describes no such call"
    assert engines["logprob_time_s"].predicted == engines["ref_logprob_time_s"].predicted


def test_a_critic_is_scored_and_trained():
    rows = predict(**TIMES, algorithm="PPO", train_tp="4")
    assert rows["critic_time_s"].predicted > 0


def test_a_critic_may_have_a_micro_batch_of_its_own():
    ppo = TIMES | {"algorithm": "PPO", "train_tp": "4", "seq_packing": "remove_padding"}
    plain, own = predict(**ppo), predict(**ppo, notes="critic of the same size, critic micro-batch 8; gsm8k")
    assert own["critic_time_s"].predicted < plain["critic_time_s"].predicted
    assert own["train_time_s"].predicted == pytest.approx(plain["train_time_s"].predicted)


def test_waiting_for_the_rollout_is_not_the_rollout():
    rows = predict(**TIMES, **APART)
    assert rows["gen_time_s"].predicted is None
    assert "the time the trainer waits" in rows["gen_time_s"].reason
    assert rows["step_time_s"].predicted is not None
    assert predict(**TIMES, **APART | {"schedule": "sync"})["gen_time_s"].predicted is not None


def test_overlapping_is_faster_than_taking_turns():
    turns, overlapped = (predict(**APART | {"schedule": s})["step_time_s"].predicted for s in ("sync", "one-step-off"))
    assert overlapped < turns


def test_rows_carry_what_errors_are_grouped_by():
    (row,) = predict(**APART).values()
    found = (row.table, row.id, row.system, row.placement, row.schedule, row.level, row.device, row.model_kind)
    assert found == ("rl", "r", "NeMo-RL v0.5.0", "separate", "one-step-off", "A", "h100-80gb-sxm", "dense")
    assert row.relative_error == pytest.approx(row.predicted / 90 - 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"row_kind": "train_mfu_only"}, "only an MFU is published, no time"),
        ({"mean_response_len": "", "samples_per_prompt": ""}, "the mean response length is not stated"),
        ({"gen_backend": "DeepSpeed hybrid engine"}, "no generation engine known for"),
        ({"algorithm": "DPO"}, "no dataflow for algorithm 'dpo'"),
        ({"schedule": "async"}, "a async schedule on colocated GPUs"),
        ({"gpu_kind": ""}, "the source does not name the GPU"),
        ({"train_tp": "7"}, "does not divide 16 GPUs"),
        ({"global_batch": "700"}, "does not divide 2048 samples"),
    ],
)
def test_what_cannot_be_predicted_says_why(changes, words):
    for row in predict(**TIMES, **changes).values():
        assert row.predicted is None
        assert words in row.reason


def test_a_row_without_a_prediction_still_has_its_numbers():
    rows = predict(**TIMES, algorithm="DPO")
    assert {q: row.measured for q, row in rows.items()} == {q: float(v) for q, v in TIMES.items()} | {"step_time_s": 90}


def test_a_row_without_numbers_says_so():
    (row,) = predict(step_time_s="").values()
    assert (row.predicted, row.reason) == (None, "the row publishes no time or rate")


COLUMNS = (
    "num_gpus",
    "gpus_per_node",
    "prompts_per_step",
    "samples_per_prompt",
    "max_seq_len",
    "max_response_len",
    "mean_prompt_len",
    "mean_response_len",
    "derived_tokens_per_sample",
    "train_tp",
    "train_pp",
    "train_cp",
    "train_ep",
    "train_vpp",
    "gen_tp",
    "gen_pp",
    "gen_ep",
    "micro_batch",
    "logprob_micro_batch",
    "global_batch",
    "train_gpus",
    "gen_gpus",
    "gen_gpu_mem_util",
    "step_time_s",
    "model",
    "gpu_kind",
    "algorithm",
    "train_backend",
    "gen_backend",
    "precision_train",
    "precision_gen",
    "placement",
    "schedule",
    "recompute",
    "seq_packing",
    "offload",
    "system",
    "logprob_passes",
    "row_kind",
    "spec_level",
)
KNOWN = {("0", "global_batch"), ("0", "schedule")}
"""Cells that end as an internal error today; ``test_rl_work`` and ``test_rl_plan`` hold them as expected failures."""


@pytest.mark.parametrize("cell", ["-1", "0", "abc", " 16 ", "1,024", "2.5", "16 GPUs", float("nan"), None])
@pytest.mark.parametrize("base", [{}, APART], ids=["colocated", "separate"])
def test_dirty_cells_never_stop_the_run(base, cell):
    """Each cell in each column: half of the columns in either placement, all in both in ``make check-all``."""
    columns = COLUMNS if ALL else COLUMNS[bool(base) :: 2]
    few = {"prompts_per_step": "16", "samples_per_prompt": "4", "global_batch": "16"}
    records = [RL_CELLS | few | base | {"id": column, column: cell} for column in columns]
    rows = rl.predict(pd.DataFrame(records, dtype=object))
    assert {row.id for row in rows} == set(columns)
    for row in rows:
        assert row.predicted is not None or row.reason, row
        assert not row.reason.startswith(INTERNAL) or (cell, row.id) in KNOWN, row


@pytest.mark.parametrize(("written", "meant"), [(" 512 ", "512"), ("1,024", "1024"), ("512.0", "512")])
def test_numbers_are_read_as_strangers_write_them(written, meant):
    assert (
        predict(global_batch=written)["step_time_s"].predicted == predict(global_batch=meant)["step_time_s"].predicted
    )
