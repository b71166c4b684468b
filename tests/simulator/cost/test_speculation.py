"""Protects prices of speculative decoding: what is drafted, checked and kept, and one published pair of runs."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.errors import InputError
from profiles.models.catalogue import load_model
from profiles.workload import LengthDistribution, Workload
from simulator.cost import decode, generate, kv_budget
from simulator.facts import Facts
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout
from simulator.speculation import Speculation
from tests.builders import make_facts

SMALL, LARGE = load_model("qwen3-0.6b"), load_model("qwen3-32b")
MTP = load_model("qwen3.5-9b")
EIGHT = GenerationLayouts.of([GenerationLayout(dp=1, tp=8, max_num_seqs=256, kv_cache_bytes=0)])
PRINTED = (0.886, 0.770, 0.663)


def facts_with(model: str, speculation: Speculation | None, **more: object) -> Facts:
    facts = make_facts("grpo", model, device="h100-80gb-sxm", generation="vllm@0.32")
    return replace(facts, speculation=speculation, **more)


def step_s(facts: Facts, active: float) -> float:
    shape, one = facts.roles["actor"].shape, np.asarray([[active]])
    return float(decode.decode_step(facts, shape, EIGHT, one, one * 0 + 4096, "bf16").time.s[0, 0])


def test_a_step_gives_the_kept_tokens_and_one_more() -> None:
    assert Speculation(PRINTED).tokens_per_step == pytest.approx(3.319)
    assert Speculation((0.0,)).tokens_per_step == 1.0


@pytest.mark.parametrize("accepted", [(), (1.1,), (0.5, 0.6), (0.5,) * 17])
def test_acceptance_that_cannot_be_is_refused(accepted: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="speculation"):
        Speculation(accepted)


def test_a_draft_must_be_there_and_speak_the_same_words() -> None:
    with pytest.raises(InputError, match="no prediction layers"):
        Speculation(PRINTED).require_drafts_for(LARGE)
    with pytest.raises(InputError, match="vocabulary of 128,256, qwen3-32b one of 151,936"):
        Speculation(PRINTED, load_model("llama-3.1-8b")).require_drafts_for(LARGE)
    Speculation(PRINTED, SMALL).require_drafts_for(LARGE)
    Speculation(PRINTED).require_drafts_for(MTP)


def test_few_sequences_gain_most() -> None:
    """With few of them a step waits for the weights, which the checked tokens read once; with many it computes."""
    with_draft = facts_with("qwen3-32b", Speculation((0.8, 0.64, 0.51), SMALL))
    without = facts_with("qwen3-32b", None)
    gains = [2.95 * step_s(without, n) / step_s(with_draft, n) for n in (1.0, 16.0, 256.0)]
    assert gains[0] > gains[1] > gains[2]
    assert gains[0] > 1.15


def test_useless_drafts_cost_what_they_take() -> None:
    useless, without = facts_with("qwen3.5-9b", Speculation((0.0,))), facts_with("qwen3.5-9b", None)
    assert step_s(useless, 16.0) > step_s(without, 16.0)


def test_a_draft_takes_memory() -> None:
    for speculation in (Speculation(PRINTED), Speculation(PRINTED, MTP)):
        own, drafted = (facts_with("qwen3.5-9b", s) for s in (None, speculation))
        before, after = (generate.generation_bytes(f, MTP, EIGHT, "bf16") for f in (own, drafted))
        assert set(after) - set(before) == {"draft weights"}
        assert after["draft weights"][0] > 1e7
        assert after["kv cache"][0] > before["kv cache"][0]
        assert kv_budget.bytes_per_token(drafted, MTP, EIGHT) > kv_budget.bytes_per_token(own, MTP, EIGHT)


def test_a_published_pair_of_rollouts() -> None:
    """SkyRL's documentation: 310.1 s without, 152.4 s with three MTP tokens, eager vLLM, 8 engines of one H100.

    Its mean length is not printed, but the ratio hardly depends on it. Priced it is too good, as long as nobody has
    measured what eager drafting takes of the host.
    """
    layout = GenerationLayouts.of([GenerationLayout(dp=8, tp=1, max_num_seqs=256, kv_cache_bytes=0)])

    def ratio(mean: float) -> float:
        work = Workload(32, 8, 2048, LengthDistribution("lognormal", mean, 8192), 1, 8, 0.0, 256)
        own, drafted = (facts_with("qwen3.5-9b", s, workload=work) for s in (None, Speculation(PRINTED)))
        eager = replace(own.generation, cuda_graphs=False, launch_s_per_layer=0.8e-3)
        times = [generate.generation_cost(replace(f, generation=eager), MTP, layout).time.s[0] for f in (own, drafted)]
        return float(times[1] / times[0])

    assert ratio(2000) == pytest.approx(ratio(4000), rel=0.05)
    assert 1 / 3.32 < ratio(3000) < 152.4 / 310.1
