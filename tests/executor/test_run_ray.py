"""Protects runs on Ray as a whole: overlap in the timeline, Ctrl-C, killed ranks, plans that are too large."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from executor.controller.pools import Devices
from executor.engines.fake import FakeSpec
from executor.errors import RankFailedError, WorkerInputError
from executor.faults import Fault
from executor.recovery.scale_down import scale_down
from executor.run import run
from profiles.errors import InfeasibleError
from simulator.plan.dataflow import CONTROLLER, build_dataflow
from simulator.play.schedule import play
from tests.executor.families import alive, family_of
from tests.executor.plans import ROLES, TINY, colocated, config, job, plan
from tests.executor.workers import meetings
from tests.work import HANGS_S, wait_until

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
SPLIT = {"A": (("actor", "reference"), (1, 1, 1)), "B": (("critic", "reward"), (1, 1, 2))}
DURATIONS_S = {
    "transition": 0.1,
    "generate_sequences": 0.4,
    "compute_values": 0.3,
    "compute_ref_log_prob": 0.4,
    "compute_reward": 0.2,
    "update_critic": 0.5,
    "update_actor": 0.6,
}
ROOT = Path(__file__).parents[2]


def fakes(*faults):
    return {role: FakeSpec(role, DURATIONS_S, faults) for role in ROLES["ppo"]}


def test_independent_pools_overlap_as_the_simulator_plays_it(on_ray, tmp_path):
    """What overlaps there meets here; what takes turns there does so here, in the same order."""
    beside = [("compute_values", "compute_ref_log_prob"), ("update_critic", "update_actor")]
    engines = meetings(ROLES["ppo"], tmp_path / "met", {(a, i): (b, i) for a, b in beside for i in range(2)})
    timeline = run(job("ppo"), plan("ppo", SPLIT), config(launcher="ray"), tmp_path / "out", 2, engines=engines)[-1]
    of = {span.call: span for span in timeline.spans}
    ranks = json.loads((tmp_path / "out" / "timeline-ranks.json").read_text())["spans"]
    flow = build_dataflow("ppo", ROLES["ppo"])
    pool_of = {"actor": "A", "reference": "A", "critic": "B", "reward": "B", CONTROLLER: CONTROLLER}
    played = play(flow, {call.key: DURATIONS_S.get(call.key, 0.0) for call in flow.calls}, pool_of)
    at = {call.key: record for call, record in zip(flow.calls, played, strict=True)}
    for a, b in beside:
        assert min(at[a].end_s, at[b].end_s) > max(at[a].start_s, at[b].start_s)
        assert min(of[a].end_s, of[b].end_s) > max(of[a].start_s, of[b].start_s)
    for pool in ("A", "B"):
        turns = sorted((call.key for call in flow.calls if pool_of[call.role] == pool), key=lambda k: at[k].start_s)
        assert sorted(turns, key=lambda k: of[k].start_s) == turns
        for rank in {span["pool"] for span in ranks if span["pool"].startswith(f"{pool}/")}:  # each rank takes turns
            own = {span["call"]: span for span in ranks if span["pool"] == rank}
            ends = [(own[key]["start_s"], own[key]["end_s"]) for key in turns if key in own]
            assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(ends)), rank


def test_spans_per_rank_are_recorded_too(on_ray, tmp_path):
    run(job("ppo"), plan("ppo", SPLIT), config(launcher="ray"), tmp_path, 1, engines=fakes())
    ranks = json.loads((tmp_path / "timeline-ranks.json").read_text())
    assert {span["pool"] for span in ranks["spans"]} == {"A/0", "B/0", "B/1", "controller/0"}


def test_a_rank_killed_in_the_middle_ends_the_run_and_is_named(warm, tmp_path):
    """With ranks of the run's own, beside the warm ones."""
    fault = Fault("critic", "update_critic", call=1, rank=1, kind="kill")
    with pytest.raises(RankFailedError, match=r"critic.update_critic failed on rank 1 of pool B: its process ended"):
        run(job("ppo"), plan("ppo", SPLIT), config(launcher="ray"), tmp_path, 5, engines=fakes(fault))
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_plan_that_is_too_large_is_refused_at_once_and_runs_scaled_down(on_ray, tmp_path):
    large = colocated("ppo", (1, 2, 4))
    with pytest.raises(InfeasibleError, match="asks for 8 devices, there are 4; --scale-down"):
        run(job("ppo"), large, config(launcher="ray"), tmp_path, 1)
    assert list(tmp_path.iterdir()) == []
    timelines = run(job("ppo"), scale_down(large, Devices(2)), config(launcher="ray"), tmp_path, 1)
    assert timelines[0].num_gpus == 2


def test_weights_that_do_not_load_end_the_run_with_the_reason(on_ray, tmp_path):
    """On ranks of two pools, while those of the other pool load well."""
    weights = {"actor": str(TINY), "critic": str(tmp_path / "nowhere")}
    section = config(launcher="ray").model_copy(update={"weights": weights})
    with pytest.raises(WorkerInputError, match=r"critic.init_model, rank \d of pool B: .*nowhere: No such file"):
        run(job("ppo"), plan("ppo", SPLIT), section, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


SCRIPT = """
import signal
import sys
from executor.engines.fake import FakeSpec
from executor.run import run
from tests.executor.plans import ROLES, TINY, colocated, config, job
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell start without it
fakes = {r: FakeSpec(r, {"generate_sequences": 0.2, "update_actor": 0.2}) for r in ROLES["ppo"]}
run(job("ppo"), colocated("ppo"), config(launcher="ray"), sys.argv[1], 1000, engines=fakes,
    watch=lambda i, m: print("iteration", i, flush=True))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("whole_group", [False, True], ids=["signal", "terminal"])
def test_ctrl_c_leaves_no_process_and_no_half_written_file(whole_group, tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("iteration 1"):
                break
        family = family_of(child.pid)
        assert sum("RankActor" in line for line in alive(family)) == 2  # the rank, and the controller's own
        if whole_group:
            os.killpg(child.pid, signal.SIGINT)  # as a terminal does
        else:
            child.send_signal(signal.SIGINT)
        assert child.wait(timeout=HANGS_S) != 0
    wait_until(lambda: not alive(family), "the end of all that it started")
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["metrics.jsonl"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(len(lines)))
