"""Protects what one rank computes at once: micro-batches without padding, packs, and the wait for the fullest rank."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.workload import LengthDistribution
from simulator.cost import micro_batches, pipeline
from simulator.cost.compute import Batch
from simulator.facts import Facts, Implementation
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import make_facts, workload


def one(**degrees: object) -> Layouts:
    return Layouts.of([ParallelLayout.model_validate({"dp": 1, **degrees})])


def test_micro_batches_have_the_mean_number_of_tokens_without_padding() -> None:
    work = workload(128, 100, LengthDistribution.histogram((100, 300), (1.0, 1.0)), minibatches=1)
    batch, num = micro_batches.micro_batch(work, one(dp=4, micro_batch=8), np.asarray([32.0]))
    assert num.tolist() == [4.0]
    assert batch.tokens.tolist() == [8 * (100 + 200)]
    lengths = np.asarray([200.0, 400.0])
    assert batch.length == pytest.approx((lengths**2).sum() / lengths.sum())
    assert batch.sequences * batch.length == pytest.approx(batch.tokens)


def test_a_partial_last_micro_batch_counts_as_one_of_the_mean_size() -> None:
    work = workload(128, minibatches=1)
    batch, num = micro_batches.micro_batch(work, one(micro_batch=4), np.asarray([6.0]))
    assert num.tolist() == [2.0]
    assert batch.tokens.tolist() == [3 * 2048]


def packs_by_hand(lengths: list[float], capacity: float) -> int:
    """First fit decreasing, written another way: each pack is the list of what it holds."""
    packs: list[list[float]] = []
    for length in sorted(lengths)[::-1]:
        for pack in packs:
            if sum(pack) + length <= capacity:
                pack.append(length)
                break
        else:
            packs.append([length])
    return len(packs)


@settings(max_examples=20)
@given(
    prompt=st.integers(1, 600),
    capacity=st.integers(600, 5000),
    lengths=st.lists(st.integers(1, 4000), min_size=1, max_size=6, unique=True),
)
def test_packs_are_those_of_first_fit_decreasing(prompt: int, capacity: int, lengths: list[int]) -> None:
    response = LengthDistribution.histogram(tuple(lengths), (1.0,) * len(lengths))
    work = workload(64, prompt, response, minibatches=1)
    samples = micro_batches.sample_lengths(work).tolist()
    found = micro_batches.packs_per_sample(work, capacity) * micro_batches.NUM_LENGTHS
    assert found == packs_by_hand(samples, capacity)
    assert found >= np.sum(np.minimum(samples, capacity)) / capacity - 1e-9, "no pack is fuller than full"
    assert found <= len(samples)


@pytest.mark.parametrize(
    ("capacity", "packs"),
    [
        (300, 256 + 256),  # the long ones do not fit and have packs of their own
        (400, 256 + 128),  # a long one alone, two short ones together
        (600, 256),  # one of each
        (800, 128 + 64),  # two long ones, four short ones
        (1200, 86 + 42),  # three long ones; the last one, alone, takes four short ones, the rest go six by six
    ],
)
def test_packs_of_two_lengths_by_hand(capacity: int, packs: int) -> None:
    """Of 512 samples half have 200 tokens and half 400."""
    work = workload(64, 100, LengthDistribution.histogram((100, 300), (1.0, 1.0)), minibatches=1)
    assert micro_batches.packs_per_sample(work, capacity) == packs / 512


def test_micro_batches_hold_packs() -> None:
    """64 samples of 600 tokens, three to a pack of 2000: 21.4 packs are 22, in micro-batches of 4 they are 6."""
    work = workload(64, 100, 500, minibatches=1)
    assert micro_batches.packs_per_sample(work, 2000) == pytest.approx(171 / 512)
    batch, num = micro_batches.micro_batch(work, one(micro_batch=4), np.asarray([64.0]), 2000)
    assert num.tolist() == [6.0]
    assert batch.tokens == pytest.approx(64 * 600 / 6)
    assert batch.length.tolist() == [600.0], "attention does not cross the samples of a pack"


def lengths_of(cv: str) -> LengthDistribution:
    return LengthDistribution("lognormal", 1000.0, 100_000) if cv == "wide" else LengthDistribution.fixed(1000)


def fullest(facts: Facts, sequences: float = 1.0, num: float = 1.0, **degrees: object) -> float:
    """Tokens of the fullest rank over the mean, for ``num`` micro-batches of ``sequences`` samples."""
    tokens = np.asarray([sequences * facts.workload.trained_tokens_per_sample])
    batch = Batch(tokens, np.asarray([sequences]), tokens / sequences)
    return float(pipeline.waiting(facts, one(**degrees), batch, np.asarray([num]))[0])


def test_ranks_wait_only_for_lengths_that_differ() -> None:
    wide, fixed = (make_facts(work=workload(1024, 100, lengths_of(k))) for k in ("wide", "fixed"))
    assert fullest(wide, dp=8, zero_stage=3) > 1.2
    assert fullest(fixed, dp=8, zero_stage=3) == 1.0
    assert fullest(wide, dp=1, zero_stage=3) == 1.0
    assert fullest(replace(wide, implementation=Implementation(packed_tokens=4096)), dp=8, zero_stage=3) == 1.0


def test_the_wait_grows_with_the_ranks_and_shrinks_with_what_they_average_over() -> None:
    facts = make_facts(work=workload(1024, 100, lengths_of("wide")))
    by_ranks = [fullest(facts, dp=d, zero_stage=3) for d in (1, 2, 4, 8, 64)]
    assert by_ranks == sorted(set(by_ranks))
    by_size = [fullest(facts, n, dp=8, zero_stage=3) for n in (1.0, 4.0, 16.0)]
    assert by_size[0] - 1 == pytest.approx(2 * (by_size[1] - 1)) == pytest.approx(4 * (by_size[2] - 1))


def test_fsdp_waits_in_every_micro_batch_and_others_once_per_step() -> None:
    facts = make_facts(work=workload(1024, 100, lengths_of("wide")))
    assert fullest(facts, 2.0, 8.0, dp=8, zero_stage=3) == fullest(facts, 2.0, 1.0, dp=8, zero_stage=3)
    assert fullest(facts, 2.0, 8.0, dp=8, zero_stage=1) == fullest(facts, 16.0, 1.0, dp=8, zero_stage=1)
    assert fullest(facts, 2.0, 8.0, dp=8, zero_stage=1) < fullest(facts, 2.0, 8.0, dp=8, zero_stage=3)


@pytest.mark.parametrize(("ranks", "sequences"), [(4, 8), (8, 16), (32, 32)])
def test_the_wait_is_that_of_drawn_lengths(ranks: int, sequences: int) -> None:
    """Monte Carlo: 4000 times the largest of ``ranks`` sums of lognormal lengths, which are a little skewed: 6 %."""
    facts = make_facts(work=workload(1024, 100, lengths_of("wide")))
    lengths = 100 + facts.workload.response.quantile(
        np.random.default_rng(7).random((4000, ranks, sequences)).clip(1e-9, 1 - 1e-9)
    )
    drawn = (lengths.sum(axis=2).max(axis=1) / (lengths.mean() * sequences)).mean()
    assert fullest(facts, float(sequences), dp=ranks, zero_stage=3) == pytest.approx(drawn, rel=0.06)
