"""A run of slime as a job and a plan: the other way round of ``slime.settings``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.imported import Engine, Setup, tokens_of
from hybridmap.exports.keys import Keys
from hybridmap.exports.launched import flags_of, launched
from hybridmap.exports.models import known_model
from hybridmap.exports.values import value_of
from profiles.errors import InputError, UnknownNameError
from simulator.plan.plan import RECOMPUTE_LEVELS, ParallelLayout, TokenBudget

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULTS: dict[str, Any] = {
    "actor-num-nodes": 1,
    "actor-num-gpus-per-node": 8,
    "num-gpus-per-node": 8,
    "rollout-num-gpus-per-engine": 1,
    "n-samples-per-prompt": 1,
    "micro-batch-size": 1,
    "tensor-model-parallel-size": 1,
    "pipeline-model-parallel-size": 1,
    "context-parallel-size": 1,
    "expert-model-parallel-size": 1,
    "advantage-estimator": "grpo",
    "kl-coef": 0.0,
    "sglang-pp-size": 1,
    "sglang-ep-size": 1,
    "sglang-dp-size": 1,
}
"""Of ``slime/utils/arguments.py`` of 0.3.1, and of Megatron-Core and SGLang, for the arguments that are read."""
ALGORITHMS = {
    "grpo": "grpo",
    "gspo": "grpo",
    "cispo": "grpo",
    "reinforce_plus_plus": "reinforce++",
    "reinforce_plus_plus_baseline": "reinforce++",
}
PROGRAMS = ("train.py", "train_async.py")


def read_slime(path: Path, environment: Mapping[str, str], text: str | None = None) -> Keys:
    """The arguments of a launch script; ``text`` where it is no file yet. Errors as in ``launched``."""
    found: list[str] = []

    def is_trainer(word: str) -> bool:
        if word.rsplit("/", 1)[-1] in PROGRAMS:
            found.append(word.rsplit("/", 1)[-1])
            return True
        return False

    words = launched(path, environment, is_trainer, " or ".join(PROGRAMS), text)
    given: dict[str, Any] = {name: _value(values) for name, values in flags_of(words).items()}
    return Keys(str(path), {**given, "program": found[-1]}, DEFAULTS)


def _value(words: list[str]) -> Any:
    if not words:
        return True
    return value_of(words[0]) if len(words) == 1 else [value_of(word) for word in words]


def setup_of(keys: Keys, named: bool = True) -> Setup:
    """What a run's arguments say; ``named``: whether its model is looked up. Errors name what is not read."""
    estimator = keys.get("advantage-estimator")
    if estimator not in ALGORITHMS:
        raise UnknownNameError("--advantage-estimator", str(estimator), ALGORITHMS)
    reference = bool(keys.get("use-kl-loss")) or keys.number("kl-coef") > 0
    roles = ("actor", "reference") if reference else ("actor",)
    model = known_model(keys.source, "--hf-checkpoint", keys.path("hf-checkpoint"), named)
    num_gpus = keys.whole("actor-num-nodes") * keys.whole("actor-num-gpus-per-node")
    apart = not keys.get("colocate")
    pools = ((roles, num_gpus), *((((), keys.whole("rollout-num-gpus")),) if apart else ()))
    training, scoring = _layouts(keys, num_gpus)
    by_engine = bool(keys.get("use-rollout-logprobs"))
    offloads = not apart if keys.get("offload-train") is None else bool(keys.get("offload-train"))
    return Setup(
        keys.source,
        ALGORITHMS[estimator],
        dict.fromkeys(roles, model),
        _workload(keys),
        keys.whole("num-gpus-per-node"),
        pools,
        {"training": "megatron-core", "generation": "sglang"},
        {"old_log_prob": "engine" if by_engine else "trainer"},
        {"actor": (training, None if by_engine else scoring), "reference": (None, scoring)},
        _engine(keys),
        {"actor": ("parameters", "optimizer") if offloads else (), "reference": ("swap",)},
        schedule="one-step-off" if keys.get("program") == "train_async.py" else "sync",
        drafts=tokens_of(keys.get("sglang-speculative-num-steps")),
        notes=tuple(_notes(keys)),
    )


def _workload(keys: Keys) -> dict[str, Any]:
    prompts, samples = keys.whole("rollout-batch-size"), keys.whole("n-samples-per-prompt")
    response = keys.whole("rollout-max-response-len")
    context = keys.get("rollout-max-context-len")
    if keys.get("rollout-max-prompt-len") is not None:
        prompt = keys.whole("rollout-max-prompt-len")
    else:
        prompt = max(context - response, 1) if isinstance(context, int) else 1024
    steps = keys.whole_or_none("num-steps-per-rollout")
    total = prompts * samples
    return {
        "prompts": prompts,
        "samples_per_prompt": samples,
        "prompt_length": prompt,
        "response_length": response,
        "minibatches": steps or max(1, total // keys.whole("global-batch-size")),
        "epochs": 1,
    }


def _layouts(keys: Keys, num_gpus: int) -> tuple[ParallelLayout, ParallelLayout]:
    names = {"tp": "tensor-model", "pp": "pipeline-model", "cp": "context", "ep": "expert-model"}
    degrees = {key: keys.whole(f"{name}-parallel-size") for key, name in names.items()}
    ranks = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if num_gpus % ranks:
        raise InputError(f"{keys.source}: the actor's {num_gpus} GPUs do not divide into tp x pp x cp = {ranks}")
    recompute = keys.get("recompute-granularity") or "none"
    if recompute not in RECOMPUTE_LEVELS:
        raise UnknownNameError("--recompute-granularity", str(recompute), RECOMPUTE_LEVELS)
    record: dict[str, Any] = {**degrees, "dp": num_gpus // ranks, "zero_stage": 1}
    record["sequence_parallel"] = bool(keys.get("sequence-parallel")) or degrees["tp"] == 1
    if isinstance(chunk := keys.get("num-layers-per-virtual-pipeline-stage"), int) and "num-layers" in keys.given:
        record["vpp"] = max(1, keys.whole("num-layers") // (degrees["pp"] * chunk))
    layouts = (
        ParallelLayout.model_validate(
            {**record, "micro_batch": _micro_batch(keys, name, degrees["cp"]), "recompute": level}
        )
        for name, level in (("max-tokens-per-gpu", recompute), ("log-probs-max-tokens-per-gpu", "none"))
    )
    return next(layouts), next(layouts)


def _micro_batch(keys: Keys, name: str, cp: int) -> int | TokenBudget:
    if not keys.get("use-dynamic-batch-size"):
        return keys.whole("micro-batch-size")
    return TokenBudget(tokens=cp * keys.whole(name if keys.get(name) is not None else "max-tokens-per-gpu"))


def _engine(keys: Keys) -> Engine:
    gpus, stages = keys.whole("rollout-num-gpus-per-engine"), keys.whole("sglang-pp-size")
    copies = keys.whole("sglang-dp-size") if keys.get("sglang-enable-dp-attention") else 1
    share = keys.get("sglang-mem-fraction-static")
    return Engine(
        tp=gpus // stages,
        pp=stages,
        ep=keys.whole("sglang-ep-size"),
        attention_dp=copies,
        max_num_seqs=keys.whole_or_none("sglang-max-running-requests"),
        memory_share=None if share is None else keys.number("sglang-mem-fraction-static"),
        static_share=True,
    )


def _notes(keys: Keys) -> list[str]:
    out = []
    if keys.get("dynamic-sampling-filter-path"):
        out.append("dynamic sampling: prompts that are sampled and dropped are not priced")
    if keys.get("sglang-speculative-algorithm") is not None:
        out.append("--sglang-speculative-algorithm: drafts are priced from a job file alone (speculation)")
    if keys.get("partial-rollout"):
        out.append("--partial-rollout: aborted samples that go on later are priced as if they were generated at once")
    if keys.get("rollout-max-prompt-len") is None and keys.get("rollout-max-context-len") is None:
        out.append("no argument limits prompts: 1,024 tokens are taken; --prompt-tokens says what your logs say")
    return out
