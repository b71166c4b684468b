"""Protects attention of an inference engine's layer: what copies share, and what kernels of old cost."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from simulator.cost.engine_attention import attention_of_decode
from simulator.facts import Facts
from simulator.plan.layouts import GenerationLayouts
from tests.builders import make_facts

MOE = load_model("qwen3-235b-a22b")
LLAMA = load_model("llama-3-70b")
ROWS = np.asarray([[64.0]])


def layouts(tp: int, copies: int = 1) -> GenerationLayouts:
    return GenerationLayouts(*(np.asarray([x], dtype=np.int64) for x in (1, tp, 1, 256, 1, copies)))


def h100() -> Facts:
    return make_facts("grpo", device="h100-80gb-sxm", nodes=1, generation="vllm@0.12", inter_node_bytes_per_s=4e11)


def test_attention_copies_share_sequences_and_not_heads() -> None:
    copied = attention_of_decode(h100(), MOE, layouts(8, copies=8), ROWS, ROWS * 30, "bf16").s
    alone = attention_of_decode(h100(), MOE, layouts(1), ROWS / 8, ROWS * 30, "bf16").s
    assert copied == pytest.approx(alone)


def test_decode_kernels_of_old_are_bound_by_instructions() -> None:
    """Without groups they spend them for every query head; with groups once, but no less for a narrow cache."""
    many = np.asarray([[256.0]])

    def seconds(groups: tuple[int, ...] | None, cache: tuple[str, ...] = ("fp8",)) -> float:
        facts = h100()
        engine = replace(facts.generation, grouped_query_kernels=groups, fp8_cache_with=cache)
        facts = replace(facts, generation=engine)
        return float(attention_of_decode(facts, LLAMA, layouts(4), many, many * 8, "fp8").s[0, 0])

    wide, narrow = seconds(None, ()), seconds(None)
    assert 1.5 * narrow < wide  # a kernel of today reads half as many bytes
    assert seconds((8,)) == pytest.approx(wide)
    assert 1.5 * wide < seconds(()) < 8 * wide
    assert seconds(()) == pytest.approx(seconds((), ())) == pytest.approx(seconds((8,), ()))
