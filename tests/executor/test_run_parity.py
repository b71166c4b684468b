"""Protects the promise that a plan changes where and when, never what: the same curve from every layout and placement.

Three PPO iterations of two optimizer steps each on a tiny model in fp32; rewards, losses and gradient norms must equal
those of one process to float tolerance, sampled tokens included.
"""

import json

import pytest

from executor.controller.pools import degrees_of
from executor.engines.native.transition import in_place_plan
from executor.run import run
from executor.weights.parameters import read_dense
from tests.executor.plans import ROLES, TINY, colocated, config, job, learned, metrics, plan

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]
ITERATIONS = 3
JOB = job("ppo", prompts=8, minibatches=2)
CONFIG = config(learning_rate=3e-3, launcher="ray")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The curve of one process, without Ray."""
    folder = tmp_path_factory.mktemp("reference")
    run(JOB, colocated("ppo"), config(learning_rate=3e-3, launcher="local"), folder, ITERATIONS)
    curve = metrics(folder)
    assert len({line["reward"] for line in curve}) > 1  # the curve moves: equal curves mean something
    assert curve[-1]["critic/loss"] < curve[0]["critic/loss"]
    return curve


def assert_same_curve(found, reference):
    assert len(found) == len(reference) == ITERATIONS
    for mine, theirs in zip(found, reference, strict=True):
        mine, theirs = (learned(line) for line in (mine, theirs))
        assert mine == pytest.approx(theirs, rel=2e-3, abs=2e-5)
        assert mine["reward"] == pytest.approx(theirs["reward"], abs=1e-6)  # the very same tokens


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        pytest.param((2, 1, 1), {}, marks=pytest.mark.slow),
        pytest.param((1, 2, 1), {"generation": (1, 1)}, marks=pytest.mark.slow),
        pytest.param((1, 1, 2), {"zero_stage": 0}, marks=pytest.mark.slow),
        pytest.param((1, 1, 2), {"zero_stage": 1, "micro_batch": 3}, marks=pytest.mark.slow),
        pytest.param((2, 2, 1), {"generation": (1, 1)}, marks=pytest.mark.slow),
        pytest.param((2, 2, 1), {"generation": (1, 2)}, marks=pytest.mark.slow),
        pytest.param((1, 2, 2), {"generation": (1, 1)}, marks=pytest.mark.slow),
        pytest.param((2, 2, 1), {"scoring": (1, 1, 4)}, marks=pytest.mark.long),
        pytest.param((1, 1, 4), {"scoring": (2, 2, 1)}, marks=pytest.mark.slow),
        pytest.param((1, 2, 2), {"scoring": (2, 1, 2)}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_every_layout_gives_the_curve_of_one_process(layout, options, reference, on_ray, tmp_path):
    chosen = colocated("ppo", layout, **options)
    timelines = run(JOB, chosen, CONFIG, tmp_path, ITERATIONS)
    assert_same_curve(metrics(tmp_path), reference)
    for timeline in timelines:
        assert_transition_counted(next(span for span in timeline.spans if span.call == "transition"), chosen)


def assert_transition_counted(span, chosen):
    """Bytes that crossed and the peak of the weights on the fullest rank, as the weight map says."""
    x = degrees_of(chosen.role("actor"), chosen.num_gpus)
    moved = in_place_plan(read_dense(TINY), x)
    received = sum(sum(moved.received_elements(rank).values()) for rank in range(x.num_ranks)) * 4
    assert (span.counts.bytes_in, span.counts.bytes_out) == (received, received)
    assert (received > 0) == (x.dg > 1)
    shard = max(sum(stored.numel for stored in moved.target.stored(rank)) for rank in range(x.num_ranks)) * 4
    assert span.counts.weights_peak_bytes - span.counts.bucket_bytes == shard


PLACEMENTS = {
    "colocate": {"A": (ROLES["ppo"], (1, 2, 2))},
    "split": {"A": (("actor", "reference"), (1, 1, 2)), "B": (("critic", "reward"), (1, 2, 1))},
    "standalone": {role: ((role,), (1, 1, 1)) for role in ROLES["ppo"]},
    "mixed": {"A": (("actor",), (2, 1, 1)), "B": (("critic", "reference"), (1, 1, 1)), "C": (("reward",), (1, 1, 1))},
}


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_on_four_ranks_gives_the_curve_of_one_process(placement, reference, on_ray, tmp_path):
    timelines = run(JOB, plan("ppo", PLACEMENTS[placement]), CONFIG, tmp_path, ITERATIONS)
    assert timelines[-1].num_gpus == 4
    assert_same_curve(metrics(tmp_path), reference)
    if placement != "colocate":
        assert sum(updates_overlap(timeline) for timeline in timelines) > ITERATIONS / 2


def updates_overlap(timeline):
    """Whether actor and critic train at the same time."""
    a, b = (next(s for s in timeline.spans if s.call == call) for call in ("update_actor", "update_critic"))
    return max(a.start_s, b.start_s) < min(a.end_s, b.end_s)


@pytest.mark.slow
def test_rows_that_do_not_divide_among_ranks_are_padded_and_change_nothing(on_ray, tmp_path):
    """Seven prompts over two ranks: the filler row is generated, scored and trained on without leaving a trace."""
    uneven = job("ppo", prompts=7)
    run(uneven, colocated("ppo"), config(launcher="local"), tmp_path / "one", ITERATIONS)
    run(
        uneven,
        colocated("ppo", (1, 1, 2)),
        CONFIG.model_copy(update={"learning_rate": 1e-3}),
        tmp_path / "two",
        ITERATIONS,
    )
    assert_same_curve(metrics(tmp_path / "two"), metrics(tmp_path / "one"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_other_families_and_tied_embeddings_train_alike_in_every_dimension(family, on_ray, tmp_path):
    document = json.loads(TINY.read_text()) | {"model_type": family, "tie_word_embeddings": True, "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(document))
    weights = {"weights": tmp_path / "config.json", "learning_rate": 3e-3}
    run(JOB, colocated("ppo"), config(**weights, launcher="local"), tmp_path / "one", ITERATIONS)
    sharded = colocated("ppo", (2, 2, 1), generation=(2, 1), scoring=(2, 1, 2))
    run(JOB, sharded, config(**weights, launcher="ray"), tmp_path / "four", ITERATIONS)
    assert_same_curve(metrics(tmp_path / "four"), metrics(tmp_path / "one"))
