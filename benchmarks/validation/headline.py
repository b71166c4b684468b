"""The first table of the page on accuracy: what is predicted, how far off it is, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LINES = {
    "step of RL, s": ("rl", "step_time_s"),
    "step of training, s": ("training", "step_time_s"),
    "time per output token": ("generation", "tpot_ms"),
    "time to first token": ("generation", "ttft_ms"),
    "tokens/s of an engine, offline": ("generation", "throughput_tokens_per_s"),
    "iteration of HybridFlow's figures, s": ("paper", "iteration_s"),
}
"""What a reader asks for, and the published quantity that answers."""

COLUMNS = ("predicted", "rows", "off by, dense", "off by, MoE", "worst row", "arithmetic on paper")


def headline(families: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each of ``LINES`` that has rows, from the lines of families left out (``family_errors``)."""
    found = []
    for what, (table, quantity) in LINES.items():
        asked = [r for r in families if (r["table"], r["quantity"]) == (table, quantity)]
        kinds = {r["model_kind"]: r for r in asked if r["model_kind"] in ("dense", "moe")}
        if not kinds:
            continue
        naive = [(r["naive"], r["rows"]) for r in kinds.values() if r["naive"] is not None]
        found.append(
            {
                "predicted": what,
                "rows": sum(r["rows"] for r in kinds.values()),
                **{
                    f"off by, {word}": f"{kinds[kind]['mean']:.0%}" if kind in kinds else ""
                    for kind, word in (("dense", "dense"), ("moe", "MoE"))
                },
                "worst row": f"{max(r['worst'] for r in kinds.values()):.0%}",
                "arithmetic on paper": (
                    f"{sum(error * rows for error, rows in naive) / sum(rows for _, rows in naive):.0%}"
                    if naive
                    else ""
                ),
            }
        )
    return found
