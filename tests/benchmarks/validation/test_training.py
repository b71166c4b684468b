"""Protects the predictions of published training steps: no row is lost, the layout of a row is the one that is priced,
and throughput and utilisation are counted as the source counts them.
"""

import pandas as pd
import pytest

from benchmarks.validation import training
from benchmarks.validation.guard import INTERNAL
from benchmarks.validation.tables import read_tables
from profiles.models.catalogue import load_model
from tests.benchmarks.validation.conftest import PUBLISHED

CELLS = {
    "id": "t",
    "source": "a page",
    "spec_level": "A",
    "system": "Megatron-Bridge",
    "gpu_kind": "H100-SXM-80GB",
    "num_gpus": "16",
    "gpus_per_node": "8",
    "model": "Qwen/Qwen3-8B",
    "task": "pretrain",
    "precision": "BF16",
    "seq_len": "4096",
    "train_tp": "2",
    "train_pp": "2",
    "train_cp": "1",
    "micro_batch": "1",
    "global_batch": "64",
    "recompute": "none",
    "step_time_s": "10",
    "tokens_per_s_per_gpu": "5000",
    "tflops_per_gpu": "400",
    "peak_mem_gib": "50",
}


def predict(**changes):
    return {row.quantity: row for row in training.predict(pd.DataFrame([CELLS | changes], dtype=object))}


def reason(**changes):
    rows = predict(**changes).values()
    assert all(row.predicted is None for row in rows)
    (words,) = {row.reason for row in rows}
    return words


@pytest.fixture
def priced(monkeypatch):
    """The layouts, shapes and facts that the product was asked for, in order."""
    asked, real = [], training.training_cost

    def spy(facts, shape, head, layouts):
        asked.append((facts, shape, head, layouts.record(0)))
        return real(facts, shape, head, layouts)

    monkeypatch.setattr(training, "training_cost", spy)
    return asked


def test_every_published_row_comes_back(published):
    table, rows = read_tables("training", [PUBLISHED / "training.csv"]), published.gave["training"]
    assert {row.id for row in rows} == set(table["id"])
    assert len({(row.id, row.quantity) for row in rows}) == len(rows)
    for row in rows:
        assert (row.predicted is not None) or row.reason, row
        assert not row.reason.startswith(INTERNAL), row
    by_level = [row for row in rows if row.level in ("A", "B") and row.quantity == "step_time_s" and row.predicted]
    assert len(by_level) > 15


def test_the_layout_of_the_row_is_the_layout_that_is_priced(priced):
    moe = {"model": "Qwen/Qwen3-30B-A3B", "train_ep": "8", "train_vpp": "3"}
    predict(train_dp="4", train_pp="4", train_tp="1", micro_batch="2", recompute="selective", **moe)
    facts, shape, head, layout = priced[0]
    assert (shape.name, head, facts.group.num_gpus, facts.group.gpus_per_node) == ("qwen3-30b-a3b", "lm", 16, 8)
    found = (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, layout.vpp, layout.micro_batch, layout.recompute)
    assert found == (4, 1, 4, 1, 8, 3, 2, "selective")
    work = facts.workload
    assert (work.num_samples, work.minibatches, work.trained_tokens_per_sample) == (64, 1, 4096)


def test_data_parallelism_fills_the_gpus(priced):
    predict(train_cp="2")
    assert priced[0][3].dp == 16 // (2 * 2 * 2)
    assert reason(train_dp="3") == "tp 2 x pp 2 x cp 1 x dp 3 is not the 16 GPUs of the row"


def test_fsdp_shards_parameters_unless_it_has_a_pipeline(priced):
    predict(system="torchtitan", train_pp="1")
    predict(system="torchtitan", train_pp="2", micro_batch="8")
    predict(system="Megatron-Bridge")
    assert [layout.zero_stage for *_, layout in priced] == [3, 1, 1]


@pytest.mark.parametrize(("system", "micro_batch"), [("torchtitan", 4), ("torchtitan 0.1", 1), ("torchtitan v0.2", 1)])
def test_a_local_batch_is_cut_into_the_pipelines_micro_batches_as_its_release_does(priced, system, micro_batch):
    """As many as ranks of the pipeline; of one sequence from release 0.1 on."""
    predict(system=system, train_pp="2", micro_batch="8")
    assert priced[0][3].micro_batch == micro_batch


def test_a_micro_batch_is_no_larger_than_the_batch_of_a_rank(priced):
    predict(micro_batch="64")
    assert priced[0][3].micro_batch == 64 // 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"micro_batch": "", "train_pp": "1"}, "micro-batch not stated: 4"),
        ({"micro_batch": ""}, "micro-batch not stated: 1"),
        ({"recompute": ""}, "recompute not stated: none assumed"),
        ({"global_batch": "", "micro_batch": ""}, "global batch not stated: 128"),
        ({"train_vpp": ""}, "interleaving not stated: 9 chunks of about 2 layers per stage"),  # 36 layers on 2 stages
        ({"system": "torchtitan", "seq_len": ""}, "sequence length not stated: 8192"),
    ],
)
def test_what_was_assumed_is_said(changes, words):
    row = predict(**changes)["step_time_s"]
    assert row.predicted is not None
    assert words in row.reason


def test_plain_1f1b_is_not_interleaved(priced):
    predict(other_settings="TP 2 x PP 2, 1F1B")
    predict(other_settings="TP 2 x PP 2, Interleaved 1F1B")
    assert [layout.vpp for *_, layout in priced] == [1, 9]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"system": "MaxText"}, "no trainer known for system 'MaxText'"),
        ({"precision": "MXFP4"}, "no training GEMM tables for precision 'MXFP4'"),
        ({"precision": "NVFP4"}, "h100-80gb-sxm: no peak rate for dtype 'nvfp4'"),
        ({"gpu_kind": "V100"}, "no operator tables for V100"),
        ({"gpu_kind": ""}, "the source does not name the GPU"),
        ({"train_tp": "", "train_pp": ""}, "the parallel layout is not stated"),
        ({"num_gpus": ""}, "num_gpus is not stated"),
        ({"num_gpus": "15"}, "is not the 15 GPUs of the row"),
        ({"seq_len": ""}, "the sequence length is not stated"),
        ({"train_tp": "2.5"}, "'2.5' is no whole number"),
    ],
)
def test_what_cannot_be_predicted_says_why(changes, words):
    assert words in reason(**changes)


def test_a_row_without_numbers_says_so():
    nothing = dict.fromkeys(("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "peak_mem_gib"), "")
    (row,) = predict(**nothing).values()
    assert (row.predicted, row.reason) == (None, "the row publishes no step time, throughput or memory")


def test_throughput_is_the_tokens_of_the_batch_over_the_step():
    rows = predict()
    seconds = rows["step_time_s"].predicted
    assert rows["tokens_per_s_per_gpu"].predicted == pytest.approx(64 * 4096 / seconds / 16)
    flop = 64 * 4096 * training.model_flop_per_token(CELLS, load_model("qwen3-8b"), 4096)
    assert rows["tflops_per_gpu"].predicted == pytest.approx(flop / seconds / 16 / 1e12)


def test_a_windowed_counter_is_not_compared():
    rows = predict(system="prime-rl trainer", train_pp="1", train_tp="1")
    assert rows["step_time_s"].predicted is not None
    assert rows["tokens_per_s_per_gpu"].predicted is None
    assert "windowed counter" in rows["tokens_per_s_per_gpu"].reason


def test_attention_counts_whole_in_old_tables_and_half_in_others():
    """Llama-3.1-8B: 6 per matrix parameter (not the embedding), 12 x layers x width x length for all pairs."""
    shape = load_model("llama-3.1-8b")
    matrices = 6 * (shape.num_params - shape.vocab * shape.hidden)
    attention = 12 * 32 * 4096 * 8192
    whole = training.model_flop_per_token({"source": "Megatron-LM README"}, shape, 8192)
    half = training.model_flop_per_token({"source": "NeMo performance summary"}, shape, 8192)
    assert (whole, half) == (matrices + attention, matrices + attention / 2)
    tied = load_model("llama-3.2-1b")
    assert training.model_flop_per_token({}, tied, 0) == 6 * tied.num_params, "its embedding is its head"


def test_frozen_weights_count_four_flop_and_a_packs_samples_attend_within_themselves():
    """A published LoRA row of a 13B model: 757 TFLOP/s at 14,629 tokens/s is 4 FLOPs a parameter."""
    shape, squad = load_model("llama-3.1-8b"), {"system": "NeMo 24.07", "notes": "SQuAD packed to 4096"}
    plain = training.model_flop_per_token(squad | {"task": "sft"}, shape, 4096)
    lora = training.model_flop_per_token(squad | {"task": "lora"}, shape, 4096)
    matrices = shape.num_params - shape.vocab * shape.hidden
    assert plain - lora == 2 * matrices
    assert plain - 6 * matrices == pytest.approx(12 * 32 * 4096 * 200 / 2, rel=0.05)


def test_a_length_may_be_shortened():
    assert predict(seq_len="4K")["step_time_s"].predicted == predict(seq_len="4,096")["step_time_s"].predicted


def test_memory_is_what_the_allocator_holds():
    """Zero-stage-1 Megatron on 4 data-parallel ranks of 4 GPUs each: 6 bytes and a quarter of 12 per parameter."""
    found = predict()["peak_mem_gib"].predicted
    states = load_model("qwen3-8b").num_params / 4 * (6 + 12 / 4) / 2**30
    assert states < found < 2.5 * states


COLUMNS = (
    "num_gpus",
    "gpus_per_node",
    "seq_len",
    "train_tp",
    "train_pp",
    "train_cp",
    "train_ep",
    "train_vpp",
    "train_dp",
    "micro_batch",
    "global_batch",
    "grad_accum",
    "step_time_s",
    "model",
    "gpu_kind",
    "precision",
    "recompute",
    "task",
    "system",
)


@pytest.mark.parametrize("cell", ["-1", "0", "abc", " 16 ", "1,024", "2.5", "nan", "16 GPUs", float("nan"), None])
def test_dirty_cells_never_stop_the_run(cell):
    records = [CELLS | {"id": column, column: cell} for column in COLUMNS]
    rows = training.predict(pd.DataFrame(records, dtype=object))
    assert {row.id for row in rows} == set(COLUMNS)
    for row in rows:
        assert row.predicted is not None or row.reason, row
        assert not row.reason.startswith(INTERNAL), row


@pytest.mark.parametrize(("written", "meant"), [(" 16 ", "16"), ("1,024", "1024"), ("64.0", "64")])
def test_numbers_are_read_as_strangers_write_them(written, meant):
    assert (
        predict(global_batch=written)["step_time_s"].predicted == predict(global_batch=meant)["step_time_s"].predicted
    )


def test_a_published_zero_is_no_measurement():
    for row in predict(step_time_s="0", peak_mem_gib="-1").values():
        assert row.measured > 0


def test_samples_of_a_packed_sequence_do_not_attend_to_each_other():
    """SQuAD packed to 4,096 tokens: as many tokens in samples of 200, so attention is short and all else as it was."""
    row = {"seq_len": "4096", "notes": "SQuAD packed to 4096; recompute not stated"}
    assert training.samples_of_a_pack(row, 4096) == 20
    assert training.samples_of_a_pack({"seq_len": "4096", "notes": "packed to the full sequence"}, 4096) == 1
