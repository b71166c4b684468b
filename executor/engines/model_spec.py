"""Which model a role runs and how, in words that every engine reads. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.records import COLLECTIVE_TIMEOUT_S
from executor.weights.architecture import is_learned
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from executor.rl.learning_rate import RateSchedule
    from executor.weights.architecture import Adapters
    from simulator.plan.groups import Degrees

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
"""Types of weights by their names in job files, and torch's names of them."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Constants of AdamW and of gradient clipping; ``schedule`` moves the learning rate, where there is one."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    schedule: RateSchedule | None = None

    def set_rate(self, groups: Iterable[dict[str, Any]], num_steps: int) -> None:
        """Give an optimizer's parameter groups the learning rate of the step after ``num_steps``."""
        factor = 1.0 if self.schedule is None else self.schedule.factor(num_steps)
        for group in groups:
            group["lr"] = self.learning_rate * factor


@dataclass(frozen=True)
class DraftSpec:
    """A model that drafts ``tokens`` a step for one that generates; ``path`` is its folder of weights."""

    path: str
    tokens: int


@dataclass(frozen=True)
class ModelSpec:
    """Which model a role runs, and how.

    ``path`` is a ``config.json`` (weights drawn by ``seed``) or a folder with one and ``*.safetensors`` files.
    ``micro_batch`` in rows of a rank, or where ``token_budget`` is not 0 as many as hold so many tokens, padding left
    out;
    ``max_num_seqs`` sequences of a replica generate at once, fewer if ``kv_cache_bytes`` of a rank (0: no limit) do not
    hold them. ``scoring`` are the degrees of forward passes where
    they differ from those of training. ``offload`` names what waits in host memory: ``parameters``, ``optimizer``.
    ``recompute`` as in plans; with ``adapters`` they are trained, and the base stays as it is.
    ``check_weights``: compare checksums after each transition. ``draft`` writes tokens ahead where it generates.
    """

    path: str
    seed: int = 0
    dtype: str = "fp32"
    value_head: bool = False
    micro_batch: int = 1
    token_budget: int = 0
    zero_stage: int = 1
    optimizer: OptimizerConfig | None = None
    max_num_seqs: int = 1024
    kv_cache_bytes: int = 0
    scoring: Degrees | None = None
    offload: tuple[str, ...] = ()
    recompute: str = "none"
    adapters: Adapters | None = None
    device: str = "cpu"
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S
    check_weights: bool = True
    draft: DraftSpec | None = None

    def learns(self, name: str) -> bool:
        """Whether a tensor is trained: all in a model that is, or its adapters and the score head that no base has."""
        if self.optimizer is None:
            return False
        return self.adapters is None or is_learned(name)

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch has it; ``InputError`` for another name than those of ``DTYPES``."""
        import torch

        if self.dtype not in DTYPES:
            raise InputError(f"dtype is one of {', '.join(DTYPES)}, got {self.dtype}")
        found: torch.dtype = getattr(torch, DTYPES[self.dtype])
        return found
