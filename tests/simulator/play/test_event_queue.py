"""Protects the event queue: hand-computed timelines as whole lists, the total order at equal times, and the promise
that a shorter call never lengthens an iteration.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.plan.dataflow import CONTROLLER, build_dataflow
from simulator.play.event_queue import Priority, Task, critical_path, run_events
from simulator.play.schedule import play

PPO_ROLES = ("actor", "critic", "reference", "reward")
PPO = {
    "transition": 1,
    "generate_sequences": 10,
    "compute_values": 2,
    "compute_ref_log_prob": 3,
    "compute_reward": 4,
    "compute_advantage": 1,
    "update_critic": 5,
    "update_actor": 6,
}
REMAX = {
    "transition": 1,
    "generate_sequences": 10,
    "generate_sequences:greedy": 10,
    "compute_ref_log_prob": 3,
    "compute_reward": 4,
    "compute_reward:greedy": 4,
    "compute_advantage": 1,
    "update_actor": 6,
}

Log = list[tuple[str, float, float]]


def timeline(algorithm: str, roles: tuple[str, ...], durations: dict[str, int], sets: list[tuple[str, ...]]) -> Log:
    flow = build_dataflow(algorithm, roles)
    pool_of = {role: "ABCDE"[i] for i, members in enumerate(sets) for role in members} | {CONTROLLER: CONTROLLER}
    records = play(flow, durations, pool_of)
    return [(call.key, r.start_s, r.end_s) for call, r in zip(flow.calls, records, strict=True)]


def test_ppo_colocate_is_serial() -> None:
    assert timeline("ppo", PPO_ROLES, PPO, [PPO_ROLES]) == [
        ("transition", 0, 1),
        ("generate_sequences", 1, 11),
        ("compute_values", 11, 13),
        ("compute_ref_log_prob", 13, 16),
        ("compute_reward", 16, 20),
        ("compute_advantage", 20, 21),
        ("update_critic", 21, 26),
        ("update_actor", 26, 32),
    ]


def test_ppo_split_overlaps_two_pools() -> None:
    assert timeline("ppo", PPO_ROLES, PPO, [("actor", "reference"), ("critic", "reward")]) == [
        ("transition", 0, 1),
        ("generate_sequences", 1, 11),
        ("compute_values", 11, 13),
        ("compute_ref_log_prob", 11, 14),
        ("compute_reward", 13, 17),
        ("compute_advantage", 17, 18),
        ("update_critic", 18, 23),
        ("update_actor", 18, 24),
    ]


def test_ppo_standalone_overlaps_everything_that_its_inputs_allow() -> None:
    assert timeline("ppo", PPO_ROLES, PPO, [(role,) for role in PPO_ROLES]) == [
        ("transition", 0, 1),
        ("generate_sequences", 1, 11),
        ("compute_values", 11, 13),
        ("compute_ref_log_prob", 11, 14),
        ("compute_reward", 11, 15),
        ("compute_advantage", 15, 16),
        ("update_critic", 16, 21),
        ("update_actor", 16, 22),
    ]


def test_remax_scores_the_samples_while_the_greedy_baseline_is_generated() -> None:
    roles = ("actor", "reference", "reward")
    assert timeline("remax", roles, REMAX, [(role,) for role in roles]) == [
        ("transition", 0, 1),
        ("generate_sequences", 1, 11),
        ("generate_sequences:greedy", 11, 21),
        ("compute_ref_log_prob", 11, 14),
        ("compute_reward", 11, 15),
        ("compute_reward:greedy", 21, 25),
        ("compute_advantage", 25, 26),
        ("update_actor", 26, 32),
    ]
    assert timeline("remax", roles, REMAX, [roles])[-1] == ("update_actor", 33, 39)


def test_safe_rlhf_trains_the_critic_beside_the_actors_pretraining_loss() -> None:
    roles = (*PPO_ROLES, "cost")
    durations = PPO | {"compute_cost": 9, "compute_loss": 2}
    log = timeline("safe-rlhf", roles, durations, [("actor", "reference"), ("critic", "reward"), ("cost",)])
    assert log[-6:] == [
        ("compute_reward", 13, 17),
        ("compute_cost", 11, 20),
        ("compute_advantage", 20, 21),
        ("update_critic", 21, 26),
        ("compute_loss", 21, 23),
        ("update_actor", 23, 29),
    ]


def test_calls_of_a_pool_take_turns_in_call_order_without_overtaking() -> None:
    """The second task could start at once, but the first of its pool is still waiting for its input."""
    tasks = [Task("slow", "A", 10, ()), Task("waits", "B", 1, (0,)), Task("ready", "B", 5, ())]
    assert [(r.start_s, r.end_s) for r in run_events(tasks)] == [(0, 10), (10, 11), (11, 16)]


def test_order_at_equal_times_is_total() -> None:
    """Ends before starts, then by number: who ended last is well defined, however inputs are listed."""
    assert Priority.END < Priority.START
    first, second = Task("first", "A", 5, ()), Task("second", "B", 5, ())
    for inputs in ((0, 1), (1, 0)):
        records = run_events([first, second, Task("third", "C", 1, inputs)])
        assert records[2].waited_for == 1
        assert critical_path(records) == (1, 2)


def test_nothing_takes_no_time_but_keeps_its_place() -> None:
    tasks = [Task("a", "A", 0, ()), Task("b", "B", 0, (0,)), Task("c", "A", 2, (1,)), Task("d", "B", 0, (2,))]
    records = run_events(tasks)
    assert [(r.start_s, r.end_s, r.waited_for) for r in records] == [(0, 0, None), (0, 0, 0), (0, 2, 1), (2, 2, 2)]
    assert critical_path(records) == (0, 1, 2, 3)


@st.composite
def task_lists(draw: st.DrawFn) -> list[Task]:
    """Up to nine tasks on three resources with inputs that point backwards and many equal durations."""
    out: list[Task] = []
    for i in range(draw(st.integers(1, 9))):
        inputs = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        out.append(Task(str(i), draw(st.sampled_from("ABC")), draw(st.integers(0, 4)), tuple(inputs)))
    return out


@settings(max_examples=150)
@given(tasks=task_lists())
def test_every_task_starts_as_soon_as_it_may(tasks: list[Task]) -> None:
    records = run_events(tasks)
    for i, (task, record) in enumerate(zip(tasks, records, strict=True)):
        same = [j for j in range(i) if tasks[j].resource == task.resource]
        waits = [records[j].end_s for j in (*task.inputs, *same[-1:])]
        assert record.start_s == max(waits, default=0)
        assert record.end_s == record.start_s + task.duration_s
        assert (record.waited_for is None) == (not waits)
        assert record.waited_for is None or records[record.waited_for].end_s == record.start_s


@settings(max_examples=150)
@given(tasks=task_lists())
def test_the_critical_path_adds_up_to_the_makespan(tasks: list[Task]) -> None:
    records = run_events(tasks)
    path = critical_path(records)
    assert sum(tasks[i].duration_s for i in path) == max(r.end_s for r in records)
    assert list(path) == sorted(path)
    assert records[path[0]].start_s == 0
    assert records[path[-1]].end_s == max(r.end_s for r in records)


@settings(max_examples=150)
@given(tasks=task_lists(), data=st.data())
def test_a_shorter_task_never_lengthens_the_makespan(tasks: list[Task], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(tasks) - 1))
    shorter = Task(
        tasks[i].name, tasks[i].resource, data.draw(st.integers(0, int(tasks[i].duration_s))), tasks[i].inputs
    )
    before, after = run_events(tasks), run_events([*tasks[:i], shorter, *tasks[i + 1 :]])
    assert max(r.end_s for r in after) <= max(r.end_s for r in before)
    assert all(a.end_s <= b.end_s for a, b in zip(after, before, strict=True))


@settings(max_examples=50)
@given(tasks=task_lists(), seed=st.integers(0, 1000))
def test_the_order_of_inputs_changes_nothing(tasks: list[Task], seed: int) -> None:
    rng = random.Random(seed)
    shuffled = [Task(t.name, t.resource, t.duration_s, tuple(rng.sample(t.inputs, len(t.inputs)))) for t in tasks]
    assert run_events(tasks) == run_events(shuffled)


def test_an_input_that_points_forward_is_a_bug_of_ours() -> None:
    with pytest.raises(AssertionError, match="inputs must point backwards"):
        run_events([Task("a", "A", 1, (1,)), Task("b", "A", 1, ())])
