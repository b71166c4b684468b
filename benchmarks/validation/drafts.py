"""What a published row says of drafted tokens: how many a step drafts, and how many of them are kept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from benchmarks.validation.names import text_of
from simulator.speculation import MOST_DRAFTED, Speculation

if TYPE_CHECKING:
    from collections.abc import Mapping

ASSUMED_ACCEPTANCE = 0.8
"""Share of tokens kept after kept ones where a row does not say it: DeepSeek-V3's report has 85 to 90 % for its
prediction layer's first token, later positions and other drafts have less."""

ASSUMED_DRAFTED = 3
"""Tokens of a draft where a row does not say it: what recipes of vLLM, SGLang and TensorRT-LLM set most."""

_SPECULATES = re.compile(
    r"speculat|medusa|eagle|draft model|draft length|lookahead decoding|\bmtp\b|mtp-?\d", re.IGNORECASE
)
_WITHOUT = re.compile(
    r"\b(?:no|without)\b[^,;.]{0,20}(?:speculat|mtp|eagle|draft)"
    r"|(?:speculat\w*|mtp|eagle\S*|draft \w+)[^,;.]{0,20}\b(?:off|none|disabled|unused)\b",
    re.IGNORECASE,
)
_DRAFTED = re.compile(
    r"(?:draft (?:length|len|tokens)|num_(?:speculative|draft)_tokens|num_nextn_predict_layers|max_draft_len|mtp|nextn)"
    r"\W{0,3}(\d+)|(\d+)\W(?:draft(?:ed)? tokens|speculative tokens|draft steps|steps)",
    re.IGNORECASE,
)
_LENGTH = re.compile(r"accept\w* length\D{0,6}(\d+(?:\.\d+)?)", re.IGNORECASE)
_RATE = re.compile(r"accept\w*(?: rate| share)?\D{0,6}(\d+(?:\.\d+)?)\s*(%?)", re.IGNORECASE)


def stated_speculation(cells: Mapping[str, Any]) -> tuple[Speculation | None, tuple[str, ...]]:
    """Drafts of a row, and what had to be assumed of them; ``None`` for a row that does not speculate."""
    columns = ("row_kind", "backend", "model", "notes", "speculation")
    words = " ".join(text_of(cells.get(column)) for column in columns)
    if not _SPECULATES.search(words) or _WITHOUT.search(words):
        return None, ()
    assumed = []
    found = _DRAFTED.search(words)
    drafted = int(next(group for group in found.groups() if group)) if found else ASSUMED_DRAFTED
    if drafted == 0:
        return None, ()
    if not found or drafted > MOST_DRAFTED:
        drafted = ASSUMED_DRAFTED
        assumed.append(f"{ASSUMED_DRAFTED} drafted tokens")
    kept = _acceptance(words, drafted)
    if kept is None:
        kept = ASSUMED_ACCEPTANCE
        assumed.append(f"{ASSUMED_ACCEPTANCE:.0%} of drafted tokens accepted")
    return Speculation(tuple(kept**position for position in range(1, drafted + 1))), tuple(assumed)


def _acceptance(words: str, drafted: int) -> float | None:
    """Share of tokens kept after kept ones: as a rate, or from the mean length of what a step gives."""
    length = _LENGTH.search(words)
    if length:
        return _share_of(float(length[1]) - 1.0, drafted)
    rate = _RATE.search(words)
    if not rate:
        return None
    share = float(rate[1]) / (100.0 if rate[2] else 1.0)
    return share if 0.0 < share <= 1.0 else None


def _share_of(kept: float, drafted: int) -> float:
    """The share p with ``p + p^2 + ... + p^drafted = kept``."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        below = sum(middle**position for position in range(1, drafted + 1)) < kept
        low, high = (middle, high) if below else (low, middle)
    return high
