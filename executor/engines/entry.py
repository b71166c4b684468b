"""What the registry knows of an engine before it is built: its capabilities, as data, and how it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from executor.collectives import CommClock
    from executor.engines.interfaces import GenerationEngine, Generator, TrainingEngine
    from executor.engines.model_spec import ModelSpec
    from executor.records import Identity
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees
    from simulator.plan.plan import Recompute

    MakeGenerator = Callable[[Architecture, torch.dtype, CommClock], GenerationEngine]
    """Makes one rank's generation engine once the model is known whose weights it will get."""


@dataclass(frozen=True)
class Capabilities:
    """What an engine can run of a plan.

    Parameters
    ----------
    trains, scores
        Whether it takes optimizer steps, and whether it runs forward passes for log-probs, values and scores.
    generates
        Whether it writes responses.
    needs_gpu
        Whether it runs on GPUs alone.
    offload
        Whether parameters and optimizer states may wait in host memory.
    zero_stages
        How far data-parallel ranks may divide a training state among them.
    pipeline_parallel, interleaved_pipeline, context_parallel, expert_parallel
        Whether these degrees of a layout may be above 1. Sequence parallelism is permitted by a plan, never asked for:
        where activations lie changes no result, so every engine runs such a plan.
    expert_parallel_pipeline
        Whether expert and pipeline parallelism go together.
    data_parallel_attention
        Whether a generation replica may keep several copies of its attention.
    generation_parallel
        Whether a generation replica may be more than one GPU.
    cut_sampling
        Whether its log-probs are those of what top-p and top-k leave.
    mixtures
        Whether it runs models with experts.
    adapters, adapters_tensor_parallel
        Whether it trains low-rank adapters, or generates with them, and whether under tensor parallelism, too.
    drafts
        Whether a small model may draft tokens for the one that generates.
    """

    trains: bool = False
    scores: bool = False
    generates: bool = False
    needs_gpu: bool = False
    offload: bool = False
    zero_stages: tuple[int, ...] = (0, 1)
    pipeline_parallel: bool = True
    interleaved_pipeline: bool = False
    context_parallel: bool = False
    expert_parallel: bool = False
    expert_parallel_pipeline: bool = False
    data_parallel_attention: bool = False
    generation_parallel: bool = True
    cut_sampling: bool = True
    mixtures: bool = False
    adapters: bool = False
    adapters_tensor_parallel: bool = False
    drafts: bool = False


@dataclass(frozen=True)
class LayoutOptions:
    """What a training layout says beyond the degrees. ``vpp`` chunks a stage are interleaved, 1 is 1F1B."""

    vpp: int = 1
    ep: int = 1
    recompute: Recompute = "none"
    sequence_parallel: bool = False


PLAIN = LayoutOptions()
"""A layout that is its degrees and nothing else."""


@dataclass(frozen=True)
class TrainerSetup:
    """What one rank's trainer is made of. Ranks of the role meet at ``address``."""

    identity: Identity
    address: str
    degrees: Degrees
    spec: ModelSpec
    options: LayoutOptions = PLAIN


@dataclass(frozen=True)
class GeneratorSetup:
    """What one rank's generation engine is made of; ``arch``, ``dtype`` and ``clock`` are those of the weights it gets.

    ``max_length`` of prompt and response together, 0 for the model's own limit.
    """

    identity: Identity
    degrees: Degrees
    spec: ModelSpec
    arch: Architecture
    dtype: torch.dtype
    clock: CommClock
    max_length: int = 0


@dataclass(frozen=True)
class TrainingEntry:
    """An engine that trains and scores.

    ``package`` must be installed. ``layout`` is what every rank holds, ``build`` makes one rank's engine, not yet
    loaded; ``layout`` raises ``InputError`` if the model does not divide. ``priced_as`` is the engine of plans that it
    runs, ``install`` what pip is asked for; ``build_in_place`` makes an engine that generates in the trainer's own
    memory, where it can, in place of the generation engine of the same name.
    """

    name: str
    package: str
    capabilities: Capabilities
    layout: Callable[[Architecture, Degrees, LayoutOptions], Layout]
    build: Callable[[TrainerSetup], TrainingEngine]
    priced_as: str | None = None
    build_in_place: Callable[[TrainerSetup], tuple[TrainingEngine, Generator]] | None = None
    install: str = "hybridmap[gpu]"


@dataclass(frozen=True)
class GenerationEntry:
    """An engine that generates; fields as in ``TrainingEntry``."""

    name: str
    package: str
    capabilities: Capabilities
    layout: Callable[[Architecture, Degrees], Layout]
    build: Callable[[GeneratorSetup], GenerationEngine]
    priced_as: str | None = None
    install: str = "hybridmap[gpu]"
