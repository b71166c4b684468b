"""Protects runs that go on: after a dead rank, a hang, a NaN or a flipped bit the curve is the undisturbed one, every
optimizer step is made once, and what cannot go on says why.
"""

import json
import re
import time
from dataclasses import replace

import pytest

from executor.controller.pools import Devices
from executor.errors import Failure, RankFailedError
from executor.faults import Fault
from executor.launch.local import LocalLauncher
from executor.recovery.scale_down import scale_down
from executor.recovery.supervisor import GaveUpError, Policy, Start, Supervisor
from executor.rl.algorithms import RUNNABLE
from executor.rl.algorithms.ppo import ppo
from executor.run import run
from profiles.errors import InfeasibleError, InputError
from tests.executor.plans import colocated, config, job, learned, metrics, plan
from tests.work import HANGS_S

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]
ITERATIONS = 4
JOB = job("ppo", prompts=8, minibatches=2)
SPLIT = {"A": (("actor", "reference"), (1, 1, 2)), "B": (("critic", "reward"), (1, 1, 1))}
SURVIVES = {"on_failure": "restart", "checkpoint": {"every": 1}}
LATE_S = 15.0
"""When a rank counts as hung where one is: what others do in milliseconds, on however busy a machine."""


def survived(folder):
    return [json.loads(line) for line in (folder / "failures.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The curve of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("reference")
    run(JOB, colocated("ppo"), config(launcher="local"), folder, ITERATIONS)
    return metrics(folder)


def require_undisturbed(folder, reference, **tolerance):
    """Every iteration once, every optimizer step once, and the curve of ``reference``."""
    curve = metrics(folder)
    assert [line["iteration"] for line in curve] == list(range(ITERATIONS))
    assert [line["actor/optimizer_steps"] for line in curve] == [2.0 * (i + 1) for i in range(ITERATIONS)]
    assert [line["critic/optimizer_steps"] for line in curve] == [2.0 * (i + 1) for i in range(ITERATIONS)]
    for mine, theirs in zip(curve, reference, strict=True):
        assert learned(mine) == pytest.approx(learned(theirs), **(tolerance or {"rel": 0, "abs": 0}))


@pytest.mark.parametrize(
    ("kind", "role", "api", "told"),
    [
        ("error", "critic", "update_critic", "InjectedFaultError"),
        ("nan", "reward", "compute_reward", "NotANumberError: scores is NaN in 8 of 8 rows"),
        ("nan", "actor", "update_actor", "NotANumberError: .*loss is nan.*; weights that learned from it are lost"),
        ("nan", "critic", "compute_values", "NotANumberError: values is NaN"),
    ],
)
def test_an_error_and_numbers_that_are_none_are_survived(kind, role, api, told, reference, tmp_path):
    fault = {"kind": kind, "role": role, "api": api, "call": 2}
    with pytest.raises(RankFailedError, match=rf"{role}.{api} failed on rank 0 of pool A: {told}"):
        run(JOB, colocated("ppo"), config(launcher="local", faults=[fault]), tmp_path / "stop", ITERATIONS)
    recoveries = []
    section = config(launcher="local", faults=[fault], **SURVIVES)
    timelines = run(JOB, colocated("ppo"), section, tmp_path, ITERATIONS, on_recovery=recoveries.append)
    assert len(timelines) == ITERATIONS
    require_undisturbed(tmp_path, reference)
    (line,) = survived(tmp_path)
    assert line["attempt"] == 1
    assert line["iteration"] + line["lost_iterations"] == 2  # a checkpoint still being written is none yet
    assert (line["call"], line["rank"]) == (f"{role}.{api}", 0)
    assert recoveries[0].down_s == line["down_s"]


def test_iterations_after_the_newest_checkpoint_are_made_again(reference, tmp_path):
    section = config(
        launcher="local",
        faults=[{"role": "actor", "api": "update_actor", "call": 3}],
        on_failure="restart",
        checkpoint={"every": 2},
    )
    run(JOB, colocated("ppo"), section, tmp_path, ITERATIONS)
    require_undisturbed(tmp_path, reference)
    assert (survived(tmp_path)[0]["iteration"], survived(tmp_path)[0]["lost_iterations"]) == (2, 1)


def test_a_restart_takes_an_older_checkpoint_where_the_newest_is_damaged(reference, tmp_path, monkeypatch):
    """A bit of it changes before the failure."""
    saved, told = tmp_path / "checkpoints", []

    def spoiled(models, batches):
        for prompts in batches:
            newest = saved / "iteration-00000003"
            while models.actor._num_updates == 3 and not newest.exists():  # noqa: SLF001
                time.sleep(0.01)  # it is written while the run goes on
            if newest.exists() and not told:
                shard = next((newest / "critic").iterdir())
                shard.write_bytes(shard.read_bytes()[:-1] + b"?")
            yield from ppo(models, [prompts])

    monkeypatch.setitem(RUNNABLE, "ppo", replace(RUNNABLE["ppo"], script=spoiled))
    section = config(launcher="local", faults=[{"role": "critic", "api": "update_critic", "call": 3}], **SURVIVES)
    run(JOB, colocated("ppo"), section, tmp_path, ITERATIONS, on_damaged=told.append)
    require_undisturbed(tmp_path, reference)
    (line,) = survived(tmp_path)
    assert (line["iteration"], line["lost_iterations"]) == (2, 1)
    (text,) = told
    assert re.search(
        r"iteration-00000003/critic/.* is damaged.*resuming from .*iteration-00000002, which is older", text
    )


def test_what_was_survived_stays_written_when_the_run_is_resumed(tmp_path):
    """A controller that was killed is started again with --resume."""
    faults = [{"role": "actor", "api": "update_actor", "call": 1}]
    run(JOB, colocated("ppo"), config(launcher="local", faults=faults, **SURVIVES), tmp_path, 2)
    (before,) = survived(tmp_path)
    section = config(launcher="local", faults=[{"role": "critic", "api": "update_critic", "call": 0}], **SURVIVES)
    run(JOB, colocated("ppo"), section, tmp_path, 3, resume=True)
    first, second = survived(tmp_path)
    assert first == before
    assert (second["call"], second["iteration"]) == ("critic.update_critic", 2)


def test_a_failure_that_comes_back_ends_the_run_and_says_so(tmp_path):
    faults = [{"role": "actor", "api": "update_actor", "call": 0 if n else 1, "attempt": n} for n in range(4)]
    section = config(launcher="local", faults=faults, **SURVIVES, max_restarts=2)
    with pytest.raises(
        GaveUpError, match=r"3 starts in a row did not get beyond iteration 1, run.max_restarts allows 2"
    ) as told:
        run(JOB, colocated("ppo"), section, tmp_path, ITERATIONS)
    assert "actor.update_actor failed on rank 0 of pool A" in str(told.value)
    assert told.value.exit_status == 1
    assert [line["iteration"] for line in metrics(tmp_path)] == [0]


def test_going_on_needs_checkpoints():
    with pytest.raises(InputError, match=r"on_failure restart resumes from checkpoints: add checkpoint: \{every: N\}"):
        config(on_failure="restart")


FAILED = RankFailedError(Failure(3, "actor.update_actor", "A", 1, "its process ended", "", node="10.0.0.7"))


def kept(tmp_path, policy, devices, failures, replan=None, beyond=(), kinds=None):
    """A supervisor on a launcher of ``devices``, whose first starts fail; the plans that were started."""
    launcher, started = LocalLauncher(devices), []
    launcher.kinds = kinds or {}
    supervisor = Supervisor(launcher, policy, lambda: (), tmp_path, replan=replan)

    def attempt(start):
        started.append(start.plan)
        supervisor.ready(start)
        if start.attempt in beyond:
            supervisor.finished(10 * (start.attempt + 1))
        if start.attempt < failures:
            raise FAILED

    supervisor.run(Start(0, plan("ppo", SPLIT)), attempt)
    return started


def test_a_plan_that_no_longer_fits_is_replaced_and_one_that_fits_stays(tmp_path):
    smaller = scale_down(plan("ppo", SPLIT), Devices(2))
    replan = Policy("replan")
    assert [p.num_gpus for p in kept(tmp_path, replan, 3, 1, lambda n: smaller)] == [3, 3]
    assert [p.num_gpus for p in kept(tmp_path, replan, 2, 2, lambda n: scale_down(plan("ppo", SPLIT), n))] == [3, 2, 2]
    with pytest.raises(
        InfeasibleError,
        match=r"after actor.update_actor failed on rank 1 .* 1 devices are left, and no plan fits them: .* has 2 pools",
    ):
        kept(tmp_path, replan, 1, 1, lambda n: scale_down(plan("ppo", SPLIT), n))
    with pytest.raises(
        InfeasibleError, match=r"2 devices are left and the plan asks for 3 devices; run.on_failure: replan"
    ):
        kept(tmp_path, Policy("restart"), 2, 1)


def test_a_kind_of_which_too_few_are_left_asks_for_another_plan(tmp_path):
    """As many devices as before, of which one plan's kind is short."""
    small = scale_down(plan("ppo", SPLIT), Devices(2))
    left = {"cpu": 2, "h100-80gb-sxm": 2}
    asked = []

    def replan(devices):
        asked.append(str(devices))
        return small

    assert [p.num_gpus for p in kept(tmp_path, Policy("replan"), 4, 1, replan, kinds=left)] == [3, 2]
    assert asked == ["4 devices (2 x cpu, 2 x h100-80gb-sxm)"]
    told = r"4 devices \(2 x cpu, 2 x h100-80gb-sxm\) are left and the plan asks for 3 devices \(3 x cpu\);"
    with pytest.raises(InfeasibleError, match=told):
        kept(tmp_path, Policy("restart"), 4, 1, kinds=left)


def test_restarts_in_a_row_are_bounded_and_progress_begins_a_new_row(tmp_path):
    assert len(kept(tmp_path, Policy("restart", max_restarts=3), 4, 3)) == 4
    with pytest.raises(GaveUpError):
        kept(tmp_path, Policy("restart", max_restarts=3), 4, 4)
    assert len(kept(tmp_path, Policy("restart", max_restarts=3), 4, 6, beyond=(3,))) == 7
    with pytest.raises(
        RankFailedError, match=r"update_actor failed on rank 1 of pool A: its process ended \[node 10.0.0.7\]"
    ):
        kept(tmp_path, Policy("stop"), 4, 1)


def test_a_start_that_fails_before_it_is_ready_is_a_failure_too(reference, tmp_path):
    faults = [
        {"role": "critic", "api": "update_critic", "call": 2},
        {"role": "actor", "api": "init_model", "attempt": 1},
        {"role": "reward", "api": "load_checkpoint", "attempt": 2},
    ]
    run(JOB, colocated("ppo"), config(launcher="local", faults=faults, **SURVIVES), tmp_path, ITERATIONS)
    require_undisturbed(tmp_path, reference)
    lines = survived(tmp_path)
    assert [line["attempt"] for line in lines] == [1, 2, 3]
    assert [line["call"] for line in lines] == ["critic.update_critic", "actor.init_model", "reward.load_checkpoint"]
    assert lines[0]["down_s"] > lines[2]["down_s"] > 0


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault("actor", "update_actor", call=2, rank=1, kind="kill"), "its process ended"),
        (Fault("actor", "update_actor", call=1, rank=0, kind="drop"), "Connection closed by peer"),
        (Fault("actor", "update_actor", call=1, rank=1, kind="hang"), "it did not answer, while others of its call"),
        pytest.param(
            Fault("critic", "compute_values", call=1, rank=0, kind="hang"),
            "it did not answer, which is late after",
            marks=pytest.mark.long,  # the first call of its kind sets the limit, and its imports are slow
        ),
    ],
    ids=["kill", "drop", "hang in a group", "hang alone"],
)
def test_a_rank_that_dies_or_hangs_is_named_and_replaced(fault, told, reference, on_ray, tmp_path):
    late = {"actor": "collective_s", "critic": "call_least_s"}[fault.role]
    timeouts = {"collective_s": HANGS_S, "call_least_s": HANGS_S} | ({late: LATE_S} if fault.kind == "hang" else {})
    section = config(launcher="ray", faults=[fault], **SURVIVES, timeouts=timeouts)
    run(JOB, plan("ppo", SPLIT), section, tmp_path, ITERATIONS)
    require_undisturbed(tmp_path, reference, rel=2e-3, abs=2e-5)
    (line,) = survived(tmp_path)
    assert told in line["summary"]
    assert (line["call"], line["pool"]) == (f"{fault.role}.{fault.api}", "A" if fault.role == "actor" else "B")
    if fault.kind != "drop":  # both ends of a connection see it end
        assert line["rank"] == fault.rank


@pytest.mark.slow
def test_a_flipped_bit_in_one_replica_stops_the_run_or_is_undone_by_the_checkpoint(reference, on_ray, tmp_path):
    faults = [Fault("actor", "update_actor", call=2, rank=1, kind="flip")]
    layout = colocated("ppo", (1, 1, 2), zero_stage=0)
    given = {"launcher": "ray", "faults": faults, "checks": {"replicas_every": 1}}
    with pytest.raises(
        RankFailedError, match=r"model.embed_tokens.weight is not the same on all its replicas: rank 1 differs"
    ):
        run(JOB, layout, config(**given), tmp_path / "stop", ITERATIONS)
    run(JOB, layout, config(**given, **SURVIVES), tmp_path, ITERATIONS)
    require_undisturbed(tmp_path, reference, rel=2e-3, abs=2e-5)


@pytest.mark.long
def test_a_dead_node_is_noticed_and_the_run_goes_on_with_another_plan_on_what_is_left(reference, tmp_path):
    """Two nodes of two slots, a plan of four ranks; one node goes after two iterations."""
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        nodes.add_node(num_cpus=2, object_store_memory=100 << 20)
        second = nodes.add_node(num_cpus=2, object_store_memory=100 << 20)
        section = config(
            launcher="ray",
            ray_address=nodes.address,
            **(SURVIVES | {"on_failure": "replan"}),
            timeouts={"collective_s": HANGS_S},
        )
        removed = []

        def watch(iteration, line):
            if iteration == 1 and not removed:
                nodes.remove_node(second, allow_graceful=False)
                removed.append(iteration)

        wide = colocated("ppo", (1, 2, 2))
        run(JOB, wide, section, tmp_path, ITERATIONS, watch=watch, replan=lambda n: scale_down(wide, n))
        require_undisturbed(tmp_path, reference, rel=2e-3, abs=2e-5)
        lines = survived(tmp_path)
        assert lines[-1]["num_devices"] == 2
        assert "its process ended" in lines[0]["summary"]
        assert "(" in lines[0]["node"]
    finally:
        nodes.shutdown()
