"""Bytes that calls take in: by the columns that each call reads, and as ranks counted them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.validation.comparison import Amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from profiles.workload import Workload

# Bytes of a column for each sample, in tokens of the prompt (P), of the response (R), or for the sample alone (1).
COLUMNS: dict[str, tuple[int, str]] = {
    "uid": (8, "1"), "prompts": (8, "P"), "prompt_mask": (1, "P"), "responses": (8, "R"), "response_mask": (1, "R"),
    "log_probs": (4, "R"), "ref_log_probs": (4, "R"), "values": (4, "R"), "advantages": (4, "R"), "returns": (4, "R"),
}  # fmt: skip


def predicted_bytes(reads: Iterable[str], work: Workload) -> int | None:
    """Bytes of these columns for all samples of an iteration; ``None`` if the size of one is not known beforehand."""
    total = 0.0
    length = {"P": float(work.prompt_length), "R": work.response.mean, "1": 1.0}
    for name in reads:
        if name not in COLUMNS:
            return None
        size, unit = COLUMNS[name]
        total += size * length[unit]
    return round(total * work.num_samples)


def transfer_amounts(
    reads: Mapping[str, tuple[str, ...]], counted: Mapping[str, int], work: Workload, copies: Mapping[str, int]
) -> list[Amount]:
    """Predicted and counted bytes by call. ``copies``: how many ranks get the same rows (tensor, pipeline parallel)."""
    found = []
    for call, columns in reads.items():
        expected = predicted_bytes(columns, work)
        if expected is not None and call in counted:
            found.append(
                Amount(
                    kind="transfer", name=call, predicted_bytes=expected * copies.get(call, 1),
                    measured_bytes=counted[call],
                )
            )  # fmt: skip
    return found


def columns_there(reads: Sequence[str], algorithm: str) -> tuple[str, ...]:
    """Of the columns that a call reads where they exist, those that the algorithm makes."""
    made = {"grpo": {"values", "returns", "ref_log_probs"}, "remax": {"values", "returns"}}.get(algorithm, set())
    never = {"pretrain_tokens", "pretrain_mask", "pretrain_loss", "answers"} if algorithm != "safe-rlhf" else set()
    return tuple(name for name in reads if name not in made | never)
