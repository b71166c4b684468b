"""Protects what a killed controller leaves behind while its ranks live on Ray: no process, no shared memory, a
checkpoint that loads, and a run that goes on without a lost or repeated step.
"""

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from executor.launch.ray import RayLauncher
from executor.recovery.load import latest
from tests.executor.families import alive, family_of, shared_memory_of
from tests.executor.plans import config_for_all_engines, learned, metrics
from tests.work import wait_until

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.long]
ROOT = Path(__file__).parents[3]
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Ray's two, which hold nothing of the run and end after its ranks."""
RUN = """
import json, sys
from pathlib import Path
from executor.recovery.load import latest
from executor.run import run
from tests.executor.plans import colocated, config, job
out, iterations, weights, changes = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
section = config(Path(weights), launcher="ray", cpu_ranks=2, checkpoint={"every": 1}, **changes)
run(job("ppo", minibatches=2), colocated("ppo", (1, 1, 2), generation=(1, 1)), section, out, iterations,
    resume=latest(out / "checkpoints") is not None)
"""


def started(out, iterations, weights, changes=None):
    """A run in a process of its own; again on what an earlier one saved."""
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(out), str(iterations), str(weights)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([*command, json.dumps(changes or {})], cwd=ROOT, env=environment, start_new_session=True)


def kill(child):
    """SIGKILL to the controller alone; returns its family once nothing but agents is left of it."""
    family = family_of(child.pid)
    assert sum("RankActor" in line for line in alive(family)) == 3  # two ranks and the controller's own
    shared = shared_memory_of(family)
    child.kill()
    child.wait()
    require_ended(family, AGENTS)
    assert [path for path in shared if path.exists()] == []
    return family


def require_ended(family, but=()):
    """Wait for the end of all but some titles."""
    wait_until(lambda: all(line.startswith(but) for line in alive(family)), "the end of all that it started")


def wait_for_more(child, out, before):
    """Until the run has saved once more; false where it ended instead."""
    while child.poll() is None:
        if (found := latest(out / "checkpoints")) is not None and found.manifest.iteration > before:
            return True
        time.sleep(0.005)
    return False


def killed_again_and_again(out, iterations, weights, changes, delays_s):
    """Start, kill a moment after something new was saved, go on, as often as there are delays; then to the end."""
    families, before = [], 0
    for delay_s in delays_s:
        child = started(out, iterations, weights, changes)
        assert wait_for_more(child, out, before), "it ended before it could be killed"
        time.sleep(delay_s)
        assert child.poll() is None, "it ended before it could be killed"
        families.append(kill(child))
        before = latest(out / "checkpoints").manifest.iteration
    assert started(out, iterations, weights, changes).wait(300) == 0
    for family in families:
        require_ended(family)


def require_undisturbed(out, whole, iterations):
    assert [learned(line) for line in metrics(out)] == [learned(line) for line in metrics(whole)]
    assert [line["iteration"] for line in metrics(out)] == list(range(iterations))
    counters = latest(out / "checkpoints").manifest.roles["actor"].counters
    assert counters == {"optimizer_steps": 2 * iterations, "updates": iterations}
    left = [path.name for path in (out / "checkpoints").iterdir()]
    assert sorted(left) == [f"iteration-{iterations - 1:08d}", f"iteration-{iterations:08d}"]  # no half of one


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return config_for_all_engines(tmp_path_factory.mktemp("model"))


def test_ranks_end_with_their_controller_and_the_run_goes_on_bit_for_bit(weights, tmp_path):
    """Killed four times at random moments of an iteration, its saving and the next one's beginning."""
    stream, iterations = random.Random(0), 60
    assert started(tmp_path / "whole", iterations, weights).wait(300) == 0
    delays_s = [stream.uniform(0, 0.5) for _ in range(4)]
    killed_again_and_again(tmp_path / "killed", iterations, weights, {}, delays_s)
    require_undisturbed(tmp_path / "killed", tmp_path / "whole", iterations)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("megatron", "vllm")), reason="needs the extra cpu-engines"
)
def test_engines_leave_no_shared_memory_behind(weights, tmp_path):
    """Megatron-Core and vLLM, killed once in the middle of an iteration."""
    engines = {"engines": {"training": "megatron-core", "generation": "vllm"}}
    assert started(tmp_path / "whole", 6, weights, engines).wait(300) == 0
    killed_again_and_again(tmp_path / "killed", 6, weights, engines, [0.2])
    require_undisturbed(tmp_path / "killed", tmp_path / "whole", 6)


def test_a_cluster_that_is_not_ours_gets_its_devices_back(weights, tmp_path):
    """The ranks of a killed controller end there, too; the next one finds all devices free."""
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        nodes.add_node(num_cpus=2, object_store_memory=100 << 20)
        launcher = RayLauncher(nodes.address)
        changes = {"ray_address": nodes.address}
        child = started(tmp_path, 200, weights, changes)
        assert wait_for_more(child, tmp_path, 3)
        child.kill()
        child.wait()
        wait_until(lambda: launcher._ray.available_resources().get("CPU", 0) >= 2, "free devices")  # noqa: SLF001
        launcher.stop()
        done = latest(tmp_path / "checkpoints").manifest.iteration
        assert started(tmp_path, done + 2, weights, changes).wait(300) == 0
        assert [line["iteration"] for line in metrics(tmp_path)] == list(range(done + 2))
    finally:
        nodes.shutdown()
