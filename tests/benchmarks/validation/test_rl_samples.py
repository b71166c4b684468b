"""Protects how many samples of what length a published RL row is taken to mean, and in how many optimizer steps."""

import pytest

from benchmarks.validation.names import NotPredicted
from benchmarks.validation.rl_work import given_facts
from profiles.workload import Workload
from tests.builders import RL_CELLS


def work(**changes: str) -> Workload:
    return given_facts(RL_CELLS | changes, []).workload


def assumed(**changes: str) -> list[str]:
    words: list[str] = []
    given_facts(RL_CELLS | changes, words)
    return words


def test_samples_and_lengths_are_those_of_the_row():
    """64 prompts x 32 samples of 1000 tokens on average, at most 4096 with a prompt of 100."""
    found = work()
    assert (found.prompts, found.samples_per_prompt, found.prompt_length) == (64, 32, 100)
    assert (found.response.kind, found.response.mean, found.response.maximum) == ("lognormal", 1000.0, 3996)
    apart = work(max_seq_len="", max_response_len="2048").response
    assert (apart.kind, apart.maximum) == ("lognormal", 2048)
    full = work(max_seq_len="", max_response_len="1000").response
    assert (full.kind, full.mean) == ("fixed", 1000)


@pytest.mark.parametrize(
    ("changes", "prompt", "words"),
    [
        ({}, 100, []),
        ({"mean_prompt_len": "", "derived_tokens_per_sample": "1127.2"}, 127, ["prompt length from the published"]),
        ({"mean_prompt_len": "", "derived_tokens_per_sample": "1900"}, 115, ["prompt length not stated: 115 tokens"]),
        ({"mean_prompt_len": ""}, 115, ["prompt length not stated: 115 tokens"]),
    ],
)
def test_prompts(changes, prompt, words):
    assert work(**changes).prompt_length == prompt
    found = assumed(**changes)
    assert len(found) == len(words)
    assert all(a.startswith(b) for a, b in zip(found, words, strict=True))


@pytest.mark.parametrize(
    ("system", "batch", "steps"),
    [
        ("NeMo-RL v0.5.0", "512", 4),  # of 2048 samples
        ("NeMo-RL v0.5.0", "2048", 1),
        ("NeMo-RL v0.5.0", "4096", 1),  # no less than one
        ("verl", "16", 4),  # prompts, of 64
        ("SkyRL", "32", 2),  # its policy_mini_batch_size counts prompts, too
        ("verl", "64", 1),
    ],
)
def test_verl_counts_its_mini_batch_in_prompts_and_others_in_samples(system, batch, steps):
    found = work(system=system, global_batch=batch)
    assert found.minibatches == steps
    assert found.minibatch_samples == 2048 // steps


def test_one_optimizer_step_is_assumed_and_said():
    assert work(global_batch="").minibatches == 1
    assert assumed(global_batch="") == ["optimizer steps not stated: 1"]


def test_steps_that_do_not_divide_the_samples_are_refused():
    with pytest.raises(Exception, match="does not divide 2048 samples"):
        work(global_batch="700")


@pytest.mark.parametrize("batch", ["0", "-512", "abc"])
def test_a_batch_that_can_be_none_is_refused(batch):
    with pytest.raises(NotPredicted):
        work(global_batch=batch)


@pytest.mark.parametrize("column", ["mean_prompt_len", "max_seq_len"])
def test_a_negative_length_is_refused(column):
    with pytest.raises(NotPredicted):
        work(**{column: "-1"})
