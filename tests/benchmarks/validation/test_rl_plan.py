"""Protects the plan of a published RL iteration: pools, degrees, schedule and offload are those of the row, and the
product accepts the plan of every row that we trust, since it ran.
"""

import pytest

from benchmarks.validation.names import NotPredicted
from benchmarks.validation.rl_plan import given_plan, offload_of, schedule_of
from benchmarks.validation.rl_work import given_facts
from benchmarks.validation.tables import read_tables
from simulator.feasibility import check_plan
from tests.benchmarks.validation.conftest import PUBLISHED
from tests.builders import RL_CELLS

SEPARATE = {"placement": "separate", "train_gpus": "8", "gen_gpus": "8"}


def plan(**changes):
    cells = RL_CELLS | changes
    return given_plan(cells, given_facts(cells, []), [])


def assumed(**changes):
    cells, words = RL_CELLS | changes, []
    given_plan(cells, given_facts(cells, []), words)
    return words


def degrees(layout, *names):
    return tuple(getattr(layout, name) for name in names)


def test_training_degrees_are_those_of_the_row():
    found = plan(
        model="Qwen/Qwen3-30B-A3B",
        train_tp="2",
        train_pp="2",
        train_cp="2",
        train_ep="4",
        train_vpp="3",
        micro_batch="2",
        logprob_micro_batch="8",
        recompute="selective",
        gen_tp="2",
    )
    actor = found.role("actor")
    names = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "recompute", "zero_stage")
    assert degrees(actor.training, *names) == (2, 2, 2, 2, 4, 3, 2, "selective", 1)
    assert degrees(actor.inference, *names) == (2, 2, 2, 2, 4, 3, 8, "none", 1)
    assert found.role("reference").inference == actor.inference
    assert found.role("reference").training is None
    assert plan(micro_batch="2", logprob_micro_batch="").role("actor").inference.micro_batch == 2


def test_fsdp_shards_everything():
    assert plan(system="verl", train_backend="FSDP").role("actor").training.zero_stage == 3


def test_engine_degrees_and_share_are_those_of_the_row():
    mixture = {"model": "Qwen/Qwen3-30B-A3B", "gen_tp": "4", "gen_ep": "2"}
    engine = plan(**mixture, gen_gpu_mem_util="0.7").role("actor").generation
    assert degrees(engine, "dp", "tp", "pp", "ep") == (4, 4, 1, 2)
    more = plan(**mixture, gen_gpu_mem_util="0.8").role("actor").generation
    assert more.kv_cache_bytes - engine.kv_cache_bytes == pytest.approx(0.1 * 79.11 * 2**30, rel=0.01)
    assert degrees(plan(gen_tp="2", gen_pp="2").role("actor").generation, "dp", "tp", "pp") == (4, 2, 2)


def test_an_unstated_share_is_assumed_and_said():
    assert "engine memory share not stated: 0.6" in assumed(gen_gpu_mem_util="")
    assert plan(gen_gpu_mem_util="") == plan(gen_gpu_mem_util="0.6") == plan(gen_gpu_mem_util="60%")


def test_colocated_roles_share_all_gpus():
    found = plan()
    assert [(p.name, p.first_gpu, p.num_gpus) for p in found.pools] == [("A", 0, 16)]
    assert not found.role("actor").separate_generation
    assert (found.schedule, found.in_flight_updates) == ("sync", False)


@pytest.mark.parametrize("words", ["separate", "Separated", "disaggregated", "split placement"])
def test_separate_engines_have_their_own_pool(words):
    found = plan(**SEPARATE | {"placement": words, "schedule": "one-step-off", "train_gpus": "4", "gen_gpus": "12"})
    assert [(p.name, p.first_gpu, p.num_gpus) for p in found.pools] == [("A", 0, 4), ("G", 4, 12)]
    assert found.pools[1].roles == ()
    assert found.generation_pool_of("actor").name == "G"
    assert found.role("reference").generation_pool is None
    assert (found.role("actor").generation.num_gpus, found.role("actor").training.num_gpus) == (12, 4)


def test_halves_where_the_split_is_not_stated():
    found = plan(placement="separate", train_gpus="", gen_gpus="")
    assert [p.num_gpus for p in found.pools] == [8, 8]
    rest = plan(placement="separate", train_gpus="4", gen_gpus="")
    assert [p.num_gpus for p in rest.pools] == [4, 12]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("", ("sync", 1)),
        ("sync", ("sync", 1)),
        ("Synchronous", ("sync", 1)),
        ("one-step-off", ("one-step-off", 1)),
        ("one step off policy", ("one-step-off", 1)),
        ("1-step-off", ("one-step-off", 1)),
        ("1-off", ("one-step-off", 1)),
        ("async", ("async", 2)),
        ("fully asynchronous", ("async", 2)),
        ("async, 4 steps in flight", ("async", 4)),
    ],
)
def test_schedules(words, meant):
    assert schedule_of(words) == meant


@pytest.mark.parametrize("words", ["0", "-1", "abc", "16"])
def test_a_schedule_that_says_nothing_is_refused(words):
    with pytest.raises(NotPredicted):
        plan(**SEPARATE, schedule=words)


def test_an_engine_takes_no_step_while_it_takes_weights_in():
    assert not plan(**SEPARATE, schedule="one-step-off").in_flight_updates


@pytest.mark.parametrize(
    ("system", "words", "role", "separate", "meant"),
    [
        ("NeMo-RL v0.5.0", "optimizer_cpu_offload=False", "actor", False, ("parameters", "optimizer")),
        ("NeMo-RL v0.5.0", "optimizer_cpu_offload=False", "actor", True, ()),
        ("NeMo-RL v0.5.0", "", "reference", True, ("swap",)),
        ("verl", "reference parameters offloaded; actor not", "actor", False, ()),
        ("verl", "reference parameters offloaded; actor not", "reference", False, ("parameters",)),
        ("verl", "no offload", "actor", False, ()),
        ("verl", "param_offload=True, optimizer_offload=True", "actor", False, ("parameters", "optimizer")),
        ("verl", "optimizer offload", "critic", False, ("optimizer",)),
        ("verl", "optimizer offload", "reference", False, ()),
        ("verl", "", "actor", False, ()),
    ],
)
def test_offload_words(system, words, role, separate, meant):
    assert offload_of({"system": system, "offload": words}, role, separate) == meant


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_tp": "3"}, "training tp 3 x pp 2 x cp 1 does not divide 16 GPUs"),
        ({"gen_tp": "5"}, "generation tp 5 x pp 1 does not divide 16 GPUs"),
        ({"model": "Qwen/Qwen3-235B-A22B"}, "60% of a GPU does not hold the engine's weights"),
        ({"schedule": "one-step-off"}, "a one-step-off schedule on colocated GPUs"),
        ({"schedule": "async"}, "a async schedule on colocated GPUs"),
        ({"train_tp": "abc"}, "'abc' is no whole number"),
        ({"train_pp": "-1"}, "a count of -1 is out of range"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes, words):
    with pytest.raises(NotPredicted) as error:
        plan(**changes)
    assert words in str(error.value)


TABLE = read_tables("rl", [PUBLISHED / "rl_steps.csv"])
TRUSTED = {cells["id"]: cells for cells in TABLE.to_dict(orient="records") if cells["spec_level"] in ("A", "B")}


@pytest.mark.parametrize("row", TRUSTED)
def test_a_plan_that_ran_is_accepted(row):
    """Whatever was trained on those GPUs fitted into them."""
    cells = TRUSTED[row]
    facts = given_facts(cells, [])
    assert check_plan(given_plan(cells, facts, []), facts) == []


@pytest.mark.parametrize("changes", [{"train_gpus": "96"}, {"gen_gpu_mem_util": "90"}, {"train_ep": "7"}])
def test_a_plan_that_cannot_run_is_refused(changes):
    cells = RL_CELLS | changes
    facts = given_facts(cells, [])
    try:
        found = given_plan(cells, facts, [])
    except NotPredicted:
        return
    assert check_plan(found, facts) == []
