"""What was priced and what ran: engines, and how they are built, told by the names of the kernels that a run used."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from simulator.plan.plan import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from simulator.facts import Facts

    Kernels = Mapping[str, Mapping[str, float]]
    """Seconds of each kernel or operation by name, by call."""

Signs = tuple[tuple[str, str], ...]
"""Values of a key, each with a pattern of names that give it away; the first that is found counts."""

SIGNS: dict[str, Signs] = {
    "kernels": (
        ("fused", r"_fused_rms_norm|rmsnorm_(fwd|bwd)|fused_rope|triton_|CompiledFunction"),
        ("eager", r"aten::rsqrt$"),
    ),
    "loss_head": (
        ("fused", r"(?i)linear_?cross_?entropy"),
        ("parallel", r"VocabParallelCrossEntropy"),
        ("in-place", r"cross_entropy_(fwd|bwd)_kernel"),
        ("unfused", r"aten::(exp|_log_softmax|logsumexp)$"),
    ),
    "attention_kernel": (
        ("math", r"_scaled_dot_product_attention_math|aten::baddbmm$"),
        ("memory-efficient", r"_efficient_attention|fmha_cutlass"),
        (
            "newest",
            r"flash_attention_for_cpu|[Ss]m(90|100)\w*(flash|fmha|sdpa)|(?i:flash|fmha|sdpa)\w*sm(90|100)|cudnn",
        ),
        ("flash-2", r"flash_fwd|_flash_attention"),
    ),
}
"""Of a trainer: kernels of Transformer Engine, torch, Triton, FlashAttention and cuDNN, operations of torch."""
MIXTURE_SIGNS: dict[str, Signs] = {
    "grouped_experts": (("True", r"grouped_(mm|gemm)|fused_(moe|experts)|GroupedLinear"),),
    "expert_dispatch": (("deepep", r"(?i)deep_?ep"), ("all-to-all", r"(?i)all_?to_?all")),
}
ALL_REDUCE: Signs = (
    ("own", r"cross_device_reduce|allreduce_fusion|multimem_all_reduce|(one|two)_shot_all_reduce"),
    ("nccl", r"nccl\w*AllReduce"),
)
"""By what engines that generate add up over tensor-parallel ranks: kernels of vLLM, FlashInfer and torch, or NCCL's."""
GRAPH = r"(?i)graph_?launch"
ALWAYS: dict[str, object] = {
    "weight_sync": "all",
    "checkpoints": "device",
    "engine_driver": "own",
    "expert_overlap": False,
    "tensor_parallel_overlap": False,
}
"""What no engine of the executor does otherwise: no kernel's name says it."""


class Built(Record):
    """One thing that a price looks at: what the prediction took it for, what ran, and the kernel that says so."""

    what: str
    priced: str
    ran: str
    seen: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the prediction is of what ran; a thing of which no kernel was seen is not known to differ."""
        return not self.ran or self.priced == self.ran


def compare_builds(facts: Facts, engines: Mapping[str, str], dtype: str, kernels: Kernels) -> list[Built]:
    """What ran beside what ``facts`` price.

    ``engines`` are those of the run as prices name them, ``{"training": "fsdp", "generation": "vllm"}``, and one of
    each role with one of its own; ``dtype`` the run's; ``kernels`` those of one iteration.
    """
    priced = {"generation": facts.generation.name}
    found = [_engine(what, priced.get(what, facts.training.name), ran) for what, ran in engines.items()]
    found.append(Built(what="training_dtype", priced=facts.implementation.training_dtype, ran=dtype))
    trained = _names(kernels, "update_")
    signs = SIGNS | (MIXTURE_SIGNS if any(role.shape.moe for role in facts.roles.values()) else {})
    if not facts.device.spec.flash_2_flop_per_s:  # its tables hold one kind of flash attention, the newest it has
        signs["attention_kernel"] = tuple((v.replace("flash-2", "newest"), p) for v, p in signs["attention_kernel"])
    found += [_seen(key, _priced(facts, key), of_key, trained) for key, of_key in signs.items()]
    generated = _names(kernels, "generate_")
    found.append(_graphs("captured", bool(facts.implementation.captured), trained))
    found.append(_graphs("generation in CUDA graphs", facts.generation.cuda_graphs, generated))
    own = "own" if facts.generation.custom_all_reduce else "nccl"
    found.append(_seen("all-reduce of generation", own, ALL_REDUCE, generated))
    return [*found, *(Built(what=k, priced=_priced(facts, k), ran=str(v)) for k, v in ALWAYS.items())]


def _engine(what: str, priced: str, ran: str) -> Built:
    """A profile's engines are files, ``.../torch-native-generate@0.1.yaml`` that of the torch-native generator."""
    name = PurePath(priced).name.split("@")[0]
    return Built(what=f"{what} engine", priced=name.removesuffix("-generate"), ran=ran)


def _priced(facts: Facts, key: str) -> str:
    value = getattr(facts.implementation, key)
    if value == "flash-2" and not facts.device.spec.flash_2_flop_per_s:
        return "newest"
    return str(value)


def _names(kernels: Kernels, call: str) -> list[str]:
    return sorted({name for key, named in kernels.items() if key.startswith(call) for name in named})


def _seen(key: str, priced: str, signs: Signs, names: list[str]) -> Built:
    for value, pattern in signs:
        sign = next(_matching(names, pattern), None)
        if sign is not None:
            return Built(what=key, priced=priced, ran=value, seen=sign)
    absent = "False" if key == "grouped_experts" and names else ""
    return Built(what=key, priced=priced, ran=absent)


def _graphs(what: str, priced: bool, names: list[str]) -> Built:
    sign = next(_matching(names, GRAPH), None)
    return Built(what=what, priced=str(priced), ran=str(sign is not None) if names else "", seen=sign or "")


def _matching(names: list[str], pattern: str) -> Iterator[str]:
    return (name for name in names if re.search(pattern, name))
