"""Protects vLLM beside each trainer on a real GPU: it samples from the trainer's weights before and after a step, and
gives its memory back. Skipped where torch finds no GPU, or without vLLM.
"""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from profiles.models.catalogue import model_config
from tests.executor.engines.vllm_on_gpu import CACHE_BYTES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm: the extra gpu"),
]
TRAINERS = ["torch-native", "fsdp2", *(["megatron-core"] if importlib.util.find_spec("megatron") else [])]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_vllm_samples_from_the_trainers_weights_and_gives_its_memory_back(trainer, tmp_path):
    """bf16 on both sides, whose kernels round apart; those of other weights would be half a unit away."""
    config, out = tmp_path / "config.json", tmp_path / "found.json"
    config.write_text(json.dumps(dict(model_config("qwen2.5-0.5b")) | {"num_hidden_layers": 6}))
    command = [sys.executable, "-m", "tests.executor.engines.vllm_on_gpu", config, trainer, out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    print(json.dumps(found))
    for each in found["rounds"]:
        assert each["apart_mean"] < 0.02 and each["apart_most"] < 0.3
    first, second = (each["loss"] for each in found["rounds"])
    assert first != second  # of samples by other weights
    held = found["held_bytes"]
    for generating, training in zip(held["generate"], held["to training and score"], strict=True):
        assert training < generating - 0.5 * CACHE_BYTES
