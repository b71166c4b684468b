"""Protects rows that measure the hand-over of weights alone: they are priced, and what was filled in is said."""

import pandas as pd
import pytest

from benchmarks.validation import rl

CELLS = {
    "id": "r",
    "row_kind": "refit_only",
    "system": "verl V1 separate_async, method nccl full broadcast",
    "gpu_kind": "H100-SXM-80GB",
    "num_gpus": "16",
    "gpus_per_node": "8",
    "train_gpus": "8",
    "gen_gpus": "8",
    "placement": "separate",
    "model": "Qwen2.5-7B",
    "refit_time_s": "5.75",
    "notes": "1+1 nodes",
}
RECIPE = {"system": "NeMo-RL", "num_gpus": "", "train_gpus": "", "gen_gpus": "", "gpus_per_node": ""}


def predict(**changes):
    (row,) = rl.predict(pd.DataFrame([CELLS | changes], dtype=object))
    return row


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "layouts not stated: sharded data parallelism, engines of one GPU"),
        ({"model": "Qwen3-30B-A3B", "notes": "veomni EP8, 1+1 nodes"}, "layouts not stated"),
        (RECIPE | {"model": "DeepSeek-V3", "placement": "colocated"}, "those of the system's own recipe"),
        (RECIPE | {"model": "Qwen3-235B-A22B"}, "those of the system's own recipe"),
    ],
)
def test_a_hand_over_is_priced_and_what_was_filled_in_is_said(changes, words):
    row = predict(**changes)
    assert row.quantity == "refit_time_s" and row.predicted > 0
    assert words in row.reason


def test_more_weights_take_longer():
    assert predict(model="Qwen2.5-32B").predicted > predict().predicted


def test_a_hand_over_of_unknown_size_is_refused():
    row = predict(**RECIPE, model="Qwen2.5-7B")
    assert row.predicted is None
    assert "no recipe of the system gives it" in row.reason


def test_an_engine_of_unknown_layout_has_as_many_gpus_as_hold_its_weights():
    """470 GB of Qwen3-235B do not fit on the one GPU that was taken for every model, and the row was refused."""
    row = predict(model="Qwen3-235B-A22B", num_gpus="64", train_gpus="32", gen_gpus="32", notes="EP8, 4+4 nodes")
    assert row.predicted > 0
    assert "engines of 8 GPUs" in row.reason


@pytest.mark.parametrize("model", ["DeepSeek-V3", "Qwen3-235B-A22B", "Qwen3-30B-A3B", "Qwen3-32B", "Llama-3.1-8B"])
def test_a_recipe_is_that_of_the_placement(model):
    colocated, separate = (predict(**RECIPE, model=model, placement=p) for p in ("colocated", "separate"))
    assert colocated.predicted > 0 and separate.predicted > 0
    assert colocated.predicted != separate.predicted


def test_a_hand_over_of_another_kind_is_refused():
    row = predict(system="Kimi checkpoint-engine")
    assert row.predicted is None
    assert "no facts of how 'Kimi checkpoint-engine' hands weights over" in row.reason
