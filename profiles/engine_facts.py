"""What an engine costs besides the operators it launches: one file per engine and version, one reason per constant."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from profiles.engine_file import EngineFile, Fact, SchedulerKind, read_engine_file, with_settings
from profiles.engine_releases import stand_ins, version_of
from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.records import Basis, Priced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

_T = TypeVar("_T", "GenerationEngine", "TrainingEngine")
_FOLDER = Path(__file__).parent / "engines"


class _Engine:
    """What constants of an engine rest on. Slots, budgets and switches decide what runs and are no part of a price.

    ``stands_in``: profiled releases around one that is not, whose facts these are (the first's); else empty.
    """

    bases: Mapping[str, Basis]

    def basis(self, *names: str) -> Basis:
        """The weakest basis of some constants; one that no file states is assumed, unless it leaves its term out."""
        stated = self.bases
        return max((stated[n] if n in stated else self._unstated(n) for n in names), default=Basis.MEASURED)

    def priced(self, **times: ArrayLike) -> Priced:
        """Constants in seconds, each as many times as given, on its own basis; shapes broadcast."""
        return Priced.parts(*((getattr(self, name) * np.asarray(n), self.basis(name)) for name, n in times.items()))

    def scaled(self, price: Priced, name: str) -> Priced:
        """A price times a constant, on no stronger basis than the constant's."""
        factor: float = getattr(self, name)
        return (price * factor).at_best(self.basis(name))

    def _unstated(self, name: str) -> Basis:
        return Basis.MEASURED if getattr(self, name) in (0.0, 1.0) else Basis.ASSUMED


@dataclass(frozen=True)
class GenerationEngine(_Engine):
    """Facts of a generation engine; see the meaning beside each value in its file.

    ``family`` and ``release`` choose its operator tables: its own, of the release nearest to it. ``plans_ahead``
    (asynchronous or overlap scheduling): the host works on the next step while the GPU computes this one, so a step
    takes the longer of the two, and what arrives meanwhile waits a step longer; otherwise host time comes on top.
    ``fp8_cache_with``: formats of weights whose checkpoints bring an FP8 cache with them by default.
    ``fused_quantization``: formats to which activations turn in the kernel before a product, not in one of its own.
    ``mxfp8_activations``: experts in MXFP4 take activations in MXFP8 where the device has such kernels.
    ``drafts_in_graph``: drafts are part of the captured step, which the host launches once and plans ahead as ever;
    otherwise it sets up each draft anew, from tokens that it must have seen.
    ``grouped_query_kernels``: numbers of query heads for which a decode kernel reads a KV head once, from an FP8 cache;
    ``None`` where it does for any number and cache. ``window_frees_cache``: layers with a window hold its tokens alone.
    ``share_holds_activations``: activations and logits come out of ``kv_memory_share``, too, not out of what it leaves.
    ``caches_every_head``: the cache has room for keys and values of every query head. ``keeps_workspace``: DeepSpeed's
    inference kernels, see ``engine_memory.kept_workspace_bytes``.
    ``captured_tokens``: a decode step of more tokens is launched as one with prompts is, 0 where graphs hold any.
    ``prefix_hits``: of a rollout's prompts, beside what samples of one prompt share. ``batch_wait_s``: once a rollout.
    ``custom_all_reduce``: a decode step may reduce by the engine's own kernel, not by NCCL alone.
    ``static_batches``: a batch is filled and run to its end, not refilled. ``gathers_every_batch``: a trainer's weights
    are gathered for each of them anew. ``first_token_in_prefill``: the pass over a
    prompt draws the first token, so a response of R tokens takes R - 1 decode steps (the other engines' constants
    were fitted with R). ``mixture_parallel``: in a replica a mixture's experts may lie whole on some of the GPUs
    (expert parallel), and its attention may run as copies (data-parallel attention). ``settings``: what a job started
    it with in place of the release's own, as ``name value``.
    """

    name: str
    family: str
    release: str
    facts_hash: str
    cuda_graphs: bool
    prefix_sharing: bool
    shares_weights: bool
    scheduler: SchedulerKind
    plans_ahead: bool
    fp8_cache_with: tuple[str, ...]
    fused_quantization: tuple[str, ...]
    mxfp8_activations: bool
    drafts_in_graph: bool
    grouped_query_kernels: tuple[int, ...] | None
    window_frees_cache: bool
    share_holds_activations: bool
    launch_s_per_layer: float
    prefill_launch_s_per_layer: float
    host_s_per_step: float
    host_s_per_sequence: float
    max_num_seqs: float
    max_batched_tokens: float
    admits_with_output: float
    keeps_for_running: float
    kv_memory_share: float
    kv_share_of_free: float
    front_end_s: float
    front_end_s_per_prompt_token: float
    kernels_per_layer: float
    transition_fixed_s: float
    reload_bytes_per_s: float
    memory_reserve_bytes: float
    collective_launch_s: float = 0.0
    attention_ratio: float = 1.0
    picked_prompt_ratio: float = 1.0
    picked_prompt_ratio_with_fp4: float = 1.0
    recomputed_context: float = 0.0
    captured_tokens: float = 0.0
    prefix_hits: float = 0.0
    batch_wait_s: float = 0.0
    gather_s_per_layer_per_gpu: float = 0.0
    gathers_layers: float = 1.0
    host_s_per_remote_rank: float = 0.0
    shared_experts_beside: float = 0.0
    tuned_experts: float = 0.0
    sampler_bytes_per_logit: float = 0.0
    sync_s_per_byte: float = 0.0
    sync_growth_per_doubling: float = 0.0
    static_batches: bool = False
    caches_every_head: bool = False
    keeps_workspace: bool = False
    custom_all_reduce: bool = True
    gathers_every_batch: bool = False
    first_token_in_prefill: bool = False
    mixture_parallel: bool = False
    element_wise_ratio: float = 1.0
    call_s: float = 0.0
    wake_s: float = 0.0
    call_rank_s: float = 0.0
    stands_in: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    bases: Mapping[str, Basis] = field(default_factory=dict, hash=False, compare=False, repr=False)


@dataclass(frozen=True)
class TrainingEngine(_Engine):
    """Facts of a training engine; see the meaning beside each value in its file.

    ``sequence_parallel``: tensor-parallel regions gather and scatter; without it they all-reduce.
    ``grouped_kernels``: all experts of a rank are one kernel a product (``torch._grouped_mm``); without it cuBLAS is
    called for each (Megatron).
    ``gathers_again``: a region's input is kept cut and gathered again for its weight gradients (Megatron); PyTorch's
    tensor parallelism keeps it whole.
    ``gathers_at_step``: ZeRO 1 and 2 gather the updated parameters before the step ends, beside nothing (DeepSpeed);
    without it beside the next forward pass.
    ``gathers_ahead``: with ZeRO 3 the share of gathers that run beside the compute before them.
    ``reuse_distance_params``: with ZeRO 3 a recomputed layer frees a parameter that its backward pass needs only after
    more parameters than these, and gathers it a third time (DeepSpeed); 0 where it keeps all until then.
    ``balances_context``: a context rank holds a piece from the front of a sequence and one from its back (zigzag);
    without it they hold slices in order, and the last attends to all.
    ``fused_projections``: queries, keys and values are one linear layer, gate and up another (Megatron).
    ``head_on_responses``: the vocabulary head runs on response tokens alone, not on the prompts' too.
    ``token_micro_batches``: micro-batches may hold as many samples as a budget of tokens does.
    ``scoring_layouts``: a trained model may score in another layout than it trains in, on a copy of its weights.
    """

    name: str
    facts_hash: str
    zero_stages: tuple[int, ...]
    attention_backward_ratio: float
    grad_bytes_per_param: float
    grad_reduce_bytes_per_param: float
    optimizer_bytes_per_param: float
    optimizer_traffic_bytes_per_param: float
    overlap_dp: float
    network_efficiency: float
    overlap_tp: float = 1.0
    adapter_ratio: float = 1.0
    param_bytes: float = 2.0
    offload_bytes_per_s: float = 8.0e9
    export_s_per_tensor: float = 0.0
    send_fixed_s: float = 0.0
    send_s_per_tensor: float = 0.0
    send_s_per_byte: float = 0.0
    step_fixed_s: float = 0.0
    moe_row_passes: float = 4.5
    gather_copy_bytes_per_param: float = 0.0
    gather_s_per_layer_per_gpu: float = 0.0
    gathers_ahead: float = 1.0
    reuse_distance_params: float = 0.0
    scatter_copy_bytes_per_param: float = 0.0
    region_copies: float = 0.0
    interleaving: bool = False
    sequence_parallel: bool = True
    gathers_again: bool = True
    grouped_kernels: bool = False
    gathers_at_step: bool = False
    balances_context: bool = True
    fused_projections: bool = True
    head_on_responses: bool = False
    scoring_layouts: bool = False
    token_micro_batches: bool = False
    memory_reserve_bytes: float = 0.0
    attention_ratio: float = 1.0
    element_wise_ratio: float = 1.0
    controller_s_per_token: float = 0.0
    host_s_per_launch: float = 0.0
    host_s_per_expert: float = 0.0
    forward_s_per_layer: float = 0.0
    backward_s_per_layer: float = 0.0
    forward_s_per_layer_sequence: float = 0.0
    backward_s_per_layer_sequence: float = 0.0
    forward_s_per_pass: float = 0.0
    backward_s_per_pass: float = 0.0
    accumulate_bytes_per_param: float = 0.0
    small_reduces_per_step: float = 0.0
    meetings_per_step: float = 0.0
    meeting_s: float = 0.0
    call_s: float = 0.0
    wake_s: float = 0.0
    dispatch_s: float = 0.0
    dispatch_local_s: float = 0.0
    dispatch_iteration_s: float = 0.0
    dispatch_local_iteration_s: float = 0.0
    dispatch_iteration_s_per_sample: float = 0.0
    dispatch_rank_s: float = 0.0
    dispatch_pool_rank_s: float = 0.0
    call_rank_s: float = 0.0
    neighbour_slowdown: float = 1.0
    crowded_slowdown: float = 1.0
    neighbour_spread: float = 0.0
    stands_in: tuple[str, ...] = ()
    bases: Mapping[str, Basis] = field(default_factory=dict, hash=False, compare=False, repr=False)


def engine_names(kind: Literal["training", "generation"]) -> list[str]:
    """``engine@version`` of every profiled engine of a kind, newest version of each engine last."""
    return sorted((n for n in _profiled() if _read(n)[0].kind == kind), key=lambda n: (n.split("@")[0], version_of(n)))


def default_engine(kind: Literal["training", "generation"]) -> str:
    """The newest profiled version of the default engine: Megatron-Core for training, vLLM for generation."""
    family = {"training": "megatron-core", "generation": "vllm"}[kind]
    ours = (n for n in _profiled() if n.split("@")[0] == family and _read(n)[0].kind == kind)
    return max(ours, key=version_of)


def load_generation_engine(name: str, settings: Mapping[str, object] | None = None) -> GenerationEngine:
    """Load ``engine@version``, or a file by its path, as started with ``settings`` (``engine_file.with_settings``).

    Raises ``UnknownNameError`` or ``InputError`` (wrong kind, no such setting).
    """
    file, digest = _checked(name, "generation")
    if settings:
        file = with_settings(file, settings, {one.name for one in fields(GenerationEngine)})
        digest = hashlib.sha256(f"{digest} {sorted(settings.items())}".encode()).hexdigest()
    release = name.split("@")[1] if _stand_ins(name) else file.version
    set_to = tuple(f"{key} {value}" for key, value in (settings or {}).items())
    return _build(GenerationEngine, name, file, facts_hash=digest, family=file.engine, release=release, settings=set_to)


def load_training_engine(name: str) -> TrainingEngine:
    """Load ``engine@version``, or a file by its path; raises ``UnknownNameError`` or ``InputError`` (wrong kind)."""
    file, digest = _checked(name, "training")
    return _build(TrainingEngine, name, file, facts_hash=digest)


def engine_constants(name: str) -> dict[str, Fact]:
    """Every constant of an engine with its meaning and source, for display; a name or the path of a file."""
    return dict(_read(name)[0].facts)


def _bases(file: EngineFile, others: tuple[str, ...]) -> dict[str, Basis]:
    """What constants rest on; what was fitted on one release is an assumption on another."""
    found = {key: Basis[fact.basis.upper()] for key, fact in file.facts.items()}
    return {key: Basis.ASSUMED if others and basis is Basis.FITTED else basis for key, basis in found.items()}


def _build(cls: type[_T], name: str, file: EngineFile, **more: object) -> _T:
    """An engine of the file's switches and facts; each has the name of its field."""
    others = _stand_ins(name)
    switches = {one.name: getattr(file, one.name) for one in fields(cls) if one.name in EngineFile.model_fields}
    values = {key: fact.value for key, fact in file.facts.items()}
    given = {"name": name, "stands_in": others, "bases": _bases(file, others), **switches, **values, **more}
    facts = {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(cls)}
    if unknown := [key for key in values if key not in facts]:
        raise FileFormatError(
            f"engine file of {name}: no fact of a {file.kind} engine is {', '.join(unknown)}; take it out, "
            "or where an older release profiled it, profile anew"
        )
    if missing := [key for key, needed in facts.items() if needed and key not in given]:
        raise FileFormatError(f"engine file of {name}: it states no {', '.join(missing)}")
    return cls(**given)


def _stand_ins(name: str) -> tuple[str, ...]:
    """Releases whose facts stand in for one that is not profiled; none for a file or a profiled release."""
    known = _profiled()
    return () if name in known or name.endswith(".yaml") else stand_ins(name, known)


def _checked(name: str, kind: Literal["training", "generation"]) -> tuple[EngineFile, str]:
    known = _profiled()
    if name not in known and not _stand_ins(name) and not (name.endswith(".yaml") and Path(name).is_file()):
        raise UnknownNameError(f"{kind} engine", name, [n for n in known if _read(n)[0].kind == kind])
    file, digest = _read(name)
    if file.kind != kind:
        raise InputError(f"engines.{kind}: '{name}' is a {file.kind} engine; known: {', '.join(engine_names(kind))}")
    return file, digest


def _profiled() -> tuple[str, ...]:
    """Names of the engines that ship."""
    return _names_in(_FOLDER)


@functools.cache
def _names_in(folder: Path) -> tuple[str, ...]:
    """Engines of a folder, which is looked into once, since every load of facts asks."""
    return tuple(path.name.removesuffix(".yaml") for path in folder.glob("*.yaml"))


def _read(name: str) -> tuple[EngineFile, str]:
    own, *_ = _stand_ins(name) or (name,)
    path = Path(own) if own.endswith(".yaml") else _FOLDER / f"{own}.yaml"
    return read_engine_file(path)
