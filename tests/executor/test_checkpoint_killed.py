"""Protects the checkpoint before: SIGKILL at any moment of a save leaves it loadable, or the new one whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_sigkill_at_any_point_of_a_save_leaves_a_loadable_checkpoint(tmp_path):
    """All digests are compared, and what is loaded is of one save. Only the newest one is kept: the hardest case."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.executor.checkpoint_killer", str(tmp_path), "30"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    points = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [point for point in points if point["step"] is not None]
    assert sum(point["killed"] for point in points) >= 50
    assert [point["killed"] for point in steps] == [True] * (len(steps) - 1) + [False]  # the last is beyond all steps
    for point in points:
        assert point["found"] in (point["before"], point["before"] + 1)
        assert point["killed"] or point["found"] == point["before"] + 1
    outcomes = [point["found"] - point["before"] for point in steps if point["killed"]]
    assert outcomes.count(0) > 10  # killed before the rename
    assert outcomes.count(1) > 3  # killed after it, while the one before was being deleted
