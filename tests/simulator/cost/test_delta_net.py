"""Protects delta nets: Qwen's stay at their tables, Kimi's cost their rates on top, latent layers what they are."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from profiles.records import Basis
from simulator.cost import delta_net, engine_attention, engine_memory
from simulator.cost.compute import Batch
from simulator.cost.gemm_sizes import linear_gemms
from simulator.cost.trainer_layer import layer_costs
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import GenerationLayout, ParallelLayout
from tests.builders import make_facts

KIMI = load_model("kimi-linear-48b-a3b-instruct")
assert KIMI.linear is not None
GATED = replace(KIMI.linear, kind="gated_delta_net")
ONE, MANY, LONG = np.asarray([[1]]), np.asarray([[64.0]]), np.asarray([[4096.0]])
EIGHT = GenerationLayouts.of([GenerationLayout(dp=1, tp=8, max_num_seqs=64, kv_cache_bytes=0)])
FACTS = make_facts("grpo", device="h200-sxm", generation="vllm@0.32")


def test_kimis_rates_come_on_top_of_a_gated_delta_net() -> None:
    step, plain = (delta_net.step(FACTS, linear, MANY, ONE) for linear in (KIMI.linear, GATED))
    assert plain.s == pytest.approx(FACTS.device.linear_decode(MANY, 32, 32).s)
    assert 1.0 < step.s[0, 0] / plain.s[0, 0] < 1.3 and step.weakest[0, 0] == Basis.ANALYTIC
    chunks, whole = (delta_net.forward(FACTS, linear, ONE, LONG, ONE).s[0, 0] for linear in (KIMI.linear, GATED))
    assert delta_net.CHUNK_RATIO < chunks / whole < 2.0


def test_projections_hold_the_mixers_parameters() -> None:
    """But for convolution, decay and norm: nothing of a layer is left out of the products."""
    products = sum(float(n[0] * k[0]) for n, k in linear_gemms(KIMI, np.asarray([1])))
    small = 12_288 * 4 + 4096 + 32 + 128
    assert products == KIMI.linear.params(KIMI.hidden) - small


def test_latent_layers_are_a_quarter_of_the_model() -> None:
    """Seven of 27 layers read a cache that grows; the twenty others read a state that does not."""
    near, far = (
        engine_attention.attention_of_decode(FACTS, KIMI, EIGHT, MANY, LONG * n, "bf16").s[0, 0] for n in (1, 4)
    )
    latent = replace(KIMI, linear=None, num_linear_layers=0)
    alone = [engine_attention.attention_of_decode(FACTS, latent, EIGHT, MANY, LONG * n, "bf16").s[0, 0] for n in (1, 4)]
    assert far - near == pytest.approx((alone[1] - alone[0]) * 7 / 27)


def test_state_of_a_sequence_does_not_grow() -> None:
    held = engine_memory.state_bytes_per_sequence(KIMI, np.asarray([1]), np.asarray([1]))
    assert held == 20 * (32 * 128 * 128 * 4 + 3 * 12_288 * 2)


def test_a_trainer_runs_both_kinds() -> None:
    batch = Batch(np.asarray([8192.0]), np.asarray([1.0]), np.asarray([8192.0]))
    layout = Layouts.of([ParallelLayout(dp=1, tp=8)])
    forward, backward = layer_costs(FACTS, KIMI, layout, batch)
    least = 2.0 * KIMI.active_params_per_token * 8192 / 8 / FACTS.device.spec.peak("bf16") / KIMI.num_layers
    assert least < forward.time.s[0] < backward.time.s[0] < 40 * least
