"""Protects Ctrl-C while a plan is searched: every command stops, ends with 130, and leaves nothing behind.

The signal is real and comes from outside. What makes the tests independent of speed: each model of the child has one
more constraint, the factors of a product of two primes, which no solver finds while anybody waits. So the signal always
meets a solver at work.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.hybridmap.conftest import SMALL_JOB

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
CHILD = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have ignored it
import mapper.model.solver
import mapper.search.proof
import mapper.search.tie_breaking
import numpy
build_model = mapper.model.solver.build_model

def endless(x):
    model, v = build_model(x)
    factors = [model.new_int_var(2, 2**31, name) for name in "ab"]
    model.add_multiplication_equality(model.new_constant(1_000_000_007 * 998_244_353), factors)
    print("solving", flush=True)
    return model, v

mapper.model.solver.build_model = mapper.search.tie_breaking.build_model = endless
whole = lambda instance, limit: (instance, {r: numpy.arange(len(t.num_gpus)) for r, t in instance.tables.items()}, 0)
mapper.search.proof.prune_by_prices = whole  # which would prove so small a job without the solver
from hybridmap.cli import app
app(sys.argv[1:])
"""
LIMIT = ("--time-limit", "100000")
COMMANDS = {
    "plan": ("plan", *LIMIT),
    "plan json": ("plan", "--json", *LIMIT),
    "frontier": ("frontier", *LIMIT),
    "fit": ("fit", *LIMIT),
    "what-if": ("what-if", "--set", "workload.prompts=64,128", *LIMIT),
    "robust": ("robust", "--draws", "50"),
    "compare": ("compare",),
    "explain": ("explain",),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_search_stops(name, tmp_path):
    job, (command, *options) = tmp_path / "job.yaml", COMMANDS[name]
    job.write_text(yaml.safe_dump(SMALL_JOB))
    out = ["--out", str(tmp_path / "out")] if command in ("plan", "frontier", "what-if") else []
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, command, str(job), *options, *out],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "solving\n"
        child.send_signal(signal.SIGINT)
        rest, said = child.communicate(timeout=300)
    assert child.returncode == 130, said
    assert said == "stopped\n"
    assert rest == ""
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]
