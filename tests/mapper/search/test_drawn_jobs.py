"""Protects every job that can be drawn: it ends in one clear refusal, or in a plan that holds.

The checker accepts the plan and ``simulate`` prices it as the search did, whatever the algorithm, schedule, lengths,
batch, models and cluster.

More draws than a test run has time for: ``DRAWN_JOBS=300 pytest tests/mapper/search/test_drawn_jobs.py``.
"""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from mapper.execution_mode import SYNC, ExecutionMode
from mapper.objective import Objective
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search_options import USUAL, SearchOptions
from profiles.errors import InputError
from profiles.hardware import ClusterGroup
from profiles.store import load_device
from profiles.workload import LengthDistribution, Workload
from simulator.facts import DeviceGroup, Facts
from simulator.feasibility import check_plan
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.plan import Plan
from simulator.play.simulate import simulate
from tests.builders import make_facts
from tests.work import HANGS_S

NUM_JOBS = int(os.environ.get("DRAWN_JOBS", 36))
MODELS = (
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "llama-2-7b",
    "llama-2-13b",
    "qwen2.5-32b",
    "llama-2-70b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
)
ENGINES = (
    ("megatron-core@0.16", "vllm@0.32"),
    ("megatron-core@0.6", "vllm@0.3.1"),
    ("fsdp@2.13", "vllm@0.32"),
    ("megatron-core@0.16", "sglang@0.5"),
)
MODES = (
    SYNC,
    SYNC,
    ExecutionMode(dedicated_rollout=True),
    ExecutionMode("one-step-off", dedicated_rollout=True),
    ExecutionMode("one-step-off", dedicated_rollout=True, in_flight_updates=True),
    ExecutionMode("async", dedicated_rollout=True),
    ExecutionMode("async", dedicated_rollout=True, steps_in_flight=3),
    ExecutionMode("async", dedicated_rollout=True, steps_in_flight=2, in_flight_updates=True),
)
OBJECTIVES = (Objective(), Objective(), Objective(), Objective("throughput_per_gpu"), Objective("gpus", (), 600.0))


@st.composite
def lengths(draw: st.DrawFn) -> LengthDistribution:
    most = draw(st.sampled_from([256, 1024, 4096, 16384, 32768]))
    device_type = draw(st.sampled_from(["fixed", "lognormal", "tail", "histogram"]))
    if device_type == "fixed":
        return LengthDistribution.fixed(most)
    if device_type == "histogram":
        return LengthDistribution.histogram(
            (max(most // 16, 1), most // 3, most), (6.0, 3.0, draw(st.floats(0.01, 3.0)))
        )
    mean = most * draw(st.floats(0.03, 0.7))
    return LengthDistribution("lognormal", mean, most, 4.0 * mean if device_type == "tail" else None)


@st.composite
def works(draw: st.DrawFn) -> Workload:
    minibatches = draw(st.sampled_from([1, 1, 2, 4]))
    prompts = minibatches * draw(st.sampled_from([1, 2, 3, 8, 16, 64, 200]))
    return Workload(
        prompts,
        draw(st.sampled_from([1, 4, 8])),
        draw(st.sampled_from([64, 512, 2048])),
        draw(lengths()),
        1,
        minibatches,
        draw(st.sampled_from([0.0, 0.02])),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Facts:
    algorithm = draw(st.sampled_from(sorted(ALGORITHMS)))
    more = [role for role in ALGORITHMS[algorithm].optional_roles if draw(st.booleans())]
    main = draw(st.sampled_from(MODELS))
    other = draw(st.sampled_from([main, main, *MODELS]))
    roles = {r: main if r in ("actor", "reference") else other for r in (*ALGORITHMS[algorithm].roles, *more)}
    trainer, engine = draw(st.sampled_from(ENGINES))
    device_types = draw(
        st.sampled_from(
            [
                ("h100-80gb-sxm",),
                ("h100-80gb-sxm",),
                ("a100-80gb-sxm",),
                ("h200-sxm",),
                ("h100-80gb-sxm", "a100-80gb-sxm"),
            ]
        )
    )
    facts = make_facts(
        algorithm,
        roles=roles,
        work=draw(works()),
        device=device_types[0],
        nodes=draw(st.sampled_from([1, 1, 2, 3, 4])),
        gpus_per_node=draw(st.sampled_from([4, 8, 8])),
        training=trainer,
        generation=engine,
    )
    if draw(st.booleans()):
        facts = replace(facts, implementation=replace(facts.implementation, old_log_prob="trainer"))
    others = tuple(
        DeviceGroup(ClusterGroup(device_type, 2, 8, 25e9, 8), load_device(device_type))
        for device_type in device_types[1:]
    )
    return replace(facts, others=others)


@st.composite
def spaces(draw: st.DrawFn, facts: Facts) -> SearchOptions:
    """What the job has a use for; anything else is refused before the search."""
    known = [USUAL, USUAL, SearchOptions(offload=True)]
    known += [SearchOptions(interleaving=True)] if facts.training.interleaving else []
    known += [SearchOptions(tensor_parallel_across_nodes=True)] if facts.group.nodes > 1 else []
    trains_and_scores = facts.implementation.old_log_prob == "trainer" or "critic" in facts.roles
    known += [SearchOptions(scoring_layouts=True)] if facts.training.scoring_layouts and trains_and_scores else []
    return draw(st.sampled_from(known))


@pytest.mark.long
@settings(max_examples=NUM_JOBS, suppress_health_check=list(HealthCheck))
@given(facts=jobs(), mode=st.sampled_from(MODES), objective=st.sampled_from(OBJECTIVES), data=st.data())
def test_every_job_ends_in_a_plan_that_holds_or_in_a_refusal(
    facts: Facts, mode: ExecutionMode, objective: Objective, data: st.DataObject
) -> None:
    options = data.draw(spaces(facts))
    try:
        result = find_plan(
            SearchRequest(
                facts, modes=(mode,), objective=objective, options=options, runners_up=False, time_limit_s=HANGS_S
            )
        )
    except InputError as error:
        refusal = str(error)
        assert "this plan cannot run" not in refusal, "found by the search, refused by the checker"
        assert refusal and "\n" not in refusal
        event(f"refused: {refusal[:40]}")
        return
    event("planned")
    assert check_plan(result.plan, facts) == []
    again = simulate(Plan.model_validate_json(result.plan.model_dump_json()), facts)
    assert again == result.timeline
    assert 0 <= result.bound_s <= result.iteration_s
