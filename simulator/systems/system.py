"""What tells one RL system from another: who shares GPUs, how models are split, which engines run them.

Nothing here prices anything. A system narrows what a plan may look like; the plans it allows are priced and played by
the functions that price every other plan, and its engines' costs stand in engine files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from profiles.engine_facts import load_generation_engine, load_training_engine
from simulator.facts import Implementation

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Offload, Recompute, Resharding

Placement = Literal["colocate", "split", "standalone"]


class ParallelDegrees(NamedTuple):
    """Data, tensor and pipeline parallelism of a model on its pool."""

    dp: int
    tp: int
    pp: int


@dataclass(frozen=True)
class System:
    """How a system runs a job.

    Parameters
    ----------
    name, title, source
        Key, printed name, and where what follows is published.
    training, generation
        Engines as ``engine@version``; ``None`` keeps the job's own.
    placement
        All models on all GPUs; actor and reference apart from the rest; every model on its own.
    separate_generator
        The actor generates on dedicated GPUs, from a weight copy there.
    zero_stage
        Of every model; below 3 models are split by tensor and pipeline parallelism.
    max_pipeline
        Most pipeline stages (1: none).
    generates_as_trained
        Generation uses the training layout.
    pads_prompts
        The engine works on prompts padded to their limit.
    implementation
        How its trainer is built; ``None`` keeps the job's own.
    recompute, micro_batches, offloads
        What its recipes try, in this order; the fastest that fits is taken.
    micro_batch_tokens
        Tokens of a training micro-batch, of which one sample may have more; ``None`` where ``micro_batches`` counts.
    device_batches
        Sequences that a GPU generates at once, times the GPUs of a replica, where a recipe states that; else what
        whole waves need.
    scores_device_batches
        Whether every model scores what a GPU has generated at once as one batch.
    rollout_batches
        Samples that each GPU of the actor's trainer asks for and scores at once. An engine on GPUs of its own serves
        one trainer's GPU after another and holds no others. Else all of an iteration's are asked for at once.
    """

    name: str
    title: str
    source: str
    placement: Placement
    training: str | None = None
    generation: str | None = None
    separate_generator: bool = False
    zero_stage: int = 1
    max_pipeline: int = 1
    generates_as_trained: bool = False
    pads_prompts: bool = False
    resharding: Resharding = "hybridflow"
    implementation: Implementation | None = field(default=None)
    recompute: tuple[Recompute, ...] = ("full",)
    micro_batches: tuple[int, ...] = (1, 2, 4, 8)
    micro_batch_tokens: int | None = None
    device_batches: tuple[int, ...] = ()
    scores_device_batches: bool = False
    rollout_batches: tuple[int, ...] = ()
    offloads: tuple[tuple[Offload, ...], ...] = ((),)

    def facts_of(self, facts: Facts) -> Facts:
        """The job as this system runs it: its engines, its implementation, its padding."""
        work = facts.workload
        return replace(
            facts,
            training=load_training_engine(self.training) if self.training else facts.training,
            generation=load_generation_engine(self.generation) if self.generation else facts.generation,
            implementation=self._built(facts.implementation),
            workload=replace(work, prompt_tokens=None) if self.pads_prompts else work,
        )

    def _built(self, of_job: Implementation) -> Implementation:
        """As the system is built; its models' attention is the job's to say."""
        if self.implementation is None:
            return of_job
        return replace(self.implementation, attention_kernel=of_job.attention_kernel)


_EAGER = Implementation(kernels="eager", loss_head="unfused")
_SCORING_ACTOR = replace(_EAGER, old_log_prob="trainer")
"""Both compute the actor's log-probs in a pass of its own when they make experience."""

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System(
            "deepspeed-chat",
            "DeepSpeed-Chat 0.14.0",
            "HybridFlow section 8.1 and Table 1",
            "colocate",
            training="deepspeed-chat@0.14",
            generation="deepspeed-hybrid@0.14",
            zero_stage=3,
            pads_prompts=True,
            resharding="ds-chat",
            implementation=_SCORING_ACTOR,
            device_batches=(1, 2, 4, 8, 16, 32, 64),
            scores_device_batches=True,  # generate_experience scores the batch that it generated
            micro_batch_tokens=2048,  # assumed: one sample of the paper's runs beside the workspace that stays
        ),
        System(
            "openrlhf",
            "OpenRLHF 0.2.5",
            "HybridFlow section 8.1 and Table 1",
            "standalone",
            training="openrlhf@0.2.5",
            generation="openrlhf-vllm@0.2.5",
            separate_generator=True,
            zero_stage=3,
            implementation=_SCORING_ACTOR,
            micro_batches=(1,),
            rollout_batches=(
                8,
                16,
            ),  # micro_rollout_batch_size: its default, and of the script for 8B in 0.3.6's README
        ),
        System(
            "nemo-aligner",
            "NeMo-Aligner 0.2.0",
            "HybridFlow section 8.1 and Table 1",
            "split",
            training="megatron-core@0.6",
            generation="nemo-generate@0.2",
            max_pipeline=8,
            generates_as_trained=True,
            pads_prompts=True,
            implementation=_EAGER,
            recompute=("none", "selective", "full"),
            micro_batches=(1, 2, 4),
        ),
        System(
            "verl",
            "verl (FSDP + vLLM, colocated, synchronous)",
            "defaults of verl 0.9",
            "colocate",
            training="fsdp@2.13",
            zero_stage=3,
            recompute=("full",),
            implementation=Implementation(kernels="eager", loss_head="unfused", old_log_prob="trainer"),
            offloads=((), ("optimizer",), ("parameters", "optimizer")),
        ),
        System(
            "nemo-rl",
            "NeMo-RL (Megatron-Core + vLLM, colocated, synchronous)",
            "defaults of NeMo-RL 0.5 recipes",
            "colocate",
            training="megatron-core@0.16",
            max_pipeline=8,
            recompute=("none", "full"),
            implementation=Implementation(loss_head="unfused", old_log_prob="trainer"),
            offloads=((), ("optimizer",), ("parameters", "optimizer")),
        ),
    )
}
"""The systems that can be compared with a plan, by name."""
