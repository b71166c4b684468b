"""Protects runs on GPUs that nobody has here: every call of every engine on a pretended GPU (``calls``).

No tensor of the host enters a collective, loading makes no tensor larger than this rank's own, and the host waits for
the device as often as a number says, however many rows, layers and parameters there are.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from executor.engines.registry import GENERATION, TRAINING
from tests.executor.device_shim.waits import WAITS

TABLE = Path(__file__).parent / "calls.md"
LARGEST_SHARD = {"fsdp2, tensor parallel": 64 * 32 // 4, "fsdp2 critic": 64 * 32 // 4}
"""Elements of the embedding on one of four ranks: the largest tensor of the model."""


ELSEWHERE = {"sglang"}
"""Engines whose model lives in a process of their own, which no pretence of ours reaches."""


@pytest.fixture(scope="module")
def calls():
    """In a process of its own: a backend of torch stays registered."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.executor.device_shim.calls"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def test_every_engine_is_there(calls):
    engines = " ".join(call["engine"] for call in calls)
    assert all(name in engines for name in (*TRAINING, *GENERATION) if name not in ELSEWHERE)
    assert {call["call"] for call in calls} == {"load", *WAITS}


def test_no_tensor_of_the_host_enters_a_collective(calls):
    assert [call for call in calls if call["on_host"]] == []


def test_the_host_waits_no_more_often_than_said(calls):
    too_often = [c for c in calls if c["call"] != "load" and sum(c["syncs"].values()) > WAITS[c["call"]]]
    assert too_often == []


def test_shards_of_gradients_are_summed_in_fp32(calls):
    """The weights are in bf16, and so are activations that ranks of one context cut among them."""
    summed = {call["engine"]: set(call["summed"]) for call in calls if call["call"] == "update" and call["summed"]}
    assert {"fsdp2, tensor parallel", "fsdp2 critic", "torch-native"} <= set(summed)
    cut = {"megatron-core, context parallel": {"bfloat16", "float32"}}
    assert summed == {engine: cut.get(engine, {"float32"}) for engine in summed}


def test_loading_makes_no_whole_tensor(calls):
    """FSDP2 makes its model without memory, cuts it, and gives memory to the shards."""
    found = {call["engine"]: call["largest_bytes"] for call in calls if call["call"] == "load"}
    for engine, elements in LARGEST_SHARD.items():
        assert found[engine] <= 4 * elements


def test_the_table_is_what_the_calls_do(calls):
    """``calls.md``: engines, calls, tensors of the host and waits as they are, peaks within a tenth."""
    written = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.read_text().splitlines() if "|" in line
    ]
    found = [[c["engine"], c["call"], str(sum(c["on_host"].values())), str(sum(c["syncs"].values()))] for c in calls]
    assert [row[:4] for row in written[2:]] == found
    peaks = [float(row[4]) for row in written[2:]]
    assert peaks == pytest.approx([c["peak_bytes"] / 1024 for c in calls], rel=0.1, abs=0.1)
