"""The section ``implementation`` of ``JOB.yaml``: how the trainer is built, where builds differ."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hybridmap.job.leaves import Flag, Number, OneOf, Section, Tokens, Whole
from profiles.workload import MOST_TOKENS
from simulator.facts import (
    TRAINING_DTYPES,
    AttentionKernel,
    Captured,
    CheckpointPlace,
    EngineDriver,
    ExpertActivation,
    ExpertDispatch,
    Implementation,
    Kernels,
    LoraTarget,
    LossHead,
    OldLogProb,
    SelectiveRecompute,
    SleepingEngine,
    WeightSync,
)

BUILT = Implementation()
"""How a trainer is built unless a job says otherwise."""


class ImplementationSection(Section, title="Implementation"):
    """How the trainer is built, where builds differ."""

    loss_head: LossHead = Field(
        default=BUILT.loss_head,
        description="parallel: vocabulary-parallel cross-entropy (Megatron). fused: logits in chunks that are never "
        "kept. fp32: the head's GEMMs in FP32. unfused: log-softmax as separate tensor operations. in-place: "
        "FlashAttention's cross-entropy on bf16 logits, whose gradient overwrites them.",
    )
    attention_kernel: AttentionKernel = Field(
        default=BUILT.attention_kernel,
        description="The newest kernel that the device has, FlashAttention 2, or tensor operations (math).",
    )
    kernels: Kernels = Field(
        default=BUILT.kernels,
        description="Fused norms, rotary and activation, norms alone, or one kernel per tensor operation (eager).",
    )
    tensor_parallel_overlap: Flag = Field(
        default=BUILT.tensor_parallel_overlap,
        description="Tensor-parallel gathers and scatters of the forward pass run beside the GEMM next to them.",
    )
    training_dtype: Annotated[str, OneOf(TRAINING_DTYPES)] = Field(
        default=BUILT.training_dtype, description="Number format of the training GEMMs."
    )
    lora_rank: Annotated[int, Whole(0, MOST_TOKENS)] = Field(
        default=BUILT.lora_rank, description="Rank of the adapters on every linear layer; 0 trains all weights."
    )
    lora_targets: list[LoraTarget] = Field(
        default_factory=lambda: list(BUILT.lora_targets), description="The projections that have adapters."
    )
    lora_adapters: Annotated[int, Whole(1, MOST_TOKENS)] = Field(
        default=BUILT.lora_adapters, description="Adapters of runs that train beside each other."
    )
    selective_recompute: SelectiveRecompute = Field(
        default=BUILT.selective_recompute,
        description="What selective recomputation computes again: element-wise parts, or every second product "
        "(torchtitan).",
    )
    recompute_layers: Annotated[int, Whole(0, MOST_TOKENS)] | None = Field(
        default=BUILT.recompute_layers,
        description="How many layers of a stage full recomputation computes again; all of them if left out.",
    )
    checkpoints: CheckpointPlace = Field(
        default=BUILT.checkpoints, description="Where the inputs of layers wait that are computed again."
    )
    packed_tokens: Tokens | None = Field(
        default=BUILT.packed_tokens,
        description="Sequences are packed to this many tokens, and a micro-batch holds micro_batch packs; without it "
        "micro_batch sequences, padding removed.",
    )
    expert_imbalance: Annotated[float, Number("a ratio of at least 1", ge=1)] = Field(
        default=BUILT.expert_imbalance,
        description="Rows of the fullest expert-parallel rank over the mean; 1 is even routing.",
    )
    expert_dispatch: ExpertDispatch = Field(
        default=BUILT.expert_dispatch,
        description="How tokens reach experts of other ranks: NCCL's all-to-all, DeepEP, or HybridEP (hybrid).",
    )
    expert_overlap: Flag = Field(
        default=BUILT.expert_overlap,
        description="The exchange of tokens runs beside the compute of another micro-batch.",
    )
    grouped_experts: Flag = Field(
        default=BUILT.grouped_experts,
        description="The experts of a rank are one grouped product; without it they run one after the other.",
    )
    expert_activation: ExpertActivation = Field(
        default=BUILT.expert_activation,
        description="One fused kernel, or one per tensor operation (unfused), as for gpt-oss's clamped SwiGLU.",
    )
    captured: list[Captured] = Field(
        default_factory=lambda: list(BUILT.captured),
        description="Parts of a trainer's layer that CUDA graphs hold, so that the host launches none of them.",
        examples=[["iteration"]],
    )
    old_log_prob: OldLogProb | None = Field(
        default=None,  # priced as the engine's; an export keeps the other system's own default
        description="Who gives the log-probs of the policy ratio: the generation engine with the samples (the price's "
        "default), or the trainer in a forward pass of its own.",
    )
    sleeping_engine: SleepingEngine = Field(
        default=BUILT.sleeping_engine,
        description="What a colocated engine does with its weights while the trainer runs: drop them, or keep them in "
        "host memory (vLLM's sleep level 1).",
    )
    weight_sync: WeightSync = Field(
        default=BUILT.weight_sync,
        description="What goes to a dedicated pool: all weights, or those that a step has changed.",
    )
    engine_driver: EngineDriver = Field(
        default=BUILT.engine_driver,
        description="Who starts the steps of an engine that spans GPUs: its own processes; Ray, which waits for each "
        "step (NeMo-RL); or Ray's compiled graph (NeMo-RL on vLLM before 0.21), to which every worker of another node "
        "sends its results.",
    )
    fsdp_exposure: Annotated[float, Number("a share from 0 to 1", ge=0, le=1)] = Field(
        default=BUILT.fsdp_exposure,
        description="Share of the ZeRO-3 gathers of a forward pass that nothing hides: 0 with perfect prefetch.",
    )
