"""Batches as the sequences that a model reads: prompts and responses joined, or pretraining text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.batch import real_rows

if TYPE_CHECKING:
    from tensordict import TensorDict


def sequences_of(batch: TensorDict) -> tuple[TensorDict, int]:
    """``batch`` with ``tokens [B, P + R]``, ``token_mask`` and ``target_mask [B, R]``; and P. Filler has no target."""
    rows = batch.clone(recurse=False)
    rows["tokens"] = torch.cat([batch["prompts"], batch["responses"]], dim=1)
    rows["token_mask"] = torch.cat([batch["prompt_mask"], batch["response_mask"]], dim=1)
    rows["target_mask"] = written(batch) & real_rows(batch)[:, None]
    return rows, batch["prompts"].shape[1]


def written(batch: TensorDict) -> torch.Tensor:
    """The tokens of responses that the policy wrote, bool ``[B, R]``: all but those of an environment."""
    found: torch.Tensor = batch.get("loss_mask", None)
    return batch["response_mask"] if found is None else found


def pretraining_of(batch: TensorDict) -> TensorDict:
    """The pretraining text of ``batch``: every token but the first is a target."""
    rows = batch.select("pretrain_tokens", "pretrain_mask")
    rows["tokens"], rows["token_mask"] = rows["pretrain_tokens"], rows["pretrain_mask"]
    rows["target_mask"] = rows["pretrain_mask"][:, 1:] & real_rows(batch)[:, None]
    return rows
