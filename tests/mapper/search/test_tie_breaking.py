"""Protects one answer among equals: of all as fast as the best, the one with the fewest GPUs, the least work and the
most free memory, whatever the seed and however many workers.
"""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.execution_mode import SYNC, ExecutionMode
from mapper.model.choices import fits, ticks_of
from mapper.model.instance import Instance
from mapper.model.variables import Choice
from mapper.request import SearchRequest
from mapper.search.best import best_choice
from mapper.search.find_plan import find_plan
from mapper.search.tie_breaking import STEP_MIB, tidy
from tests.builders import make_facts, tiny_facts, toy_instance, workload
from tests.draws import draws
from tests.mapper.exhaustive import exhaustive

JOBS = [("grpo", ("actor", "reference")), ("rloo", ("actor", "reward")), ("remax", ("actor", "reference", "reward"))]
OWN = ExecutionMode("one-step-off", dedicated_rollout=True)


def busy(instance: Instance, choice: Choice) -> int:
    return sum(
        int(t[choice.rows[r]]) for r, calls in instance.ticks.items() if r in choice.rows for t in calls.values()
    )


def held(instance: Instance, choice: Choice) -> int:
    """Steps of memory that the fullest GPUs of the pools hold."""
    total = 0
    for group, _ in choice.pools:
        rows = [(role, choice.rows[role]) for role in group.roles]
        resident = sum(int(instance.resident_mib[role][row]) for role, row in rows)
        need = resident + max(int(instance.transient_mib[role][row]) for role, row in rows)
        total += -(-need // STEP_MIB)
    return total


def in_steps(instance: Instance) -> Instance:
    """The instance with each MiB a step, which is what memory is compared in."""
    resident, transient, capacity = (
        {key: STEP_MIB * size for key, size in column.items()}
        for column in (instance.resident_mib, instance.transient_mib, instance.capacity_mib)
    )
    return replace(instance, resident_mib=resident, transient_mib=transient, capacity_mib=capacity)


def least(instance: Instance, ticks: int) -> tuple[int, int, int]:
    """The fewest GPUs of a choice of at most ``ticks``, the least work on so many, then memory: all, one by one."""
    found = []
    for partition in instance.partitions:
        for sizes in itertools.product(*(instance.sizes[group] for group in partition)):
            pools = tuple(zip(partition, sizes, strict=True))
            of = {role: pool for pool in pools for role in pool[0].roles}
            for rows in itertools.product(*(instance.rows(role, *of[role]).tolist() for role in instance.flow.roles)):
                choice = Choice(pools, dict(zip(instance.flow.roles, rows, strict=True)))
                if fits(instance, choice) and ticks_of(instance, choice) <= ticks:
                    found.append((instance.spent(pools), busy(instance, choice), held(instance, choice)))
    return min(found)


@settings(max_examples=draws(40))
@given(st.sampled_from(JOBS), st.integers(0, 10_000), st.integers(2, 5), st.integers(0, 2))
def test_the_fewest_gpus_the_least_work_and_the_most_free_memory(
    job: tuple[str, tuple[str, ...]], seed: int, gpus: int, other: int
) -> None:
    x = in_steps(toy_instance(*job, seed, num_gpus=gpus, sizes=(1, 2), most_rows=2, second_kind=other))
    found, ticks = exhaustive(x)
    if found is None:
        return
    choice = tidy(x, found, ticks, 30.0)
    assert fits(x, choice)
    assert ticks_of(x, choice) == ticks
    assert (x.spent(choice.pools), busy(x, choice), held(x, choice)) == least(x, ticks)


@settings(max_examples=draws(30))
@given(st.sampled_from(JOBS[:2]), st.integers(0, 10_000), st.integers(2, 5), st.sampled_from([SYNC, OWN]))
def test_the_same_whatever_the_seed_and_the_workers(
    job: tuple[str, tuple[str, ...]], seed: int, gpus: int, mode: ExecutionMode
) -> None:
    x = toy_instance(*job, seed, num_gpus=gpus, most_rows=4, mode=mode)
    x = replace(x, ticks={r: {k: t // 5 for k, t in calls.items()} for r, calls in x.ticks.items()})  # more ties
    if mode is not SYNC and len({*x.tables["actor"].num_gpus.tolist()}) > 1:
        x = replace(x, sizes={g: tuple(n for n in s if n == 1) for g, s in x.sizes.items()})
    answers = []
    for one, workers in ((0, 1), (7, 1), (0, 2)):
        found, solution = best_choice(x, one, 30.0, workers=workers)
        if found is None:
            return
        answers.append(tidy(x, found, solution.objective_ticks, 30.0, workers))
        assert ticks_of(x, answers[-1]) == solution.objective_ticks
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("job", ["tiny ppo", "remax 16", "one step off"])
def test_a_job_has_one_plan_on_one_worker_or_two(job: str) -> None:
    facts = tiny_facts("ppo", 4, 12.0) if job == "tiny ppo" else make_facts("remax", nodes=2)
    modes = (ExecutionMode("one-step-off", dedicated_rollout=True),) if job == "one step off" else (SYNC,)
    one = find_plan(SearchRequest(facts, runners_up=False, modes=modes, seed=1))
    two = find_plan(SearchRequest(facts, runners_up=False, modes=modes, seed=2, workers=2))
    assert one.plan == two.plan


@pytest.mark.parametrize(
    "mode",
    [
        SYNC,
        pytest.param(ExecutionMode(dedicated_rollout=True), marks=pytest.mark.long),
        OWN,
        pytest.param(ExecutionMode("async", dedicated_rollout=True, steps_in_flight=2), marks=pytest.mark.long),
    ],
    ids=["sync", "sync, own pool", "one-step-off", "async"],
)
def test_each_schedule_has_one_plan_on_one_worker_or_two(mode: ExecutionMode) -> None:
    work = workload(64, 512, 512, minibatches=2)
    facts = make_facts("ppo", "llama-3.2-1b", nodes=2, gpus_per_node=4, device="h100-80gb-sxm", work=work)
    one = find_plan(SearchRequest(facts, runners_up=False, modes=(mode,), seed=1))
    two = find_plan(SearchRequest(facts, runners_up=False, modes=(mode,), seed=2, workers=2))
    assert one.status == two.status == "optimal"
    assert one.plan.schedule == mode.schedule
    assert one.plan == two.plan
