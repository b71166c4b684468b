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
)
from benchmarks.validation.rl_engines import as_launched, dispatch, driver, generation_engine, training_engine
from benchmarks.validation.rl_samples import length_of, stated, workload_of
from benchmarks.validation.trainers import lora_rank, recompute_layers, training_dtype
from profiles.engine_facts import default_engine, load_generation_engine, load_training_engine
from simulator.facts import Facts, Implementation, RoleSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

ALGORITHMS = {
    "grpo": "grpo",
    "dapo": "dapo",
    "ppo": "ppo",
    "vapo": "ppo",
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
        workload_of(cells, assumed),
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


def is_separate(cells: Mapping[str, Any]) -> bool:
    """Whether engines and trainer have GPUs of their own."""
    words = text_of(cells.get("placement")).lower()
    return re.search(r"separat|disagg|split|dedicated|non-?\s?coloc|not coloc", words) is not None


def gpus_of(cells: Mapping[str, Any]) -> int:
    """GPUs of a run; where the row states those of trainer and engines alone, their sum if they are apart."""
    parts = [number(cells.get(name)) for name in ("train_gpus", "gen_gpus")]
    if is_empty(cells.get("num_gpus")) and all(parts):
        numbers = [integer(part, 0) for part in parts]
        return sum(numbers) if is_separate(cells) else max(numbers)
    return stated(cells, "num_gpus")


def _implementation(cells: Mapping[str, Any], training: str) -> Implementation:
    """How RL trainers are built: log-probs from plain tensor operations; Hugging Face models run eagerly.

    Those read a length back to the host in every layer's attention, so that no gather is issued ahead: with FSDP
    the forward gathers are exposed. NeMo-RL puts its engine to sleep at level 1. OPT has attention in tensor
    operations in the transformers of DeepSpeed-Chat's time (no other until 4.37).
    """
    opt = bool(simulated_system(cells)) and "opt-" in text_of(cells.get("model")).lower()
    eager = training.startswith(("fsdp", "deepspeed"))
    nemo = "nemo" in text_of(cells.get("system")).lower()
    passes = text_of(cells.get("logprob_passes")).lower()
    return Implementation(
        loss_head="unfused",
        kernels="eager" if eager else "fused",
        attention_kernel="math" if opt else "newest",
        fsdp_exposure=1.0 if eager else 0.0,
        training_dtype=training_dtype(text_of(cells.get("precision_train"))),
        lora_rank=_lora_rank(cells),
        packed_tokens=_packed_tokens(cells),
        recompute_layers=recompute_layers(text_of(cells.get("recompute"))),
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
    """Tokens of a pack; a limit "per GPU" is that of each context-parallel rank, so a pack has as many times more.

    NeMo-RL packs whole micro-batches of the longest sequence where its recipe gives no number.
    """
    words = text_of(cells.get("seq_packing")).lower()
    found = re.search(r"(\d[\d,]*)\s*(k?)\s*tokens|(\d[\d,]*)\s*(k)\b", words)
    if found is not None:
        digits, thousand = (found[1], found[2]) if found[1] else (found[3], found[4])
        tokens = int(digits.replace(",", "")) * (1024 if thousand else 1)
        return tokens * (integer(cells.get("train_cp"), 1) if "per gpu" in words else 1)
    longest = length_of(cells, "max_seq_len")
    if (
        longest is None
        or "nemo" not in text_of(cells.get("system")).lower()
        or not re.match(r"on|true|yes|pack", words)
    ):
        return None
    return round(longest) * integer(cells.get("micro_batch"), 1)


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
