"""Protects what varying lengths cost a pipeline: beside plays with many more draws, and beside verl's own dealing."""

import numpy as np
import pytest

from profiles.workload import LengthDistribution, Workload
from simulator.cost import pipeline, pipeline_schedule
from simulator.cost.compute import Batch
from simulator.cost.micro_batches import micro_batch, sample_lengths
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout, TokenBudget
from tests.builders import make_facts

STAGES = (2, 3, 8, 32)
COUNTS = (1, 2, 3, 5, 12, 24, 48, 64)
LENGTHS = {  # a prompt, responses, and about the deviation of a sample over its mean
    "equal": (10, LengthDistribution.fixed(1000), 0.0),
    "a quarter": (700, LengthDistribution("lognormal", 1000, 4096, 2300.0), 0.24),
    "half": (600, LengthDistribution("lognormal", 900, 4096, 3300.0), 0.45),
    "clipped": (1, LengthDistribution("lognormal", 5000, 8192), 0.5),
    "two peaks": (100, LengthDistribution.histogram((200, 4000), (0.5, 0.5)), 0.86),
    "one": (1, LengthDistribution("lognormal", 1200, 16384, 5800.0), 0.93),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_within_a_twentieth_of_a_play_with_many_draws(name: str) -> None:
    prompt, response, cv = LENGTHS[name]
    lengths = prompt + response.sample(4096)
    assert lengths.std() / lengths.mean() == pytest.approx(cv, abs=0.06)
    random = np.random.default_rng(7)
    for stages in STAGES:
        for n in COUNTS:
            for together in (1, 4):
                num = min(max(200, 12_000 // n), 4096)
                drawn = random.permuted(np.tile(lengths, (n * together, 1)), axis=1)[:, :num]
                drawn = drawn.reshape(n, together, -1).sum(axis=1) / (lengths.mean() * together)
                played = pipeline_schedule.played(pipeline_schedule.schedule(stages, n), drawn).mean() / (
                    n + stages - 1
                )
                found = factor(prompt, response, pp=stages, sequences=together, n=n)
                assert found == pytest.approx(played, rel=0.05), (stages, n, together)


def factor(
    prompt: int, response: LengthDistribution, *, n: float, sequences: float = 1, backward: bool = True, **degrees: int
) -> float:
    layout = ParallelLayout(**({"dp": 1, "tp": 1, "pp": 1, "micro_batch": 1} | degrees))
    work = Workload(64, 1, prompt, response)
    facts = make_facts(work=work)
    tokens = np.asarray([sequences * work.trained_tokens_per_sample])
    batch = Batch(tokens, np.asarray([float(sequences)]), tokens / sequences)
    found = pipeline.waiting(facts, Layouts.of([layout]), batch, np.asarray([float(n)]), backward=backward)
    return float(found[0])


@pytest.mark.parametrize(("stages", "chunks"), [(5, 4), (6, 2), (10, 2), (20, 2)])
def test_interleaved_pipelines_of_any_number_of_stages_are_played(stages: int, chunks: int) -> None:
    """As many micro-batches as stages make a group; a play of other numbers of them would wait for ever."""
    prompt, response, _ = LENGTHS["one"]
    found = factor(prompt, response, n=4 * stages, sequences=1, pp=stages, vpp=chunks)
    assert 1.0 < found < 3.0


def test_equal_lengths_never_wait() -> None:
    prompt, response, _ = LENGTHS["equal"]
    for degrees in ({"pp": 8}, {"pp": 8, "dp": 16}, {"pp": 4, "vpp": 2}):
        assert factor(prompt, response, n=16, **degrees) == pytest.approx(1.0, abs=1e-12)


def test_forward_only_a_pipeline_waits_for_its_longest_micro_batch() -> None:
    """Stages that are equally long pass all sequences on: ``sum + (p - 1) longest``; here by two lengths, exactly."""
    prompt, response, _ = LENGTHS["two peaks"]
    short, long = 300 / 2200, 4100 / 2200
    longest = long - (long - short) * 0.5**4
    expected = (4 + 7 * longest) / 11
    assert factor(prompt, response, pp=8, n=4, backward=False) == pytest.approx(expected, rel=0.02)


def test_without_stages_the_slowest_of_many_ranks_counts() -> None:
    """``1 + cv / sqrt(n)`` times the expected maximum of 16 normals, 1.766."""
    prompt, response, _ = LENGTHS["half"]
    lengths = sample_lengths(Workload(64, 1, prompt, response))
    cv = lengths.std() / lengths.mean()
    assert factor(prompt, response, n=25, sequences=4, dp=16) == pytest.approx(1 + 1.766 * cv / 10, abs=1e-3)


def test_more_ranks_wait_longer_and_larger_micro_batches_less() -> None:
    prompt, response, _ = LENGTHS["half"]
    one, many = (factor(prompt, response, pp=4, n=16, dp=d) for d in (1, 32))
    large = factor(prompt, response, pp=4, n=16, sequences=8)
    assert 1.0 < large < one < many


def test_beyond_what_is_played_a_step_grows_by_a_micro_batch_at_a_time() -> None:
    prompt, response, _ = LENGTHS["half"]
    times = [factor(prompt, response, pp=8, n=n) * (n + 7) for n in (64, 128, 192)]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])


def dealt(lengths: np.ndarray, parts: int) -> list[list[int]]:
    """Karmarkar and Karp's differencing: the two states that differ most are joined, large sums with small ones."""
    states = [[(float(n), [i]), *[(0.0, list[int]())] * (parts - 1)] for i, n in enumerate(lengths)]
    while len(states) > 1:
        states.sort(key=lambda state: state[0][0] - state[-1][0])
        first, second = states.pop(), states.pop()
        joined = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(first, reversed(second), strict=True)]
        states.append(sorted(joined, key=lambda part: -part[0]))
    return [part[1] for part in states[0]]


def step_of_budgets(lengths: np.ndarray, ranks: int, budget: int, stages: int) -> float:
    """When a step ends as verl runs it: samples dealt to ranks, then to the micro-batches of the rank with the most."""
    of_rank = [lengths[part] for part in dealt(lengths, ranks)]
    num = max(min(-(-int(own.sum()) // budget), len(own)) for own in of_rank)
    ends = []
    for own in of_rank:
        sums = sorted((own[part].sum() for part in dealt(own, num)), reverse=True)
        times = np.asarray(sums[::2][::-1] + sums[1::2])[:, None]
        ends.append(float(pipeline_schedule.played(pipeline_schedule.schedule(stages, num), times)[0]))
    return max(ends)


@pytest.mark.parametrize("name", ["half", "two peaks", "one"])
@pytest.mark.parametrize(("stages", "ranks", "samples", "longest"), [(1, 4, 16, 1), (4, 2, 24, 1), (8, 1, 64, 2)])
def test_budgets_of_tokens_are_within_a_twentieth_of_verls_dealing(
    name: str, stages: int, ranks: int, samples: int, longest: int
) -> None:
    prompt, response, _ = LENGTHS[name]
    work = Workload(samples * ranks, 1, prompt, response)
    facts = make_facts(work=work)
    budget = longest * work.padded_length
    layout = ParallelLayout(dp=ranks, pp=stages, micro_batch=TokenBudget(tokens=budget))
    layouts, share = Layouts.of([layout]), np.asarray([float(samples)])
    batch, num = micro_batch(work, layouts, share)
    factor = pipeline.waiting(facts, layouts, batch, num)
    ours = float((batch.tokens * (num + stages - 1) * factor)[0])
    random = np.random.default_rng(1)
    draws = [prompt + response.quantile(random.random(samples * ranks)) for _ in range(48)]
    played = np.mean([step_of_budgets(lengths, ranks, budget, stages) for lengths in draws])
    assert ours == pytest.approx(played, rel=0.05)


def test_budgets_wait_less_than_as_many_samples() -> None:
    prompt, response, _ = LENGTHS["half"]
    work = Workload(256, 1, prompt, response)
    facts = make_facts(work=work)
    share = np.asarray([64.0])
    factors = []
    for unit in (4, TokenBudget(tokens=4 * (600 + 900))):
        layouts = Layouts.of([ParallelLayout(dp=4, pp=8, micro_batch=unit)])
        batch, num = micro_batch(work, layouts, share)
        factors.append(float(pipeline.waiting(facts, layouts, batch, num)[0]))
    assert 1.0 <= factors[1] < 1.0 + (factors[0] - 1.0) / 3
