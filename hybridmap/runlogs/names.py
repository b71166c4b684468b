"""What each system calls its metrics, with the file and line of its source that writes them.

verl 0.9.1 ``trainer/ppo/ray_trainer.py`` 1508 to 1730 and ``trainer/ppo/v1/trainer_base.py`` 473 to 609 time the
stages, ``trainer/ppo/metric_utils.py`` 611 writes them as ``timing_s/*``. NeMo-RL 0.7.0 ``algorithms/grpo.py`` 2258 to
2928 and 3658 to 4168 time, 3100 and 4305 log them under ``timing/train``. slime 0.3.1
``utils/train_metric_utils.py`` 23 and ``ray/rollout.py`` 1304 write ``perf/*_time`` and ``rollout/*``. OpenRLHF 0.11.2
``trainer/ppo_trainer.py`` 256 and 544 times four phases, 424 has the lengths, 550 and ``trainer/ppo_trainer_async.py``
242 print them; ``utils/logging_utils.py`` 98 and 130 put ``train/`` before each in W&B and TensorBoard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridmap.runlogs.records import ALL_SCORES, BOTH_LOG_PROBS, BOTH_UPDATES, CHECKPOINT, STEP, VALIDATION

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class MetricNames:
    """The metrics of a system: calls and lengths by metric, and what all of its metrics of times begin with.

    Several metrics of one call are added up. ``memory`` and ``allocated`` are peaks in GiB, reserved
    and in use; the greatest of them counts.
    """

    system: str
    prefix: str
    seconds: Mapping[str, str]
    lengths: Mapping[str, str]
    memory: tuple[str, ...] = ()
    allocated: tuple[str, ...] = ()


VERL = MetricNames(
    "verl",
    "timing_s/",
    {
        "timing_s/gen": "generate_sequences",
        "timing_s/gen_max": "generate_sequences:greedy",
        "timing_s/old_log_prob": "compute_log_prob",
        "timing_s/ref": "compute_ref_log_prob",
        "timing_s/values": "compute_values",
        "timing_s/reward": "compute_reward",
        "timing_s/adv": "compute_advantage",
        "timing_s/update_critic": "update_critic",
        "timing_s/update_actor": "update_actor",
        "timing_s/update_weights": "transition",
        "timing_s/sync_rollout_weights": "transition",
        "timing_s/step": STEP,
        "timing_s/testing": VALIDATION,
        "timing_s/save_checkpoint": CHECKPOINT,
    },
    {
        "response_length/mean": "response_mean",
        "response_length/max": "response_max",
        "response_length/clip_ratio": "clipped",
        "prompt_length/mean": "prompt_mean",
    },
    ("perf/max_memory_reserved_gb",),
    ("perf/max_memory_allocated_gb",),
)

_NEMO_SECONDS = {
    "generation": "generate_sequences",
    "exposed_generation": "generate_sequences",
    "prepare_for_generation/total": "transition",
    "weight_sync": "transition",
    "policy_and_reference_logprobs": BOTH_LOG_PROBS,
    "reward_calculation": "compute_reward",
    "advantage_calculation": "compute_advantage",
    "policy_training": "update_actor",
    "total_step_time": STEP,
    "checkpointing": CHECKPOINT,
}
NEMO_RL = MetricNames(
    "nemo-rl",
    "timing/train/",
    {
        **{f"timing/train/{name}": call for name, call in _NEMO_SECONDS.items()},
        "timing/validation/total_validation_time": VALIDATION,
    },
    {
        "train/mean_gen_tokens_per_sample": "response_mean",
        "train/mean_prompt_length": "prompt_mean",
    },
)

SLIME = MetricNames(
    "slime",
    "perf/",
    {
        "perf/rollout_time": "generate_sequences",
        "perf/log_probs_time": "compute_log_prob",
        "perf/ref_log_probs_time": "compute_ref_log_prob",
        "perf/actor_train_time": "update_actor",
        "perf/update_weights_time": "transition",
        "perf/step_time": STEP,
        "perf/save_model_time": CHECKPOINT,
    },
    {
        "rollout/response_len/mean": "response_mean",
        "rollout/response_len/max": "response_max",
        "rollout/truncated_ratio": "clipped",
    },
)

OPENRLHF = MetricNames(
    "openrlhf",
    "train/timing/",
    {
        "train/timing/generation": "generate_sequences",
        "train/timing/make_experience": ALL_SCORES,
        "train/timing/ppo_train": BOTH_UPDATES,
        "train/timing/broadcast": "transition",
        "train/timing/step_total": STEP,
    },
    {
        "train/rollout/response_length_mean": "response_mean",
        "train/rollout/truncated_rate": "clipped",
    },
)

SYSTEMS = (VERL, NEMO_RL, SLIME, OPENRLHF)
KNOWN = {name for system in SYSTEMS for name in (*system.seconds, *system.lengths, *system.memory, *system.allocated)}
"""Every metric that says anything here."""
