"""Protects one rank's side of a checkpoint: random states come back, errors of the thread that writes are told."""

import random

import numpy as np
import pytest
import torch

from executor.checkpoint.manifest import RoleFacts
from executor.checkpoint.rank import RankCheckpoint, report_name, take_report
from executor.checkpoint.shards import Chunk, EngineState
from executor.recovery.saver import _together
from profiles.errors import InputError


def drawn():
    return torch.rand(3).tolist(), random.random(), random.gauss(), np.random.rand(3).tolist()  # noqa: NPY002


def saved(folder, value=1.0):
    """Save a chunk and this process's random states; the facts of the role."""
    rank = RankCheckpoint(0)
    rank.begin(
        folder, EngineState((Chunk("w", ((0, 2),), torch.full((2,), value)),), {"optimizer_steps": 3}), {"updates": 1}
    )
    rank.finish()
    return take_report(folder / report_name(0))


def loaded(folder, facts, num_ranks):
    """What a rank reads, and the counters that it is told."""
    found = []

    def load_state(fill, counters):
        values = torch.zeros(2)
        fill([Chunk("w", ((0, 2),), values)])
        found.append((values.tolist(), counters))

    RankCheckpoint(0).load(folder, facts, load_state, num_ranks)
    return found[0]


def test_states_counters_and_random_streams_come_back(tmp_path):
    random.gauss()  # leaves a second number for later, which is part of the state
    facts = saved(tmp_path, 2.5)
    expected = drawn()
    assert drawn() != expected
    assert loaded(tmp_path, facts, 1) == ([2.5, 2.5], {"optimizer_steps": 3, "updates": 1})
    assert drawn() == expected


def test_on_another_number_of_ranks_random_streams_are_left_alone(tmp_path):
    facts = saved(tmp_path)
    state = torch.get_rng_state()
    assert loaded(tmp_path, facts, 2)[0] == [1.0, 1.0]
    assert torch.equal(torch.get_rng_state(), state)


def test_every_file_is_compared_with_its_digest_by_one_rank(tmp_path):
    facts = saved(tmp_path)
    assert RankCheckpoint(0).damage(tmp_path, facts, 1) == ""
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "is damaged" in RankCheckpoint(0).damage(tmp_path, facts, 2)
    assert RankCheckpoint(1).damage(tmp_path, facts, 2) == ""  # not its share


def test_errors_of_ours_in_the_writing_thread_stay_what_they_are(tmp_path):
    """Only the file system's are somebody's input."""
    rank = RankCheckpoint(0)
    rank.begin(tmp_path, EngineState((Chunk("w", ((0, 2),), None),), {}), {})
    with pytest.raises(ValueError, match=r"expected torch.Tensor") as told:
        rank.finish()
    assert not isinstance(told.value, InputError)


def test_what_the_writing_thread_had_against_it_is_told_when_asked(tmp_path):
    rank = RankCheckpoint(0)
    rank.begin(tmp_path / "nowhere", EngineState(), {})
    with pytest.raises(InputError, match=r"the checkpoint could not be written: .*nowhere"):
        rank.finish()
    rank.finish()  # told once


def test_ranks_that_count_differently_make_no_checkpoint():
    ranks = [RoleFacts(num_ranks=1, counters={"optimizer_steps": steps}, files={}) for steps in (4, 4, 5)]
    assert _together("actor", ranks[:2]).num_ranks == 2
    with pytest.raises(InputError, match=r"ranks of actor are not in step: rank 0 counts .*4.*, rank 2 .*5"):
        _together("actor", ranks)
