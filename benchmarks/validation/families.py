"""What a published row is to others: of which family, and of which cluster of the intervals.

A family is a model on a device with a release of an engine. Rows of one family share what no constant knows of them, so
a prediction counts as one only where the whole family was left out of the fit.
"""

from __future__ import annotations

import re

from benchmarks.validation.names import text_of


def family_of(model: str, device: str, release: str) -> str:
    """Key of a family; words that leave all three as they are do not count."""
    return " | ".join((_plain(model.split("/")[-1]), device, _plain(release)))


def release_of(kind: str, cells: dict[str, object]) -> str:
    """The engine's release by the words of a row."""
    if kind == "generation":
        return f"{text_of(cells.get('backend'))} {text_of(cells.get('backend_version'))}".strip()
    engine = text_of(cells.get("gen_backend")) if kind == "rl" else ""
    return f"{text_of(cells.get('system'))} {engine}".strip()


def _plain(text: str) -> str:
    """Lower case and spaces, without remarks in parentheses and what only says how a checkpoint was tuned."""
    words = re.sub(r"\([^()]*\)", " ", text.lower())
    words = re.sub(r"[-_\s]+", " ", words)
    words = re.sub(r"\b(meta|instruct|chat|base|2507|2501)\b", " ", words)
    return " ".join(words.split())
