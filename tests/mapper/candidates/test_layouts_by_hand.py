"""Protects which micro-batches and numbers of sequences are tried: lists worked out by hand for small loads."""

import numpy as np
import pytest

from mapper.candidates.layouts import cross, generation_layouts
from profiles.models.catalogue import load_model
from tests.builders import make_facts, workload


@pytest.mark.parametrize(
    ("samples", "micro_batches"),
    [
        (1, [1]),
        (3, [1, 2, 4]),  # 4 holds all 3; 8 would change nothing
        (4, [1, 2, 4]),
        (5, [1, 2, 4, 8]),
        (1000, [1, 2, 4, 8, 16, 32]),
    ],
)
def test_micro_batches_double_until_one_holds_every_sample_of_a_rank(samples: int, micro_batches: list[int]) -> None:
    layouts, owner = cross([(2, 1, 1, 1, 1)], (1,), (0,), np.asarray([samples]))
    assert layouts.micro_batch.tolist() == micro_batches
    assert owner.tolist() == [0] * len(micro_batches)


@pytest.mark.parametrize(
    ("samples", "sequences"),
    [
        (1, [1]),
        (6, [1, 2, 3, 6]),
        (16, [1, 2, 3, 4, 6, 8, 16]),  # in 1, 2, 3, 4, 6 .. waves, each of them as even as can be
        (600, [1, 2, 5, 7, 10, 13, 19, 25, 30, 38, 50, 60, 67, 75, 86, 100, 120, 150, 200, 256]),
    ],
)
def test_sequences_in_flight_are_those_of_even_waves_up_to_what_the_engine_takes(
    samples: int, sequences: list[int]
) -> None:
    """A replica of all eight GPUs; vLLM 0.3.1 takes 256 at once. The fewest are halved down to one."""
    facts = make_facts(work=workload(samples, minibatches=1))
    found = generation_layouts(facts, load_model("llama-2-7b"), 8)
    whole = (found.tp == 8) & (found.pp == 1)
    assert found.max_num_seqs[whole].tolist() == sequences


def test_engines_of_two_samples_are_those_with_one_or_two_replicas() -> None:
    facts = make_facts(work=workload(2, minibatches=1))
    found = generation_layouts(facts, load_model("llama-2-7b"), 8)
    degrees = set(zip(found.dp.tolist(), found.tp.tolist(), found.pp.tolist(), strict=True))
    assert degrees == {(1, 8, 1), (1, 4, 2), (1, 2, 4), (1, 1, 8), (2, 4, 1), (2, 2, 2), (2, 1, 4)}
