"""Protects the vocabulary head: each implementation's products and passes over the logits, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from simulator.cost import gemms
from simulator.cost.vocabulary_head import vocabulary_head
from simulator.facts import Implementation
from tests.builders import make_facts

ONE = np.asarray([1], dtype=np.int64)
LLAMA = load_model("llama-2-7b")


def test_loss_heads_differ_as_their_implementations_do() -> None:
    facts, tokens = make_facts(), np.asarray([4096.0])
    plain, fused, fp32 = (
        vocabulary_head(replace(facts, implementation=Implementation(loss_head=kind)), LLAMA, tokens, ONE)
        for kind in ("parallel", "fused", "fp32")
    )
    gemm = [(np.asarray([32000.0]), np.asarray([4096.0]))]
    projection = gemms.run_gemms(facts, tokens, gemm, "bf16", sustained=True).s
    assert fused[0].s == plain[0].s
    assert fused[1].s == pytest.approx(plain[1].s + projection)
    assert fp32[0].s > 2 * plain[0].s


def test_the_unfused_head_passes_over_its_logits_again_and_again() -> None:
    """54 bytes per logit forward and 26 backward around the same three GEMMs; 8 and 10 where the loss is fused."""
    facts, tokens, tp = make_facts(), np.asarray([4096.0]), np.asarray([2], dtype=np.int64)
    plain, unfused = (
        vocabulary_head(replace(facts, implementation=Implementation(loss_head=kind)), LLAMA, tokens, tp)
        for kind in ("parallel", "unfused")
    )
    logits = 4096 * 32000 / 2
    traffic = {n: float(facts.device.memory_bound(logits * n, 3).s) for n in (8, 10, 54, 26)}
    gemm = [(np.asarray([16000.0]), np.asarray([4096.0]))]
    projection = gemms.run_gemms(facts, tokens, gemm, "bf16", sustained=True).s[0]
    gradients = sum(x.s[0] for x in gemms.run_gemms_backward(facts, tokens, gemm))
    assert (plain[0].s[0], unfused[0].s[0]) == pytest.approx((projection + traffic[8], projection + traffic[54]))
    assert (plain[1].s[0], unfused[1].s[0]) == pytest.approx((gradients + traffic[10], gradients + traffic[26]))


def test_a_frozen_head_has_no_weight_gradients() -> None:
    facts, tokens = make_facts(), np.asarray([8192.0])
    lora = replace(facts, implementation=Implementation(lora_rank=16))
    backward = [vocabulary_head(f, LLAMA, tokens, ONE)[1].s[0] for f in (facts, lora)]
    assert backward[1] < 0.8 * backward[0]
