"""Protects what rows say of drafted tokens: how many, how many are kept, and what had to be assumed."""

import pytest

from benchmarks.validation.drafts import stated_speculation


@pytest.mark.parametrize(
    ("notes", "drafted", "given", "assumed"),
    [
        ("MTP draft length 1, acceptance rate 0.85", 1, 1.85, 0),
        ("MTP-3, acceptance length 2.6", 3, 2.6, 0),
        ("EAGLE speculative decoding: 3 steps, acceptance length 2.4", 3, 2.4, 0),
        ("speculative decoding, num_speculative_tokens=2, accepted 90%", 2, 1 + 0.9 + 0.81, 0),
        ("EAGLE-3 speculative decoding", 3, 1 + 0.8 + 0.64 + 0.512, 2),
        ("MTP2", 2, 1 + 0.8 + 0.64, 1),
    ],
)
def test_drafts_are_read_from_the_words_of_a_row(notes: str, drafted: int, given: float, assumed: int) -> None:
    found, noted = stated_speculation({"notes": notes})
    assert found is not None
    assert (found.drafted, len(noted)) == (drafted, assumed)
    assert found.tokens_per_step == pytest.approx(given, rel=1e-6)


WITHOUT = ("no speculative decoding", "without MTP", "speculative decoding disabled", "MTP off", "max_draft_len=0, MTP")


@pytest.mark.parametrize("notes", [*WITHOUT, "", "closed loop, 64 steps"])
def test_a_row_without_drafts_has_none(notes: str) -> None:
    assert stated_speculation({"notes": notes, "model": "deepseek-ai/DeepSeek-R1"}) == (None, ())
