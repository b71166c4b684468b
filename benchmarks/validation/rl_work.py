"""The job of a published RL iteration: its models, samples, engines, and how its trainer is built."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from benchmarks.validation.devices import cluster_of, device_profile
from benchmarks.validation.names import (
    NotPredicted,
    integer,
    is_empty,
    number,
    published_device,
    published_models,
    text_of,
    tokens_of,
)
from benchmarks.validation.rl_engines import as_launched, dispatch, driver, generation_engine, training_engine
from benchmarks.validation.trainers import lora_rank, training_dtype
from profiles.engine_facts import default_engine, load_generation_engine, load_training_engine
from profiles.workload import LengthDistribution, Workload
from simulator.facts import Facts, Implementation, RoleSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

PROMPT_TOKENS = 115
"""Mean prompt where only the response length is published: short mathematics problems have 100 to 130 tokens."""

ALGORITHMS = {
    "grpo": "grpo",
    "dapo": "dapo",
    "ppo": "ppo",
    "rloo": "rloo",
    "remax": "remax",
    "reinforce++": "reinforce++",
    "reinforce": "reinforce++",
    "gspo": "grpo",
    "cispo": "grpo",
    "gmpo": "grpo",
    "dr.grpo": "grpo",
    "safe-rlhf": "safe-rlhf",
}
"""Names of a table to our dataflows: losses differ, calls do not. One at the start of a cell comes first."""


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
    num_gpus = gpus_of(cells)
    group = cluster_of(cells, device, num_gpus, assumed)
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
        as_launched(load_generation_engine(generation), cells, assumed),
        _implementation(cells, training),
    )


def _algorithm(cells: Mapping[str, Any]) -> str:
    words = text_of(cells.get("algorithm")).lower()
    starts = [name for name in ALGORITHMS if words.startswith(name)]
    within = [name for name in ALGORITHMS if re.search(rf"\b{re.escape(name)}", words)]
    if not starts + within:
        raise NotPredicted(f"no dataflow for algorithm '{words}'")
    ours = ALGORITHMS[(starts + within)[0]]
    with_reference = "ref" in text_of(cells.get("logprob_passes")).lower()
    return "grpo" if ours == "dapo" and with_reference else ours  # DAPO has no reference; what has is GRPO


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
    prompts = _prompts(cells)
    per_prompt = _samples_per_prompt(cells, prompts)
    spread = LengthDistribution.fixed(round(response))
    if response < 0.995 * limit:
        spread = LengthDistribution("lognormal", float(response), int(limit))
    steps = _optimizer_steps(cells, prompts, per_prompt, assumed)
    return Workload(prompts, per_prompt, max(1, round(prompt)), spread, minibatches=steps)


def gpus_of(cells: Mapping[str, Any]) -> int:
    """GPUs of a run; where the row states those of trainer and engines alone, their sum if they are apart."""
    parts = [number(cells.get(name)) for name in ("train_gpus", "gen_gpus")]
    if is_empty(cells.get("num_gpus")) and all(parts):
        numbers = [integer(part, 0) for part in parts]
        return sum(numbers) if "separat" in text_of(cells.get("placement")).lower() else max(numbers)
    return _whole(cells, "num_gpus")


def _prompts(cells: Mapping[str, Any]) -> int:
    """Prompts of a step, or samples of a step over samples of a prompt."""
    samples, each = (number(cells.get(name)) for name in ("samples_per_step", "samples_per_prompt"))
    if is_empty(cells.get("prompts_per_step")) and samples and each and samples % each == 0:
        return integer(samples / each, 0)
    return _whole(cells, "prompts_per_step")


def _length(cells: Mapping[str, Any], column: str) -> float | None:
    """A length in tokens, ``None`` where the cell is empty; ``NotPredicted`` for one that is no length."""
    if is_empty(cells.get(column)):
        return None
    tokens = tokens_of(cells.get(column))
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
    """Optimizer steps per iteration; verl and SkyRL count their mini-batch in prompts, others in samples."""
    batch = None if is_empty(cells.get("global_batch")) else integer(cells.get("global_batch"), 0)
    if batch is None:
        assumed.append("optimizer steps not stated: 1")
        return 1
    in_prompts = re.search(r"verl|skyrl", text_of(cells.get("system")).lower()) is not None
    return max(1, round(prompts * per_prompt / (batch * (per_prompt if in_prompts else 1))))


def _implementation(cells: Mapping[str, Any], training: str) -> Implementation:
    """How RL trainers are built: log-probs from plain tensor operations; Hugging Face models run eagerly.

    Those read a length back to the host in every layer's attention, so that no gather is issued ahead: with FSDP
    the forward gathers are exposed. NeMo-RL puts its engine to sleep at level 1.
    """
    eager = training.startswith(("fsdp", "deepspeed"))
    nemo = "nemo" in text_of(cells.get("system")).lower()
    passes = text_of(cells.get("logprob_passes")).lower()
    return Implementation(
        loss_head="unfused",
        kernels="eager" if eager else "fused",
        fsdp_exposure=1.0 if eager else 0.0,
        training_dtype=training_dtype(text_of(cells.get("precision_train"))),
        lora_rank=_lora_rank(cells),
        packed_tokens=_packed_tokens(cells),
        weight_sync="changes" if "delta" in text_of(cells.get("system")).lower() else "all",
        sleeping_engine="keeps-weights" if nemo else "drops-weights",
        engine_driver=driver(cells),
        expert_dispatch=dispatch(cells),
        old_log_prob="trainer" if re.search(r"policy|old|actor", passes) else "engine",
    )


def _lora_rank(cells: Mapping[str, Any]) -> int:
    """Rank of a run's adapters, 0 where no cell that names the run has any; the notes may only say the rank."""
    words = " ".join(text_of(cells.get(name)) for name in ("algorithm", "system", "train_backend", "precision_train"))
    return lora_rank(f"{words} {text_of(cells.get('notes'))}") if "lora" in words.lower() else 0


def _packed_tokens(cells: Mapping[str, Any]) -> int | None:
    """Tokens of a pack; a limit "per GPU" is that of each context-parallel rank, so a pack has as many times more."""
    words = text_of(cells.get("seq_packing")).lower()
    found = re.search(r"(\d[\d,]*)\s*tokens", words)
    if found is None:
        return None
    return int(found[1].replace(",", "")) * (integer(cells.get("train_cp"), 1) if "per gpu" in words else 1)


def _generation_precision(words: str) -> str:
    """Format of the weights that an engine runs with; "FP8 (KV cache BF16)" is FP8."""
    text = words.lower().partition("(")[0]
    if re.search(r"(nv|^|\s)fp4", text):
        return "nvfp4"
    if re.search(r"mxfp4|int4|w4a16", text):
        return "mxfp4" if "mx" in text else "int4"
    if re.search(r"fp8|float8", text):
        return "fp8_block" if re.search(r"block|mx|128", text) else "fp8"
    return "bf16"


def _whole(cells: Mapping[str, Any], column: str) -> int:
    if number(cells.get(column)) is None:
        raise NotPredicted(f"{column} is not stated")
    return integer(cells.get(column), 0)
