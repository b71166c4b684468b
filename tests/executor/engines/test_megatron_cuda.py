"""Protects Megatron-Core on GPUs without Transformer Engine: what 0.16.1 forgets is mended there, too."""

import importlib.util

import pytest
import torch

from benchmarks.rank_pool import run_on_ranks
from executor.engines.entry import LayoutOptions
from executor.engines.megatron import cpu_shim
from executor.records import Identity
from simulator.plan.groups import Degrees
from tests.executor.rounds import configs_of, rows, spec_of, trained

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


def trained_both_ways(rank, path):
    """Rounds of training with Megatron's activations as they are here, and compiled as on a GPU."""
    from executor.engines.megatron import model
    from executor.engines.megatron.engine import MegatronEngine

    found = {}
    for compiled in (False, True):
        model.compiles_activations = lambda _device, compiled=compiled: compiled
        spec = spec_of(path, value_head=False)
        engine = MegatronEngine(Identity("A", rank, 1), "", Degrees(1, 1, 1, 1, 1), spec, LayoutOptions())
        found[compiled] = trained(engine, rows(), value_head=False)
        assert engine.chunks[0].config.bias_activation_fusion is compiled
    return found


@pytest.mark.long
def test_compiled_activations_learn_alike(tmp_path_factory):
    """On GPUs with Triton; here torch compiles the same functions for the CPU, with rows of several lengths."""
    found = run_on_ranks(1, trained_both_ways, configs_of({"llama": {}}, 4, tmp_path_factory)["llama"])[0]
    for plain, compiled in zip(found[False][1], found[True][1], strict=True):
        assert plain == pytest.approx(compiled, rel=1e-5)
    assert torch.allclose(found[False][2], found[True][2], atol=1e-5)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)])
def test_the_norm_of_gpus_is_that_of_the_other_engines(dtype, within):
    """To a rounding: torch's kernel multiplies by the weight before it rounds."""
    from executor.engines.megatron.model import one_kernel_norm
    from executor.engines.native.decoder import rms_norm

    torch.manual_seed(0)
    x, weight = torch.randn(7, 2, 64).to(dtype), torch.randn(64).to(dtype)
    assert torch.allclose(one_kernel_norm(x, weight, 1e-6), rms_norm(x, weight, 1e-6), rtol=within, atol=within)


def test_activations_are_compiled_on_gpus_alone(monkeypatch):
    from executor.engines.megatron.model import compiles_activations

    for has_triton in (True, False):
        found = object() if has_triton else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name, found=found: found)
        assert compiles_activations(torch.device("cuda")) is has_triton
        assert not compiles_activations(torch.device("cpu"))
