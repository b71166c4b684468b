"""Reading a run of NeMo-RL 0.7: a recipe, or a script that starts ``run_grpo.py`` with one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hybridmap.exports.keys import Keys
from hybridmap.exports.launched import launched
from hybridmap.exports.values import flat, value_of
from profiles.errors import FileFormatError, InputError
from profiles.yaml_text import parse_yaml, read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BASE = "grpo_math_1B.yaml"
DEFAULTS: dict[str, Any] = {
    "grpo.num_prompts_per_step": 32,
    "grpo.num_generations_per_prompt": 16,
    "grpo.normalize_rewards": True,
    "grpo.adv_estimator.name": "grpo",
    "grpo.skip_reference_policy_logprobs_calculation": False,
    "grpo.use_dynamic_sampling": False,
    "grpo.async_grpo.enabled": False,
    "grpo.async_grpo.max_trajectory_age_steps": 1,
    "grpo.async_grpo.in_flight_weight_updates": False,
    "loss_fn.reference_policy_kl_penalty": 0.01,
    "data.max_input_seq_length": "${policy.max_total_sequence_length}",
    "policy.model_name": "Qwen/Qwen2.5-1.5B",
    "policy.train_global_batch_size": 512,
    "policy.train_micro_batch_size": 4,
    "policy.logprob_batch_size": "${policy.train_micro_batch_size}",
    "policy.max_total_sequence_length": 512,
    "policy.dtensor_cfg.enabled": True,
    "policy.dtensor_cfg.tensor_parallel_size": 1,
    "policy.dtensor_cfg.context_parallel_size": 1,
    "policy.dtensor_cfg.activation_checkpointing": False,
    "policy.dtensor_cfg.lora_cfg.enabled": False,
    "policy.dtensor_cfg.lora_cfg.dim": 8,
    "policy.megatron_cfg.enabled": False,
    "policy.megatron_cfg.tensor_model_parallel_size": 1,
    "policy.megatron_cfg.pipeline_model_parallel_size": 1,
    "policy.megatron_cfg.context_parallel_size": 1,
    "policy.megatron_cfg.expert_model_parallel_size": 1,
    "policy.megatron_cfg.sequence_parallel": False,
    "policy.megatron_cfg.activation_checkpointing": False,
    "policy.megatron_cfg.recompute_granularity": "full",
    "policy.megatron_cfg.optimizer.use_distributed_optimizer": True,
    "policy.megatron_cfg.fp8_cfg.enabled": False,
    "policy.megatron_cfg.fp8_cfg.fp8_recipe": "blockwise",
    "policy.megatron_cfg.peft.enabled": False,
    "policy.megatron_cfg.peft.dim": 8,
    "policy.sequence_packing.enabled": True,
    "policy.dynamic_batching.enabled": False,
    "policy.generation.backend": "vllm",
    "policy.generation.max_new_tokens": "${policy.max_total_sequence_length}",
    "policy.generation.colocated.enabled": True,
    "policy.generation.vllm_cfg.precision": "bfloat16",
    "policy.generation.vllm_cfg.tensor_parallel_size": 1,
    "policy.generation.vllm_cfg.pipeline_parallel_size": 1,
    "policy.generation.vllm_cfg.expert_parallel_size": 1,
    "policy.generation.vllm_cfg.gpu_memory_utilization": 0.6,
    "cluster.num_nodes": 1,
    "cluster.gpus_per_node": 1,
}
"""Of ``examples/configs/grpo_math_1B.yaml``, on which all other GRPO recipes stand."""
_PRODUCT = re.compile(r"\$\{mul:\s*\$\{([\w.]+)\},\s*\$\{([\w.]+)\}\}")
_POINTER = re.compile(r"\$\{([\w.]+)\}")
_OVERRIDE = re.compile(r"^\+{0,2}([A-Za-z_][\w.]*)=(.*)$", re.DOTALL)


def read_nemo_rl(path: Path, environment: Mapping[str, str]) -> Keys:
    """The settings of a run, from its recipe or from the script that starts it; errors name what is not read."""
    if path.suffix in (".yaml", ".yml"):
        return keys_of(str(path), _composed(path, 0))
    words = launched(path, environment, lambda word: word.endswith(("run_grpo.py", "run_grpo_math.py")), "run_grpo.py")
    texts = [word.value for word in words]
    at = next((i for i, text in enumerate(texts) if text == "--config"), None)
    if at is None or at + 1 == len(texts):
        raise FileFormatError(f"{path}: starts run_grpo.py without --config, whose recipe is what is read")
    if words[at + 1].missing:
        missing = " ".join(f"--env {name}=VALUE" for name in words[at + 1].missing if name.isidentifier())
        raise InputError(f"{path}: --config {texts[at + 1]} is known only where the script runs; give {missing}")
    given = dict(_composed((path.parent / texts[at + 1]), 0))
    for found in (_OVERRIDE.match(text) for text in texts):
        if found:
            given[found[1]] = value_of(found[2])
    return keys_of(str(path), given)


def keys_of_recipe(text: str, name: str) -> Keys:
    """The settings of a recipe that is no file yet."""
    return keys_of(name, flat(parse_yaml(text, name)))


def keys_of(source: str, given: Mapping[str, Any]) -> Keys:
    """Settings with every reference to another one followed; ``InputError`` for one that leads nowhere."""
    if any(key.startswith(("ppo.", "value.")) for key in given):
        raise InputError(f"{source}: a recipe of its PPO, which has a value model, is not read; those of GRPO are")
    merged = {**DEFAULTS, **given}
    return Keys(
        source,
        {key: _followed(source, key, value, merged, 0) for key, value in given.items()}
        | {key: _followed(source, key, value, merged, 0) for key, value in DEFAULTS.items() if key not in given},
        DEFAULTS,
    )


def _followed(source: str, key: str, value: Any, values: Mapping[str, Any], depth: int) -> Any:
    tokens = key.startswith("policy.") and key.endswith("_mb_tokens")
    if not isinstance(value, str) or "${" not in value or (key not in DEFAULTS and not tokens):
        return value
    if depth > 20:
        raise InputError(f"{source}: {key}={value}: points to itself")
    names = _PRODUCT.fullmatch(value) or _POINTER.fullmatch(value)
    if names is None or any(name not in values for name in names.groups()):
        raise InputError(f"{source}: {key}={value}: this interpolation is not resolved here; write its value")
    out = 1
    found = [_followed(source, name, values[name], values, depth + 1) for name in names.groups()]
    if len(found) == 1:
        return found[0]
    for number in found:
        if not isinstance(number, int):
            raise InputError(f"{source}: {key}={value}: multiplies what is no whole number")
        out *= number
    return out


def _composed(path: Path, depth: int) -> dict[str, Any]:
    """A recipe on those that it names as its ``defaults``, nearest last; NeMo-RL's own base is known."""
    content = read_yaml_file(path)
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: holds no settings")
    below: dict[str, Any] = {}
    named = content.pop("defaults", None)
    for name in named if isinstance(named, list) else [named] if named else []:
        base = path.parent / str(name)
        if not str(name).endswith(BASE) or ("${" not in str(name) and base.exists()):
            if depth > 8 or not base.exists():
                raise InputError(f"{path}: stands on {name}, which is not beside it; give the composed configuration")
            below |= _composed(base, depth + 1)
    return below | flat(content)
