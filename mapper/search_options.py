"""What the search may use beyond what every trainer has: each costs candidates, or something that not all accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.errors import InputError

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Offload

OFFLOADS: tuple[tuple[Offload, ...], ...] = ((), ("optimizer",), ("parameters", "optimizer"))
"""What a trained role may leave in host memory while others run."""

FROZEN_OFFLOADS: tuple[tuple[Offload, ...], ...] = ((), ("parameters",))
"""The same for a role that only scores."""


@dataclass(frozen=True)
class SearchOptions:
    """Layouts that are searched only where they are allowed.

    Parameters
    ----------
    interleaving
        Interleaved pipelines: several model chunks per stage (``vpp``), which shortens the ramp for more hops.
    offload
        States of a role wait in host memory while other roles have the GPUs.
    tensor_parallel_across_nodes
        Tensor-parallel groups may leave the NVLink domain.
    scoring_layouts
        A trained role may score in a layout of its own, on a copy of its weights that is gathered for it.
    prefer_plain
        The best plain plan (``candidates.plain``) is looked for too, and taken where its iteration is longer by at most
        this fraction; ``None`` looks for none. For the objective time.
    """

    interleaving: bool = False
    offload: bool = False
    tensor_parallel_across_nodes: bool = False
    scoring_layouts: bool = False
    prefer_plain: float | None = None


USUAL = SearchOptions()


def check_options(facts: Facts, options: SearchOptions) -> None:
    """Raise ``InputError`` for a permission that the job has no use for."""
    if options.interleaving and not facts.training.interleaving:
        raise InputError(f"interleaving: {facts.training.name} runs no interleaved pipelines; leave it out")
    if options.scoring_layouts and not facts.training.scoring_layouts:
        raise InputError(f"scoring_layouts: {facts.training.name} scores in the training layout only; leave it out")
    if options.scoring_layouts and not any(_trains_and_scores(facts, role) for role in facts.roles):
        raise InputError(
            "scoring_layouts: no trained role scores (a critic does, and the actor with old_log_prob: trainer); "
            "leave it out"
        )
    if options.tensor_parallel_across_nodes and all(
        group.num_gpus <= group.nvlink_domain_gpus
        for group in (facts.on(device_type).group for device_type in facts.device_types)
    ):
        raise InputError(
            "tensor_parallel_across_nodes: all GPUs of a kind are in one NVLink domain, so there is nothing to cross; "
            "leave it out"
        )


def _trains_and_scores(facts: Facts, role: str) -> bool:
    return {"train", "forward"} <= {call.kind for call in facts.dataflow.calls_of(role)}
