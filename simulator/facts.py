"""Everything a price may look at: the job's models and work, the cluster's devices, the engines."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from profiles.calibration import UNCALIBRATED
from profiles.errors import InputError
from profiles.units import DTYPE_BYTES
from simulator.kept import Kept
from simulator.plan.dataflow import Dataflow, build_dataflow

if TYPE_CHECKING:
    from profiles.calibration import Calibration
    from profiles.device import DeviceProfile
    from profiles.engine_facts import GenerationEngine, TrainingEngine
    from profiles.hardware import ClusterGroup
    from profiles.models.shape import ModelShape
    from profiles.workload import Workload
    from simulator.speculation import Speculation


@dataclass(frozen=True)
class RoleSpec:
    """A role's model and the number format of its forward passes.

    ``function_s_per_sample``: a function stands for the model and takes this long for each sample on one rank.
    """

    shape: ModelShape
    precision: str = "bf16"
    function_s_per_sample: float | None = None


LossHead = Literal["parallel", "fused", "fp32", "unfused", "in-place"]
Kernels = Literal["fused", "fused-norms", "eager"]
OldLogProb = Literal["engine", "trainer"]
TRAINING_DTYPES = ("bf16", "fp32", "fp8", "fp8_block", "nvfp4")
WeightSync = Literal["all", "changes"]
SleepingEngine = Literal["drops-weights", "keeps-weights"]
EngineDriver = Literal["own", "ray", "ray-graph"]
AttentionKernel = Literal["newest", "flash-2", "math"]
ExpertDispatch = Literal["all-to-all", "deepep", "hybrid"]
ExpertActivation = Literal["fused", "unfused"]
SelectiveRecompute = Literal["element-wise", "every-second-product"]
CheckpointPlace = Literal["device", "host"]
LoraTarget = Literal["qkv", "output", "gate_up", "down"]
LORA_TARGETS: tuple[LoraTarget, ...] = ("qkv", "output", "gate_up", "down")
Captured = Literal["attention", "router", "preprocess", "iteration"]


@dataclass(frozen=True)
class Implementation:
    """How the trainer is built, where builds differ: inputs of the price, never fits.

    Parameters
    ----------
    loss_head
        ``parallel``: vocabulary-parallel cross-entropy on whole logits (Megatron). ``fused``: logits in chunks that
        are computed again in the backward pass and never kept. ``fp32``: the head's GEMMs outside the tensor cores,
        as trainers that cast the head to FP32 do. ``unfused``: logits cast to FP32 and log-softmax written as separate
        tensor operations, as RL trainers do that differentiate through log-probs. ``in-place``: the
        cross-entropy of FlashAttention on bf16 logits, whose gradient overwrites them (verl on FSDP without padding).
    attention_kernel
        ``newest`` the device has, or ``flash-2`` on devices whose tables hold a later one. ``math``: attention written
        in tensor operations, which hold all scores of a sequence in memory.
    kernels
        ``fused`` norms, rotary and activation (Transformer Engine, torch.compile), or ``eager``: one kernel per
        tensor operation, as uncompiled Hugging Face models run.
    tensor_parallel_overlap
        Whether forward gathers and scatters run beside the GEMM next to them (Transformer Engine user buffers); the
        backward pass overlaps its own in any case.
    training_dtype
        Number format of the training GEMMs; states stay as the engine says. ``fp32`` is that of activations and
        communication too, which are bf16 otherwise.
    lora_rank
        Rank of the adapters on the linear layers of each trained model; 0 trains all weights.
    lora_targets
        Which linear layers have adapters; queries, keys and values are one target, gate and up another.
    lora_adapters
        Adapters that are held beside each other, each with its optimizer: one for each run that shares the base.
    expert_imbalance
        Rows of the fullest expert-parallel rank over the mean, in training and scoring; 1 is even routing.
    expert_dispatch
        How tokens reach experts of other ranks: a copy for each chosen expert (``all-to-all``, NCCL), or one for each
        rank and node that holds some of them (``deepep``, and ``hybrid`` on NVLink domains and with fused permutation).
    expert_overlap
        Whether the exchange of tokens runs beside the compute of another micro-batch.
    grouped_experts
        Whether the experts of a rank are one grouped product; without it they run one after the other.
    expert_activation
        ``fused``, or ``unfused``: one kernel per tensor operation, as for an activation that the trainer has no kernel
        of (gpt-oss clamps its SwiGLU).
    captured
        Parts of a trainer's layer that CUDA graphs hold, which the host does not launch; ``iteration`` is all.
    selective_recompute
        What selective recomputation computes again: element-wise work (Megatron), or also every second product of a
        layer (the per-operator policy of torchtitan).
    recompute_layers
        Layers of a stage that full recomputation covers, the others keep their activations; ``None`` for all.
    checkpoints
        Where layers' inputs wait for their recomputation: on the device, or copied to the host beside the compute.
    packed_tokens
        Sequences are packed to this many tokens, and a micro-batch holds ``micro_batch`` packs; ``None`` keeps
        ``micro_batch`` sequences, padding removed.
    old_log_prob
        Who gives the log-probs that the policy ratio is taken against: the generation engine with the samples, or
        the trainer in a forward pass of its own.
    weight_sync
        What goes to a dedicated pool: all weights, or those that a step has changed.
    sleeping_engine
        What a colocated engine does with its weights while the trainer runs: drop them, since new ones come anyway,
        or copy them to host memory and back (vLLM's sleep level 1).
    engine_driver
        Who starts the steps of an engine that spans GPUs: its ``own`` processes, as its release plans them; ``ray``,
        whose workers wait for each step, so that none is planned ahead; ``ray-graph``, Ray's compiled graph (vLLM
        before 0.21), where every worker of another node also sends its copy of each step's result back.
    fsdp_exposure
        Share of the ZeRO-3 gathers of a forward pass that nothing hides even where compute would suffice: 0 with
        perfect prefetch, 1 where the host waits for the GPU in every layer and can issue nothing ahead. The backward
        pass always prefetches.
    """

    loss_head: LossHead = "parallel"
    attention_kernel: AttentionKernel = "newest"
    kernels: Kernels = "fused"
    tensor_parallel_overlap: bool = False
    training_dtype: str = "bf16"
    lora_rank: int = 0
    lora_targets: tuple[LoraTarget, ...] = LORA_TARGETS
    lora_adapters: int = 1
    selective_recompute: SelectiveRecompute = "element-wise"
    recompute_layers: int | None = None
    checkpoints: CheckpointPlace = "device"
    packed_tokens: int | None = None
    expert_imbalance: float = 1.0
    expert_dispatch: ExpertDispatch = "all-to-all"
    expert_overlap: bool = False
    grouped_experts: bool = True
    expert_activation: ExpertActivation = "fused"
    captured: tuple[Captured, ...] = ()
    old_log_prob: OldLogProb = "engine"
    weight_sync: WeightSync = "all"
    sleeping_engine: SleepingEngine = "drops-weights"
    engine_driver: EngineDriver = "own"
    fsdp_exposure: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.fsdp_exposure <= 1.0:
            raise InputError(f"implementation.fsdp_exposure is a share between 0 and 1, got {self.fsdp_exposure}")
        if self.expert_imbalance < 1.0:
            raise InputError(
                f"implementation.expert_imbalance is at least 1 (even routing), got {self.expert_imbalance}"
            )
        if self.lora_rank < 0:
            raise InputError(f"implementation.lora_rank must not be negative, got {self.lora_rank}")
        if self.recompute_layers is not None and self.recompute_layers < 0:
            raise InputError(f"implementation.recompute_layers must not be negative, got {self.recompute_layers}")
        if self.packed_tokens is not None and self.packed_tokens <= 0:
            raise InputError(f"implementation.packed_tokens must be positive, got {self.packed_tokens}")


@dataclass(frozen=True)
class DeviceGroup:
    """GPUs of one type: how many, how they are joined, and the type's profile."""

    group: ClusterGroup
    device: DeviceProfile


@dataclass(frozen=True)
class Facts:
    """What is known before anything is planned.

    ``roles`` maps each role to its model; ``group`` is the cluster's GPUs of the first device type, ``device`` their
    profile. ``others`` are those of further types in a mixed cluster: a pool has GPUs of one type, and what runs on it
    is priced with ``on(device_type)``. ``calibration`` is a layer over the prices: how far runs on this machine were
    from them. ``memory_headroom`` is the share of a GPU's memory that a search leaves free. ``speculation``: the engine
    drafts tokens and checks them.
    """

    algorithm: str
    roles: dict[str, RoleSpec]
    workload: Workload
    group: ClusterGroup
    device: DeviceProfile
    training: TrainingEngine
    generation: GenerationEngine
    implementation: Implementation = Implementation()
    others: tuple[DeviceGroup, ...] = ()
    calibration: Calibration = UNCALIBRATED
    memory_headroom: float = 0.0
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.memory_headroom < 1.0:
            raise InputError(f"memory.headroom is a share from 0 to below 1, got {self.memory_headroom}")
        names = self.device_types
        if len(set(names)) != len(names):
            raise InputError(f"the cluster lists {', '.join(names)}; give each kind of GPU once, with all its nodes")

    @property
    def device_types(self) -> tuple[str, ...]:
        """Names of the cluster's device types, the first one first."""
        return (self.group.device, *(other.group.device for other in self.others))

    @cached_property
    def of_engine(self) -> Facts:
        """The same facts as the generation engine is priced with: the device with that engine's own tables first."""
        device = self.device.of_engine(self.generation.family, self.generation.release)
        return self if device is self.device else replace(self, device=device)

    @cached_property
    def kept(self) -> Kept:
        """What calls of one plan ask for more than once, by these facts: layers' prices, pools' memory."""
        return Kept(most=16)

    def on(self, device_type: str) -> Facts:
        """The same job seen from the GPUs of one type; ``KeyError`` if the cluster has none of it."""
        if device_type == self.group.device:
            return self
        for i, other in enumerate(self.others):
            if other.group.device == device_type:
                rest = (DeviceGroup(self.group, self.device), *self.others[:i], *self.others[i + 1 :])
                return replace(self, group=other.group, device=other.device, others=rest)
        raise KeyError(device_type)

    def drafting(self, tokens: int | None) -> Facts:
        """The same job where engines draft so many tokens a step, as a plan chose; ``None`` leaves what the job says.

        Raises ``InputError`` where nothing is known of such drafts.
        """
        drafts = self.speculation
        if tokens is None or (drafts is None and tokens == 0):
            return self
        if drafts is None:
            raise InputError(
                f"the plan drafts {tokens} tokens a step, and its job says nothing of drafts (speculation)"
            )
        return (
            self if (tokens, ()) == (drafts.drafted, drafts.lengths) else replace(self, speculation=drafts.of(tokens))
        )

    def is_function(self, role: str) -> bool:
        """Whether a function stands for the role's model; its time was measured, and no model's factor moves it."""
        return role in self.roles and self.roles[role].function_s_per_sample is not None

    def correction(self, api: str, role: str) -> float:
        """What the calibration of this machine multiplies a call's time by; 1 where nothing was compared."""
        return 1.0 if self.is_function(role) else self.calibration.factors.get(api, 1.0)

    @property
    def plain_dtype(self) -> str:
        """Number format of what is never quantised: activations, embedding, vocabulary head, KV cache."""
        return "fp32" if self.implementation.training_dtype == "fp32" else "bf16"

    @property
    def activation_bytes(self) -> float:
        """Bytes of an activation."""
        return DTYPE_BYTES[self.plain_dtype]

    @property
    def num_gpus(self) -> int:
        """GPUs of all types."""
        return self.group.num_gpus + sum(other.group.num_gpus for other in self.others)

    @property
    def dataflow(self) -> Dataflow:
        return build_dataflow(self.algorithm, tuple(self.roles), self.implementation.old_log_prob == "trainer")

    @property
    def memory_capacity_bytes(self) -> int:
        """Memory of one GPU that a process sees, before any reserve."""
        return int(self.device.spec.memory_bytes)

    @property
    def memory_usable_bytes(self) -> int:
        """Memory of one GPU that a plan of the search may fill, its reserves too: what is seen less the headroom."""
        return int(self.memory_capacity_bytes * (1.0 - self.memory_headroom))

    @property
    def memory_room_bytes(self) -> int:
        """What a plan of the search may fill beside the trainer's reserve; an engine's counts to the role it serves."""
        return self.memory_usable_bytes - int(self.training.memory_reserve_bytes)

    @property
    def facts_hash(self) -> str:
        """Hash of the provenance of all prices: tables, device card, engine constants."""
        devices = (self.device.facts_hash, *(other.device.facts_hash for other in self.others))
        parts = (*devices, self.training.facts_hash, self.generation.facts_hash, *self.calibration.hashed)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
