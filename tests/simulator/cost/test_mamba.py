"""Protects trained Mamba-2 mixers and layers of a single part: by hand, and that each part is paid once."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from profiles.records import Basis
from simulator.cost import (
    activations,
    compute,
    engine_attention,
    host_launches,
    mamba,
    parameters,
    train,
    trainer_layer,
)
from simulator.cost.compute import Batch
from simulator.facts import Implementation
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import GenerationLayout, ParallelLayout
from tests.builders import make_facts

NANO = load_model("nvidia-nemotron-3-nano-30b-a3b-bf16")
ONE = np.asarray([1], dtype=np.int64)


def one(**degrees: object) -> Layouts:
    return Layouts.of([ParallelLayout.model_validate({"dp": 1, **degrees})])


def test_bytes_of_a_mixer_by_hand() -> None:
    """64 heads of 64, 8 groups of state 128: convolution of 6,144, output and gate of 4,096."""
    facts, tokens = make_facts(device="h100-80gb-sxm"), np.asarray([16384.0])
    assert NANO.linear is not None
    assert (NANO.linear.conv_width, NANO.linear.value_width) == (6144, 4096)
    found = mamba.mixer_forward(facts, NANO.linear, tokens, ONE)
    per_token = 2.0 * (3 * 6144 + 4 * 4096) + 16.0 * 64 * 128 * 64 / 128
    flop = 64 * (2 * 128 * 64 + 4 * 128 * 64) + 8 * 2 * 128 * 128
    by_flop = flop * 16384 / (0.25 * facts.device.spec.sustained("bf16"))
    by_hand = max(by_flop, float(facts.device.memory_bound(16384 * per_token, mamba.KERNELS).s))
    assert found.s[0] == pytest.approx(by_hand)
    assert found.share()[Basis.ASSUMED.name.lower()] == 1.0
    halves = mamba.mixer_forward(facts, NANO.linear, tokens, 2 * ONE)
    assert found.s[0] / 2 < halves.s[0] < found.s[0]


def test_a_layer_has_a_mixer_or_experts_and_never_both() -> None:
    """Of 52 layers 23 have experts: the average layer pays 23/52 of them, and no dense MLP at all."""
    facts = make_facts("grpo", NANO, device="h100-80gb-sxm", training="megatron-core@0.16")
    batch = Batch(np.asarray([8192.0]), np.asarray([2.0]), np.asarray([4096.0]))
    forward, backward = trainer_layer.layer_costs(facts, NANO, one(), batch)
    mixers = compute.attention_layer(facts, NANO, batch, ONE, ONE)
    experts = trainer_layer.moe.experts_training(facts, NANO, batch, ONE, ONE, ONE)
    assert NANO.num_dense_layers == 0
    assert forward.time.s[0] == pytest.approx(mixers.forward.s[0] + experts[0].s[0] * 23 / 52)
    assert backward.time.s[0] == pytest.approx(mixers.backward.s[0] + experts[1].s[0] * 23 / 52)
    attention = host_launches.ATTENTION * (1 - NANO.num_mixer_free_layers / 52)
    only = replace(facts, implementation=Implementation(captured=("router", "preprocess")))
    assert host_launches.launches_of_layer(only, NANO, one())[0] > attention


def test_a_step_is_that_of_a_model_of_its_active_size() -> None:
    """Nemotron-3-Nano has 3.6e9 active parameters: without the host its step is near that of a dense 4B."""
    whole = Implementation(captured=("iteration",))
    steps = {}
    for model, ep in (("nvidia-nemotron-3-nano-30b-a3b-bf16", 8), ("qwen3-4b", 1)):
        facts = replace(
            make_facts("grpo", model, device="h100-80gb-sxm", training="megatron-core@0.16"), implementation=whole
        )
        layouts = one(dp=8, ep=ep, micro_batch=4)
        steps[ep] = train.training_cost(facts, facts.roles["actor"].shape, "lm", layouts).time.s[0]
    assert steps[1] / 2 < steps[8] < steps[1] * 2


def test_activations_are_those_of_the_parts_that_a_layer_has() -> None:
    """Per layer of 52: 6 have attention, 23 a Mamba mixer, 23 experts and their buffers."""
    linear = NANO.linear
    assert linear is not None
    mixers = (6 * 2 * (32 * 128 + 2 * 128) + 23 * (linear.in_width + 2 * 4096)) / 52
    by_hand = 4 * 2688 + mixers + 3 * parameters.mlp_width(NANO) * 23 / 52
    assert activations.activation_bytes_per_token(NANO, one(), 2.0)[0] == pytest.approx(2.0 * by_hand)


def test_a_step_of_an_engine_reads_and_writes_the_state_whatever_the_context() -> None:
    """64 heads of 64 with states of 128: 524,288 elements, and three past inputs of the convolution's 6,144."""
    facts = make_facts(device="h100-80gb-sxm", generation="vllm@0.32")
    assert NANO.linear is not None
    sequences = np.asarray([[1.0, 256.0]])
    found = mamba.mixer_step(facts, NANO.linear, sequences, np.asarray([[1]]))
    kept = 64 * 64 * 128 * NANO.linear.state_element_bytes + 3 * 6144 * 2
    by_hand = facts.device.memory_bound(256 * (2.0 * kept + 2 * (6144 + 4 * 4096)), mamba.STEP_KERNELS)
    assert found.s[0, 1] == pytest.approx(float(by_hand.s))
    assert found.by_basis_s[Basis.ASSUMED][0, 1] == found.s[0, 1]
    layouts = GenerationLayouts.of([GenerationLayout(dp=1, tp=1, max_num_seqs=256, kv_cache_bytes=0)])
    only = replace(NANO, num_layers=NANO.num_linear_layers, num_mixer_free_layers=0, num_mlp_free_layers=0, moe=None)
    short, long = (
        engine_attention.attention_of_decode(facts, only, layouts, sequences, np.full((1, 2), context), "bf16").s[0, 1]
        for context in (1024.0, 8192.0)
    )
    assert short == long == pytest.approx(float(by_hand.s))
