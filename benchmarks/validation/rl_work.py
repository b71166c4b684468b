"""The job of a published RL iteration: its models, samples, engines, and how its trainer is built."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.validation.devices import device_profile
from benchmarks.validation.names import (
    NotPredicted,
    integer,
    is_empty,
    number,
    published_device,
    published_models,
    text_of,
)
from benchmarks.validation.sweeps import facts_file, release_of
from benchmarks.validation.trainers import lora_rank, training_dtype
from profiles.engine_facts import default_engine, load_generation_engine, load_training_engine
from profiles.hardware import ClusterGroup
from profiles.records import Basis
from profiles.workload import LengthDistribution, Workload
from simulator.facts import Facts, Implementation, RoleSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiles.engine_facts import GenerationEngine
    from simulator.facts import EngineDriver, ExpertDispatch

PROMPT_TOKENS = 115
"""Mean prompt where only the response length is published: short mathematics problems have 100 to 130 tokens."""

AZURE_A100_BYTES_PER_S = 200e9
"""Network of the A100 nodes of the cloud that DeepSpeed-Chat's blog priced its runs on: one 200 Gbit/s card per GPU."""

ALGORITHMS = {
    "grpo": "grpo",
    "dapo": "dapo",
    "ppo": "ppo",
    "rloo": "rloo",
    "remax": "remax",
    "reinforce++": "reinforce++",
    "gspo": "grpo",
    "dr.grpo": "grpo",
    "safe-rlhf": "safe-rlhf",
}


def simulated_system(cells: Mapping[str, Any]) -> str:
    """The simulated system that a row ran on where it states no layouts; empty where its plan is given."""
    words = text_of(cells.get("system")).lower()
    given = number(cells.get("train_tp")) is not None
    return "deepspeed-chat" if "deepspeed-chat" in words and not given else ""


def given_facts(cells: Mapping[str, Any], assumed: list[str], system: str = "") -> Facts:
    """Facts of a row; what the row does not state is assumed and said in ``assumed``.

    A simulated ``system`` brings its own engines.

    Raises
    ------
    NotPredicted
        Something is missing that no default would be honest for.
    """
    device = device_profile(published_device(text_of(cells.get("gpu_kind"))))
    algorithm = _algorithm(cells)
    num_gpus = _whole(cells, "num_gpus")
    per_node = min(integer(cells.get("gpus_per_node"), device.spec.gpus_per_node), num_gpus)
    group = replace(
        ClusterGroup.of(device.spec, max(1, -(-num_gpus // per_node))),
        gpus_per_node=per_node,
        nvlink_domain_gpus=max(per_node, device.spec.nvlink_domain_gpus),
    )
    if system == "deepspeed-chat":
        group = replace(group, inter_node_bytes_per_s=AZURE_A100_BYTES_PER_S)
        assumed.append("network not stated: Azure's A100 nodes, 8 x 200 Gbit/s")
    if system:
        training, generation = default_engine("training"), default_engine("generation")
    else:
        training, generation = training_engine(cells), generation_engine(cells)
    precision = _generation_precision(text_of(cells.get("precision_gen")))
    return Facts(
        algorithm,
        _roles(cells, algorithm, precision),
        _workload(cells, assumed),
        group,
        device,
        load_training_engine(training),
        _as_launched(load_generation_engine(generation), cells, assumed),
        _implementation(cells, training),
    )


def training_engine(cells: Mapping[str, Any]) -> str:
    """The trainer's facts by the words of the row."""
    words = text_of(cells.get("train_backend")).lower() or text_of(cells.get("system")).lower()
    if "megatron" in words or "mcore" in words:
        release = re.search(r"nemo-rl v0\.(\d+)", text_of(cells.get("system")).lower())
        before = release is not None and int(release[1]) <= 4
        return "megatron-core@0.14" if before or "-before" in text_of(cells.get("id")) else "megatron-core@0.16"
    if words == "fsdp" and "verl" in text_of(cells.get("system")).lower():
        return "fsdp@2.6"  # its strategy of that name is FSDP1; the other is called fsdp2
    if any(name in words for name in ("fsdp", "dtensor", "automodel", "deepspeed", "zero")):
        return "fsdp@2.13"
    raise NotPredicted(f"no training engine known for '{words}'")


def generation_engine(cells: Mapping[str, Any]) -> str:
    """The engine's facts by the words of the row: its family, and its release or the one of the row's date."""
    words = text_of(cells.get("gen_backend")).lower()
    families = {"tensorrtllm": r"trt|tensorrt", "sglang": r"sglang", "vllm": r"vllm"}
    for family, pattern in families.items():
        if re.search(pattern, words):
            return facts_file(cells, family, words)
    raise NotPredicted(f"no generation engine known for '{words or 'an unnamed engine'}'")


GRAPH_UNTIL = (0, 21)
"""First release of vLLM whose Ray executor sends messages by default: 0.20 has the switch and it is off, 0.22 on."""


EAGER_UNTIL = "2025-08"
"""verl's rollouts ran without CUDA graphs by default (``rollout.enforce_eager``) up to its release 0.5."""

DATES_OF_LOGS = {"yushengsu-thu/verl_training_log": "2025-04"}
"""When logs were written that carry no date: those of verl's port to ROCm, whose image held vLLM 0.6.3."""

LAUNCHES_OF = "vllm@0.3.1"
"""Facts with the host's time to launch a layer eagerly; it is carried over to later releases."""


def _as_launched(engine: GenerationEngine, cells: Mapping[str, Any], assumed: list[str]) -> GenerationEngine:
    """The engine with the row's launch of decode steps: eager where the row or its system's default says so."""
    if re.search(r"disables vllm custom all-reduce", text_of(cells.get("notes")).lower()):
        engine = replace(engine, custom_all_reduce=False)
    stated = re.search(r"enforce_eager\W*(true|false)", text_of(cells.get("notes")).lower())
    date = text_of(cells.get("measured_date"))[:7]
    written = next((on for log, on in DATES_OF_LOGS.items() if log in text_of(cells.get("source_ref"))), date)
    early = bool(written) and written < EAGER_UNTIL and text_of(cells.get("system")).lower().startswith("verl")
    if engine.family != "vllm" or (stated[1] == "false" if stated else not early):
        return engine
    if not stated:
        assumed.append("decode steps launched eagerly, verl's default of that time")
    names = ("launch_s_per_layer", "collective_launch_s", "prefill_launch_s_per_layer")
    eager = load_generation_engine(LAUNCHES_OF)
    times = {name: getattr(eager, name) for name in names}
    bases = {**engine.bases, **dict.fromkeys(names, Basis.ASSUMED)}
    return replace(engine, cuda_graphs=False, bases=bases, **times)


def _driver(cells: Mapping[str, Any]) -> EngineDriver:
    """Who starts an engine's steps: NeMo-RL runs those that span GPUs through Ray."""
    words = text_of(cells.get("gen_backend")).lower()
    if "nemo" not in text_of(cells.get("system")).lower() or integer(cells.get("gen_tp"), 1) == 1:
        return "own"
    return "ray-graph" if "vllm" in words and release_of(cells, "vllm", words) < GRAPH_UNTIL else "ray"


def _dispatch(cells: Mapping[str, Any]) -> ExpertDispatch:
    """How tokens reach experts: Megatron-Core's flexible dispatcher is DeepEP or HybridEP, by its words."""
    words = text_of(cells.get("moe_dispatcher")).lower()
    if "deepep" in words:
        return "deepep"
    return "hybrid" if re.search(r"flex|hybrid", words) else "all-to-all"


def _algorithm(cells: Mapping[str, Any]) -> str:
    words = text_of(cells.get("algorithm")).lower()
    for name, ours in ALGORITHMS.items():
        if words.startswith(name):
            with_reference = "ref" in text_of(cells.get("logprob_passes")).lower()
            return "grpo" if ours == "dapo" and with_reference else ours  # DAPO has no reference; what has is GRPO
    raise NotPredicted(f"no dataflow for algorithm '{words}'")


def _roles(cells: Mapping[str, Any], algorithm: str, precision: str) -> dict[str, RoleSpec]:
    shapes = published_models(text_of(cells.get("model")))
    roles = {"actor": RoleSpec(shapes["actor"])}
    passes = text_of(cells.get("logprob_passes")).lower()
    if algorithm in ("ppo", "safe-rlhf"):
        roles["critic"] = RoleSpec(shapes["critic"])
    if "ref" in passes or algorithm in ("ppo", "safe-rlhf", "remax"):
        roles["reference"] = RoleSpec(shapes["reference"])
    if algorithm in ("ppo", "safe-rlhf", "remax"):
        roles["reward"] = RoleSpec(shapes["reward"])
    if algorithm == "safe-rlhf":
        roles["cost"] = RoleSpec(shapes["reward"])
    return roles | {"actor": RoleSpec(shapes["actor"], precision)}


def _workload(cells: Mapping[str, Any], assumed: list[str]) -> Workload:
    response = _response_tokens(cells, assumed)
    prompt = _prompt_tokens(cells, response, assumed)
    limit = _length(cells, "max_response_len") or _length(cells, "max_seq_len")
    longest = _length(cells, "max_seq_len")
    if limit is None:
        raise NotPredicted("no limit of the response length is stated")
    if longest is not None and limit >= longest:
        limit = max(longest - prompt, response)
    prompts = _whole(cells, "prompts_per_step")
    per_prompt = _samples_per_prompt(cells, prompts)
    spread = LengthDistribution.fixed(round(response))
    if response < 0.995 * limit:
        spread = LengthDistribution("lognormal", float(response), int(limit))
    steps = _optimizer_steps(cells, prompts, per_prompt, assumed)
    return Workload(prompts, per_prompt, max(1, round(prompt)), spread, minibatches=steps)


def _length(cells: Mapping[str, Any], column: str) -> float | None:
    """A length in tokens, ``None`` where the cell is empty; ``NotPredicted`` for one that is no length."""
    if is_empty(cells.get(column)):
        return None
    tokens = number(cells.get(column))
    if tokens is None or tokens <= 0:
        raise NotPredicted(f"{column} is {text_of(cells.get(column))}, which is no length in tokens")
    return tokens


def _response_tokens(cells: Mapping[str, Any], assumed: list[str]) -> float:
    """Mean response; where only rates are published, what they say of a whole sample, less its prompt."""
    stated = _length(cells, "mean_response_len")
    if stated is not None:
        return stated
    whole = _tokens_per_sample(cells)
    if whole is None:
        raise NotPredicted("the mean response length is not stated")
    response = whole - (_length(cells, "mean_prompt_len") or PROMPT_TOKENS)
    if response < 1:
        raise NotPredicted(f"{whole:.0f} tokens per sample leave none for a response")
    assumed.append(f"mean response length inferred from published rates: {response:.0f} tokens")
    return response


def _tokens_per_sample(cells: Mapping[str, Any]) -> float | None:
    """Prompt and response of a sample, from throughput and time or as a remark states it; ``None`` without either."""
    derived = number(cells.get("derived_tokens_per_sample"))
    if derived is not None:
        return derived
    names = ("tokens_per_s_per_gpu", "step_time_s", "num_gpus", "samples_per_step", "prompts_per_step")
    rate, seconds, gpus, samples, prompts = (number(cells.get(name)) for name in names)
    samples = samples or (prompts or 0.0) * (number(cells.get("samples_per_prompt")) or 0.0)
    if rate and seconds and gpus and samples:
        return rate * seconds * gpus / samples
    remark = re.search(r"avg num tokens'? (\d[\d,]*) per sample", text_of(cells.get("notes")).lower())
    return float(remark[1].replace(",", "")) if remark else None


def _samples_per_prompt(cells: Mapping[str, Any], prompts: int) -> int:
    if not is_empty(cells.get("samples_per_prompt")) or is_empty(cells.get("samples_per_step")):
        if is_empty(cells.get("samples_per_prompt")):
            raise NotPredicted("samples per prompt are not stated")
        return integer(cells.get("samples_per_prompt"), 1)
    samples = integer(cells.get("samples_per_step"), 1)
    if samples % prompts:
        raise NotPredicted(f"{samples} samples are no whole number for each of {prompts} prompts")
    return samples // prompts


def _prompt_tokens(cells: Mapping[str, Any], response: float, assumed: list[str]) -> float:
    stated = _length(cells, "mean_prompt_len")
    if stated is not None:
        return stated
    whole = _tokens_per_sample(cells)
    if is_empty(cells.get("mean_response_len")):
        return float(PROMPT_TOKENS)
    if whole is not None and 32 <= whole - response <= 200:
        assumed.append("prompt length from the published throughput")
        return whole - response
    assumed.append(f"prompt length not stated: {PROMPT_TOKENS} tokens")
    return float(PROMPT_TOKENS)


def _optimizer_steps(cells: Mapping[str, Any], prompts: int, per_prompt: int, assumed: list[str]) -> int:
    """Optimizer steps per iteration; verl counts its mini-batch in prompts, others in samples."""
    batch = None if is_empty(cells.get("global_batch")) else integer(cells.get("global_batch"), 0)
    if batch is None:
        assumed.append("optimizer steps not stated: 1")
        return 1
    in_prompts = "verl" in text_of(cells.get("system")).lower()
    return max(1, round(prompts * per_prompt / (batch * (per_prompt if in_prompts else 1))))


def _implementation(cells: Mapping[str, Any], training: str) -> Implementation:
    """How RL trainers are built: log-probs from plain tensor operations; Hugging Face models run eagerly.

    Those read a length back to the host in every layer's attention, so that no gather is issued ahead: with FSDP
    the forward gathers are exposed. NeMo-RL puts its engine to sleep at level 1.
    """
    eager = training.startswith("fsdp")
    nemo = "nemo" in text_of(cells.get("system")).lower()
    passes = text_of(cells.get("logprob_passes")).lower()
    return Implementation(
        loss_head="unfused",
        kernels="eager" if eager else "fused",
        fsdp_exposure=1.0 if eager else 0.0,
        training_dtype=training_dtype(text_of(cells.get("precision_train"))),
        lora_rank=lora_rank(text_of(cells.get("notes"))) if "lora" in text_of(cells.get("algorithm")).lower() else 0,
        packed_tokens=_packed_tokens(cells),
        weight_sync="changes" if "delta" in text_of(cells.get("system")).lower() else "all",
        sleeping_engine="keeps-weights" if nemo else "drops-weights",
        engine_driver=_driver(cells),
        expert_dispatch=_dispatch(cells),
        old_log_prob="trainer" if re.search(r"policy|old|actor", passes) else "engine",
    )


def _packed_tokens(cells: Mapping[str, Any]) -> int | None:
    """Tokens of a pack; a limit "per GPU" is that of each context-parallel rank, so a pack has as many times more."""
    words = text_of(cells.get("seq_packing")).lower()
    found = re.search(r"(\d[\d,]*)\s*tokens", words)
    if found is None:
        return None
    return int(found[1].replace(",", "")) * (integer(cells.get("train_cp"), 1) if "per gpu" in words else 1)


def _generation_precision(words: str) -> str:
    return "fp8" if re.search(r"fp8|float8", words.lower()) else "bf16"


def _whole(cells: Mapping[str, Any], column: str) -> int:
    if number(cells.get(column)) is None:
        raise NotPredicted(f"{column} is not stated")
    return integer(cells.get(column), 0)
