"""Protects what a killed run leaves: the checkpoint before loadable, or the new one whole; and that it goes on."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from executor.recovery.load import latest
from tests.draws import STRIDE, draws
from tests.executor.plans import learned, metrics

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_sigkill_at_any_point_of_a_save_leaves_a_loadable_checkpoint(tmp_path):
    """All digests are compared, and what is loaded is of one save. Only the newest one is kept: the hardest case."""
    counts = [str(STRIDE), str(draws(20))]
    command = [sys.executable, "-W", "ignore", "-m", "tests.executor.checkpoint.killer", str(tmp_path), *counts]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    points = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [point for point in points if point["step"] is not None]
    assert len(steps) > 30 // STRIDE
    assert [point["killed"] for point in steps] == [True] * (len(steps) - 1) + [False]  # the last is beyond all steps
    for point in points:
        assert point["found"] in (point["before"], point["before"] + 1)
        assert point["killed"] or point["found"] == point["before"] + 1
    outcomes = [point["found"] - point["before"] for point in steps if point["killed"]]
    assert outcomes.count(0) > 10 // STRIDE  # killed before the rename
    assert outcomes.count(1) > 3 // STRIDE  # killed after it, while the one before was being deleted


RUN = """
import sys
from pathlib import Path
from executor.recovery.load import latest
from executor.run import run
from tests.executor.plans import colocated, config, job
out = Path(sys.argv[1])
settings = config(launcher="local", checkpoint={"every": 1})
run(job("ppo", minibatches=2), colocated("ppo"), settings, out, 40, resume=latest(out / "checkpoints") is not None)
"""


@pytest.mark.long
def test_a_run_whose_process_is_killed_again_and_again_learns_what_an_undisturbed_one_learns(tmp_path):
    """Started anew each time to go on; every iteration has one line, equal to the undisturbed one's bit for bit."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", RUN]
    subprocess.run([*command, str(tmp_path / "whole")], cwd=ROOT, env=environment, check=True, timeout=300)
    stream, kills, out = random.Random(0), 0, tmp_path / "killed"
    while True:
        done = latest(out / "checkpoints")
        child = subprocess.Popen([*command, str(out)], cwd=ROOT, env=environment)
        while child.poll() is None and latest(out / "checkpoints") == done:
            time.sleep(0.001)
        time.sleep(stream.uniform(0, 0.3))
        child.kill()
        if child.wait() == 0:
            break
        kills += 1
    assert kills >= 3
    assert [learned(line) for line in metrics(out)] == [learned(line) for line in metrics(tmp_path / "whole")]
    found = latest(out / "checkpoints")
    assert found is not None
    assert found.manifest.roles["actor"].counters == {"optimizer_steps": 80, "updates": 40}
