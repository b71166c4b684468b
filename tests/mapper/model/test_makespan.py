"""Protects the one formula that greedy, pruning and oracle share: it must play what the event queue plays."""

import numpy as np

from mapper.model.makespan import makespan
from mapper.problem import ColocationGroup
from simulator.plan.dataflow import CONTROLLER
from simulator.play.schedule import play
from tests.builders import TOY, toy_instance
from tests.mapper.exhaustive import waiting_ticks


def test_makespan_plays_many_choices_at_once() -> None:
    x = toy_instance("ppo", ("actor", "critic", "reference", "reward"), 5)
    rng = np.random.default_rng(0)
    durations = {call.key: rng.integers(0, 50, 7).astype(float) for call in x.flow.calls}
    for partition in x.partitions:
        pool_of = {role: str(i) for i, group in enumerate(partition) for role in group.roles} | {CONTROLLER: CONTROLLER}
        ends = makespan(x, partition, durations)
        for i in range(7):
            played = play(x.flow, {key: float(v[i]) for key, v in durations.items()}, pool_of)
            assert ends[i] == max(record.end_s for record in played)


def test_waiting_is_what_a_pool_cannot_avoid() -> None:
    x = toy_instance("ppo", ("actor", "critic", "reference", "reward"), 0)
    advantage = int(x.ticks[CONTROLLER]["compute_advantage"][0])
    first = int((x.ticks["actor"]["transition"] + x.ticks["actor"]["generate_sequences"]).min())
    assert waiting_ticks(x, ColocationGroup(("actor", "reward"), TOY)) == advantage
    assert waiting_ticks(x, ColocationGroup(("critic", "reward"), TOY)) == advantage + first
