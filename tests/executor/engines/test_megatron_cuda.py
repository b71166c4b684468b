"""Protects Megatron-Core on GPUs without Transformer Engine: what 0.16.1 forgets is mended there, too."""

import importlib.util

import pytest
import torch

from executor.engines.megatron import cpu_shim

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Megatron's imports
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None, reason="needs megatron-core: the extra cpu-engines"
    ),
]


def test_a_router_runs_on_gpus_without_transformer_engine(monkeypatch):
    """Its name for Transformer Engine's product is undefined where that is missing: every mixture failed there."""
    from megatron.core.transformer.moe import moe_utils

    monkeypatch.setattr(cpu_shim, "_FIXED", False)
    monkeypatch.delitem(vars(moe_utils), "te_general_gemm", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    hidden, weight = torch.randn(3, 8), torch.randn(4, 8)
    with cpu_shim.cuda_calls_on_cpu():
        found = moe_utils.router_gating_linear(hidden, weight, None, torch.float32)
    assert torch.allclose(found, hidden @ weight.t())
