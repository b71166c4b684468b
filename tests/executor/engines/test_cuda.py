"""Protects engines on a real GPU: what they compute there is what they compute on a CPU, and how often the host waits.

Each engine runs in a process of its own, on one GPU and on the CPU, in fp32. Skipped where torch finds no GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from executor.engines.attention import packed_attention
from tests.executor.device_shim.waits import WAITS
from tests.executor.plans import TINY

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
DEVICES = ("cpu", "cuda")
TRAINERS = ["torch-native", "fsdp2", *(["megatron-core"] if importlib.util.find_spec("megatron") else [])]
CASES = [(trainer, *critic) for trainer in TRAINERS for critic in ((), ("critic",))]
SIZES = {"num_hidden_layers": 2, "num_key_value_heads": 4}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each case does on the CPU and on the GPU; all processes at once."""
    folder = tmp_path_factory.mktemp("cases")
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(TINY.read_text()) | SIZES))
    started = {}
    for name, *critic in CASES:
        for device in DEVICES:
            out = folder / "-".join((name, device, *critic))
            command = [sys.executable, "-m", "tests.executor.engines.on_device", config, name, device, out, *critic]
            seen = os.environ if device == "cuda" else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # Megatron takes it
            started[name, *critic, device] = out, subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=seen)

    def of(case, device):
        out, process = started[*case, device]
        said = process.communicate(timeout=300)[1] if process.returncode is None else ""
        assert process.returncode == 0, said[-3000:]
        return torch.load(out)

    return of


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_gpu_learns_what_a_cpu_learns(case, found):
    here, there = (found(case, device) for device in DEVICES)
    for mine, theirs in zip(here["outputs"], there["outputs"], strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine, theirs, rtol=1e-3, atol=1e-3)
    for mine, theirs in zip(here["steps"], there["steps"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)
    assert here["preferred"] is None or torch.equal(here["preferred"], there["preferred"])


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_host_waits_no_more_often_than_on_a_pretended_gpu(case, found):
    waits = found(case, "cuda")["waits"]
    assert {call: lines for call, lines in waits.items() if len(lines) > WAITS[call]} == {}


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_all_sequences_in_one_launch_attend_as_one_by_one(kv_heads):
    """bf16 by the GPU's kernel of all sequences, beside fp32 on the CPU: outputs and gradients."""
    lengths, draw = (5, 1, 40, 17), torch.Generator().manual_seed(0)
    made = [torch.randn(sum(lengths), heads, 64, generator=draw) for heads in (4, kv_heads, kv_heads)]
    found = {}
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        given = [x.to(device, dtype).detach().requires_grad_() for x in made]
        mixed = packed_attention(*given, lengths)
        mixed.float().square().sum().backward()
        found[device] = [x.detach().float().cpu() for x in (mixed, *(x.grad for x in given))]
    for here, there in zip(found["cpu"], found["cuda"], strict=True):
        assert torch.linalg.norm(here - there) < 0.02 * torch.linalg.norm(here)
