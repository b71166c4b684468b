"""Protects what an interval is taken from: rows that are alike, of enough families."""

import pandas as pd
import pytest

from benchmarks.validation.clusters import FEW, cluster, judged_by, members


def rows(**families):
    """Rows by cluster, with ``__`` for a slash: as many families as stated, two rows of each."""
    return pd.DataFrame(
        [
            {"cluster": path.replace("__", "/"), "family": f"{path} {family}"}
            for path, number in families.items()
            for family in (*range(number), *range(number))
        ]
    )


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (("rl", "step_time_s", "moe", "one-step-off", "gb200"), "rl/moe/overlapped/blackwell"),
        (("rl", "tokens_per_s_per_gpu", "dense", "sync", "h200-sxm"), "rl/dense/sync/hopper"),
        (("rl", "train_time_s", "moe", "sync", "MI300X"), "stage/train_time_s/moe/other"),
        (("generation", "tpot_ms", "dense", "", "a100-80gb-sxm"), "generation/tpot_ms/dense/ampere"),
        (("training", "tflops_per_gpu", "moe", "sync", "b300"), "training/moe/blackwell"),
        (("training", "mfu_basis", "moe", "sync", "b300"), ""),
        (("paper", "iteration_s", "dense", "", "a100-80gb-sxm", "nemo-aligner"), "paper/iteration_s/baselines"),
        (("paper", "transition_s", "dense", "", "a100-80gb-sxm", "hybridflow-v"), "paper/transition_s/hybridflow"),
    ],
)
def test_clusters(row, path):
    assert cluster(*row) == path


def test_a_cluster_with_enough_families_stands_by_itself():
    assert judged_by(rows(rl__moe__sync__hopper=FEW), "rl/moe/sync/hopper") == "rl/moe/sync/hopper"


def test_few_families_are_judged_by_the_smallest_cluster_around_them_that_has_enough():
    some = rows(rl__moe__sync__hopper=3, rl__moe__sync__blackwell=4, rl__dense__sync__hopper=6)
    assert judged_by(some, "rl/moe/sync/hopper") == "rl/moe/sync", "rows of one family count once"
    assert judged_by(some, "rl/dense/sync/hopper") == "rl"
    assert judged_by(some, "rl/dense/sync/ampere") == "rl", "and where nothing ran"


def test_a_table_without_enough_families_is_one_cluster():
    assert judged_by(rows(stage__train_time_s__moe__hopper=2), "stage/train_time_s/moe/hopper") == "stage"


def test_parts_without_tables_are_judged_with_each_other_alone():
    some = rows(rl__dense__sync__hopper=FEW, rl__dense__sync__other=1, stage__gen_time_s__dense__other=1)
    assert judged_by(some, "rl/dense/sync/other") == "other"
    assert sum(members(some, "other")) == 4
    assert sum(members(some, "rl")) == 2 * FEW
