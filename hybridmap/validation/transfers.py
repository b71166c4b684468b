"""Bytes that calls take in: by the columns that each call reads or by Table 2, and as ranks counted them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.validation.comparison import Amount
from simulator.cost.reshard import transition_volume_bytes
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.groups import Degrees

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from profiles.workload import Workload
    from simulator.plan.plan import Plan

TRANSITION = "transition"

# Bytes of a column for each sample, in tokens of the prompt (P), of the response (R), or for the sample alone (1).
COLUMNS: dict[str, tuple[int, str]] = {
    "uid": (8, "1"),
    "prompts": (8, "P"),
    "prompt_mask": (1, "P"),
    "responses": (8, "R"),
    "response_mask": (1, "R"),
    "log_probs": (4, "R"),
    "ref_log_probs": (4, "R"),
    "values": (4, "R"),
    "advantages": (4, "R"),
    "returns": (4, "R"),
}


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
                    kind="transfer",
                    name=call,
                    predicted_bytes=expected * copies.get(call, 1),
                    measured_bytes=counted[call],
                )
            )
    return found


def weights_amounts(plan: Plan, weight_bytes: float, counted: Mapping[str, int]) -> list[Amount]:
    """Bytes of weights that all ranks together take in before generation, by Table 2 for ``weight_bytes`` of the model.

    A dedicated rollout pool takes the model in once for each engine. None where nothing moves, and where layouts do
    not nest or weights are sharded over data-parallel ranks: the general way has no formula.
    """
    entry = next((e for e in plan.roles if e.training is not None and e.generation is not None), None)
    if entry is None or TRANSITION not in counted:
        return []
    assert entry.training is not None and entry.generation is not None
    a, b, moved = entry.training, entry.generation, counted[TRANSITION]
    if entry.separate_generation:
        expected = weight_bytes * b.dp
    elif Degrees(a.pp, a.tp, a.dp, b.pp, b.tp, a.cp).nests and a.zero_stage < 3:
        received = transition_volume_bytes(plan.resharding, weight_bytes, a.pp, a.tp, a.dp, b.pp, b.tp)
        expected = received * a.num_gpus
    else:
        return []
    amount = Amount(kind="weights", name=TRANSITION, predicted_bytes=round(expected), measured_bytes=moved)
    return [amount] if expected or moved else []


def columns_there(reads: Sequence[str], algorithm: str) -> tuple[str, ...]:
    """Of the columns that a call reads where they exist, those that the algorithm makes."""
    made = {"grpo": {"values", "returns", "ref_log_probs"}, "remax": {"values", "returns"}}.get(algorithm, set())
    pretraining = {"pretrain_tokens", "pretrain_mask", "pretrain_loss", "answers"}
    never = set() if ALGORITHMS[algorithm].pretraining_loss else pretraining
    return tuple(name for name in reads if name not in made | never)
