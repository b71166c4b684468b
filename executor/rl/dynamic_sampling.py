"""Dynamic sampling (DAPO; Yu et al. 2025, 3.2): groups that all score alike teach nothing, others replace them.

As verl's DAPO recipe: batches of prompts are answered and scored until enough groups are left; what is over is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from tensordict import TensorDict

    from executor.controller.models import Models
    from executor.worker.futures import Future


@dataclass(frozen=True)
class DynamicSampling:
    """``num_rows`` responses of an iteration, from at most ``most_batches`` batches of prompts."""

    num_rows: int
    most_batches: int


def varied(scores: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Which rows are of a group whose ``scores [B]`` differ, bool ``[B]``."""
    import torch

    _, place, counts = torch.unique(group, return_inverse=True, return_counts=True)
    least = torch.full((len(counts),), float("inf")).scatter_reduce(0, place, scores.float(), "amin")
    most = torch.full((len(counts),), float("-inf")).scatter_reduce(0, place, scores.float(), "amax")
    return (least < most)[place]


def joined(batches: Sequence[TensorDict]) -> TensorDict:
    """The rows of all ``batches``; columns that are wider in some are filled with what their padding is."""
    import torch
    from tensordict import TensorDict

    columns = {}
    for name in batches[0].keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        of_all = [batch[name] for batch in batches]
        filler = -1 if name == "answers" else 0
        if of_all[0].dim() > 1:
            widest = max(column.shape[1] for column in of_all)
            of_all = [torch.nn.functional.pad(c, (0, widest - c.shape[1]), value=filler) for c in of_all]
        columns[name] = torch.cat(of_all)
    return TensorDict(columns, batch_size=[sum(len(batch) for batch in batches)])


def scored_groups(models: Models, answered: Future, how: DynamicSampling) -> Future:
    """Responses with ``scores`` in groups that differ, from those ``answered`` and to as many more prompts as it takes.

    ``InputError`` where so many batches of prompts do not have them.
    """
    models.controller.begin_groups()
    for drawn in range(1, how.most_batches + 1):
        scored = answered | models.reward.compute_reward(answered)
        rows = models.controller.keep_groups(scored).first()
        if rows >= how.num_rows:
            kept: Future = models.controller.kept_groups(rows=how.num_rows)
            return kept
        if drawn < how.most_batches:
            prompts = models.actor.prompts.another()
            answered = prompts | models.actor.generate_more(prompts)
    raise InputError(
        f"dynamic_sampling: {how.most_batches} batches of prompts gave {rows} responses in groups that do not all "
        f"score alike, an iteration takes {how.num_rows}. The prompts are too hard or too easy, or "
        "run.learning.most_batches is too small"
    )
