"""Reading a verl run: a launch script, a list of Hydra overrides, or a whole configuration; with verl 0.9.1's defaults.

Only what decides placement, layouts, batches and memory is looked at. A value that points to another key
(``${...}``) counts as not given, since the defaults below point the same way.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridmap.job_problems import described
from hybridmap.yaml_file import read_yaml
from profiles.errors import FileFormatError, InputError
from profiles.yaml_text import parse_yaml
from simulator.plan import MOST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OVERRIDE = re.compile(r"^\+{0,2}([A-Za-z_][\w.@/]*)=(.*)$", re.DOTALL)
ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?[-=]([^}]*))?\}?")
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Same:
    """A default that is another key's value."""

    key: str


_ACTOR, _ROLLOUT, _REF, _CRITIC = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.ref",
    "critic",
)

DEFAULTS: dict[str, Any] = {
    "model_engine": "dp",
    "trainer.nnodes": 1, "trainer.n_gpus_per_node": 8, "trainer.v1.trainer_mode": "sync",
    "trainer.v1.separate_async.parameter_sync_step": 4, "trainer.v1.sampler.max_off_policy_threshold": 8,
    "data.train_batch_size": 1024, "data.max_prompt_length": 512, "data.max_response_length": 512,
    "algorithm.adv_estimator": "gae", "algorithm.use_kl_in_reward": False,
    "algorithm.rollout_correction.bypass_mode": False,
    "actor_rollout_ref.model.path": None, "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.model.lora_rank": 0,
    f"{_ACTOR}.use_kl_loss": False, f"{_ACTOR}.ppo_mini_batch_size": 256, f"{_ACTOR}.ppo_epochs": 1,
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": None, f"{_ACTOR}.use_dynamic_bsz": False,
    f"{_ACTOR}.ppo_max_token_len_per_gpu": 16384,
    f"{_ROLLOUT}.name": "vllm", f"{_ROLLOUT}.n": 1, f"{_ROLLOUT}.tensor_model_parallel_size": 2,
    f"{_ROLLOUT}.data_parallel_size": 1, f"{_ROLLOUT}.pipeline_model_parallel_size": 1,
    f"{_ROLLOUT}.expert_parallel_size": 1, f"{_ROLLOUT}.max_num_seqs": 256,
    f"{_ROLLOUT}.gpu_memory_utilization": 0.5, f"{_ROLLOUT}.nnodes": 0,
    f"{_ROLLOUT}.n_gpus_per_node": Same("trainer.n_gpus_per_node"),
    f"{_ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes": None,
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": Same(f"{_ACTOR}.ppo_micro_batch_size_per_gpu"),
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": Same(f"{_ACTOR}.ppo_max_token_len_per_gpu"),
    f"{_REF}.log_prob_micro_batch_size_per_gpu": Same(f"{_ACTOR}.ppo_micro_batch_size_per_gpu"),
    f"{_REF}.log_prob_max_token_len_per_gpu": Same(f"{_ACTOR}.ppo_max_token_len_per_gpu"),
    f"{_CRITIC}.enable": None, f"{_CRITIC}.model.path": None,
    f"{_CRITIC}.model.enable_gradient_checkpointing": True,
    f"{_CRITIC}.ppo_micro_batch_size_per_gpu": None, f"{_CRITIC}.ppo_max_token_len_per_gpu": 32768,
    f"{_CRITIC}.use_dynamic_bsz": Same(f"{_ACTOR}.use_dynamic_bsz"),
    "reward.reward_model.enable": False, "reward.reward_model.model_path": None,
    "reward.reward_model.enable_resource_pool": False, "reward.reward_model.nnodes": 0,
    "reward.reward_model.n_gpus_per_node": 8, "reward.reward_model.rollout.tensor_model_parallel_size": 2,
    "reward.reward_model.rollout.max_num_batched_tokens": 8192,
    "hybridmap.critic.nnodes": None, "hybridmap.critic.n_gpus_per_node": 8,
    "hybridmap.reward.nnodes": None, "hybridmap.reward.n_gpus_per_node": 8,
}  # fmt: skip
"""The defaults of verl 0.9.1 for the keys that are read; the ``hybridmap`` ones are those of the trainer subclass."""

_ENGINE_DEFAULTS: dict[str, Any] = {
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
    "expert_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": None, "use_distributed_optimizer": True,
    "use_megatron_fsdp": False, "sequence_parallel": True, "param_offload": False, "optimizer_offload": False,
    "reshard_after_forward": True, "ulysses_sequence_parallel_size": 1, "fsdp_size": -1,
    "override_transformer_config.recompute_granularity": None, "micro_batch_size_per_gpu": None,
    "infer_micro_batch_size_per_gpu": None,
}  # fmt: skip
_INHERITED = ("tensor", "pipeline", "context", "expert", "virtual")


@dataclass(frozen=True)
class VerlConfig:
    """The settings that a run gives, by key."""

    source: str
    given: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """The value of a key, given or by default."""
        if key in self.given:
            return self.given[key]
        default = _default(key)
        return self.get(default.key) if isinstance(default, Same) else default

    def whole(self, key: str, most: int = MOST) -> int:
        """A value that must be a whole number from 1 to ``most``."""
        value = self.get(key)
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(
                f"{self.source}: {key}: got {described(value)}, expected a whole number from 1 to {most:,}"
            )
        return value

    def whole_or(self, key: str, default: int) -> int:
        """As ``whole``; ``default`` where the value is null."""
        return default if self.get(key) is None else self.whole(key)

    def share(self, key: str) -> float:
        """A value that must lie between 0 and 1."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise InputError(f"{self.source}: {key}: got {described(value)}, expected a share between 0 and 1")
        return float(value)


def _default(key: str) -> Any:
    if key in DEFAULTS:
        return DEFAULTS[key]
    for section in (f"{_ACTOR}.megatron.", f"{_ACTOR}.fsdp_config.", f"{_REF}.megatron.", f"{_REF}.fsdp_config.",
                    f"{_CRITIC}.megatron.", f"{_CRITIC}.fsdp."):  # fmt: skip
        name = key.removeprefix(section)
        if name != key:
            if section == f"{_REF}.megatron." and name.startswith(_INHERITED):
                return Same(f"{_ACTOR}.megatron.{name}")
            return _ENGINE_DEFAULTS[name]
    raise KeyError(key)


def read_verl_config(path: Path) -> VerlConfig:
    """Read a launch script, an ``overrides.yaml`` or a ``config.yaml`` of Hydra's output folder.

    Raises
    ------
    InputError
        The file cannot be read.
    FileFormatError
        It holds no override and no configuration of verl.
    """
    if path.suffix in (".yaml", ".yml"):
        content = read_yaml(path)
        given = dict(_overrides(content)) if isinstance(content, list) else _flat(content)
    else:
        given = dict(_overrides(_words(_text(path))))
    known = {key: value for key, value in given.items() if not _points_away(value)}
    if not any(key.startswith(("actor_rollout_ref.", "trainer.", "data.")) for key in known):
        raise FileFormatError(f"{path}: holds no key of verl, such as actor_rollout_ref.rollout.name=vllm")
    return VerlConfig(str(path), known)


def _points_away(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)  # a device has no end
        if len(raw) > MOST_BYTES:
            raise FileFormatError(f"{path}: larger than 1 MiB, which no launch script is")
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _words(text: str) -> list[str]:
    """The words of a shell script, with variables that it sets itself, or gives a default, filled in."""
    try:
        lines = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise FileFormatError(f"not a shell script: {error}") from None
    variables: dict[str, str] = {}
    words = []
    for word in lines:
        filled = VARIABLE.sub(lambda m: variables.get(m[1], m[2] if m[2] is not None else m[0]), word)
        if (found := ASSIGNMENT.match(filled)) and "." not in found[1] and found[1].isupper():
            variables[found[1]] = found[2]
        words.append(filled)
    return words


def _overrides(words: list[Any]) -> Iterator[tuple[str, Any]]:
    config_name = None
    for word in words:
        if not isinstance(word, str):
            continue
        if word.startswith(("--config-name=", "--config-name ")):
            config_name = word[14:]
        found = OVERRIDE.match(word)
        if found and "$" not in found[2]:
            value = _value(found[2])
            yield from _flat(value, f"{found[1]}.").items() if isinstance(value, dict) else [(found[1], value)]
    if config_name is not None and "megatron" in config_name:
        yield "model_engine", "megatron"


def _value(text: str) -> Any:
    if text in ("null", "None", ""):
        return None
    try:
        return parse_yaml(text, "value")
    except FileFormatError:
        return text


def _flat(content: object, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    out: dict[str, Any] = {}
    if isinstance(content, dict):
        for key, value in content.items():
            inner = _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
            out |= inner
    return out
