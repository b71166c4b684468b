"""Protects what a layer keeps of a token for its backward pass, at every level of recomputation."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from profiles.models.catalogue import load_model
from simulator.cost import activations, memory
from simulator.facts import Implementation
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import make_facts, workload

LLAMA = load_model("llama-2-7b")


def one(**degrees: object) -> Layouts:
    return Layouts.of([ParallelLayout.model_validate({"dp": 1, **degrees})])


def training(layouts: Layouts, **facts: object) -> dict[str, float]:
    given_facts = make_facts(work=workload(128, 1024, 1024, minibatches=1))
    given_facts = replace(given_facts, **facts)  # type: ignore[arg-type]
    classes = memory.training_bytes(given_facts, LLAMA, layouts, logits=True)
    return {name: float(size[0]) for name, size in classes.items()}


degrees = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4, 8]),
        "micro_batch": st.sampled_from([1, 2, 4]),
        "dp": st.sampled_from([1, 2, 4]),
        "zero_stage": st.integers(0, 3),
        "recompute": st.sampled_from(["none", "selective", "full"]),
    }
)


def test_saved_activations_of_llama_per_token_and_layer() -> None:
    """4 h + 2 q + 2 kv + 3 f elements of 2 bytes: 32.1 h for Llama-2-7B, where f = 2.6875 h."""
    layouts = Layouts.of([ParallelLayout(dp=1, recompute=r) for r in ("none", "selective", "full")])
    per_token = activations.activation_bytes_per_token(LLAMA, layouts) / LLAMA.hidden
    assert per_token[0] == 2 * (4 + 2 + 2 + 3 * 11008 / 4096) == pytest.approx(32.125)
    assert per_token.tolist() == [32.125, 2 * (2 + 2 + 2 + 2 * 11008 / 4096), 2.0]
    assert activations.activation_bytes_per_token(LLAMA, one(tp=8))[0] == 32.125 * 4096 / 8


def test_recomputation_of_some_layers_keeps_the_activations_of_the_others() -> None:
    def of(level: str, layers: int | None) -> dict[str, float]:
        return training(one(pp=4, recompute=level), implementation=Implementation("fused", recompute_layers=layers))

    none, full = of("none", None), of("full", None)
    half, every = of("full", 4), of("full", 100)  # of the 8 of a stage
    working = 2 * activations.activation_bytes_per_token(LLAMA, one(), 2.0)[0] * 2048
    assert every == full
    assert half["activations"] - working == pytest.approx((none["activations"] + full["activations"] - working) / 2)


def test_checkpoints_on_the_host_leave_two_layers_on_the_device() -> None:
    here, there = (
        training(one(recompute="full"), implementation=Implementation(checkpoints=place))
        for place in ("device", "host")
    )
    working = 2 * activations.activation_bytes_per_token(LLAMA, one(), 2.0)[0] * 2048
    assert there["activations"] - working == pytest.approx((here["activations"] - working) * 2 / 32)


def test_every_second_product_is_kept_by_hand() -> None:
    """Input, query, value, attention's output, gate and down: 4 h of Llama's equal widths, kv and f."""
    layouts = one(recompute="selective")
    found = activations.activation_bytes_per_token(LLAMA, layouts, 2.0, "every-second-product")[0]
    assert found == 2.0 * (4 * 4096 + 4096 + 11008)
    assert found < activations.activation_bytes_per_token(LLAMA, layouts, 2.0)[0]


def test_attention_in_tensor_operations_keeps_its_scores() -> None:
    """Of each a softmax in FP32 and its copy in bf16, over tensor-parallel ranks; recomputation keeps none."""
    facts = make_facts(work=workload(64, 1024, 1024, minibatches=2))
    apart = replace(facts, implementation=replace(facts.implementation, attention_kernel="math"))
    shape = load_model("llama-2-7b")
    for recompute, kept in (("none", 6.0 * 2048 * 32 / 8), ("selective", 0.0), ("full", 0.0)):
        layouts = one(tp=8, recompute=recompute)
        more = (activations.saved_bytes_per_token(f, shape, layouts)[0] for f in (apart, facts))
        with_scores, without = more
        assert with_scores - without == pytest.approx(kept)
