"""Seconds that no layout of a call is below: what bounds the layouts that time did not suffice to price.

Rooflines of the rules that price the calls, without any of what a layout adds: a trainer's GEMMs at the device's
sustained rate on all GPUs at once, an engine's steps at what its host needs to launch them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mapper.execution_mode import GENERATOR
from simulator.cost.gemm_sizes import attention_products, latent_gemms, mlp_gemms
from simulator.rollout.steady import steady_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mapper.execution_mode import ExecutionMode
    from profiles.models.shape import ModelShape
    from profiles.records import Floats, Ints
    from simulator.facts import Facts
    from simulator.plan.dataflow import Call, Dataflow

TOUCHED_MATRICES = 3
"""GEMMs of a trained matrix: the product, the gradient of its input, its own gradient (which adapters spare)."""


@dataclass(frozen=True, eq=False)
class Unpriced:
    """Layouts of one role that time did not suffice to price, by the GPUs that they use, ``[U]``.

    Parameters
    ----------
    device_type
        Kind of GPU, as a position in ``Facts.device_types``.
    num_gpus
        GPUs that they use.
    least_s
        By call key, seconds that none of those on so many GPUs is below.
    """

    device_type: Ints
    num_gpus: Ints
    least_s: dict[str, Floats]

    @staticmethod
    def joined(parts: Sequence[Unpriced]) -> Unpriced | None:
        """All parts of one role; ``None`` of none."""
        if not parts:
            return None
        return Unpriced(
            np.concatenate([part.device_type for part in parts]),
            np.concatenate([part.num_gpus for part in parts]),
            {key: np.concatenate([part.least_s[key] for part in parts]) for key in parts[0].least_s},
        )


def unpriced_on(
    facts: Facts, flow: Dataflow, role: str, mode: ExecutionMode, position: int, num_gpus: Ints
) -> Unpriced:
    """What is known of the layouts of ``role`` on these numbers of GPUs, without pricing one."""
    numbers = np.unique(num_gpus)
    least = least_seconds(facts, flow, role, mode, numbers)
    return Unpriced(
        np.full(len(numbers), position, dtype=np.int64),
        numbers,
        {key: np.broadcast_to(seconds, numbers.shape) for key, seconds in least.items()},
    )


def least_seconds(
    facts: Facts, flow: Dataflow, role: str, mode: ExecutionMode, most_gpus: int | Ints
) -> Mapping[str, float | Floats]:
    """By call key, seconds that no layout of ``role`` on at most ``most_gpus`` GPUs of this kind is below."""
    if role == GENERATOR:
        of_actor = [call for call in facts.dataflow.calls if call.kind == "generate"]
        return {"transition": 0.0} | {call.key: _generation_s(facts, call, mode.steady_steps) for call in of_actor}
    out: dict[str, float | Floats] = {}
    for call in flow.calls_of(role):
        if call.kind in ("train", "forward"):
            out[call.key] = _gemms_s(facts, call, most_gpus)
        else:
            out[call.key] = _generation_s(facts, call, None) if call.kind == "generate" else 0.0
    return out


def _gemms_s(facts: Facts, call: Call, most_gpus: int | Ints) -> float | Floats:
    """GEMMs of all samples, in every layer, shared by all GPUs without loss, at the fastest sustained rate."""
    spec, work = facts.roles[call.role], facts.workload
    if facts.is_function(call.role):
        return 0.0
    flop = 2.0 * work.num_samples * work.trained_tokens_per_sample * _weights_of_token(spec.shape)
    if call.kind == "train":
        flop *= work.epochs * (TOUCHED_MATRICES - bool(facts.implementation.lora_rank))
    rate = max(facts.device.spec.sustained(x) for x in ("bf16", spec.precision, facts.implementation.training_dtype))
    return flop / rate / most_gpus * facts.correction(call.api, call.role)


def _weights_of_token(shape: ModelShape) -> float:
    """Elements of the matrices that a token is multiplied with in all layers, one copy of each, embeddings left out."""
    one = np.ones((), dtype=np.int64)
    kinds = attention_products(shape, one)
    attention = sum(float(n * k) * part for sizes, part in kinds for n, k in sizes)
    dense = sum(float(n * k) for n, k in mlp_gemms(shape, np.asarray(float(shape.ffn))))
    attention *= shape.num_attention_layers
    if shape.moe is None:
        return attention + shape.num_dense_layers * dense
    chosen = np.asarray(float(shape.moe.experts_per_token * shape.moe.expert_ffn))
    shared = np.asarray(float(shape.moe.shared_ffn))
    sparse = mlp_gemms(shape, chosen, shape.expert_width) + mlp_gemms(shape, shared) + latent_gemms(shape, chosen)
    of_experts = sum(float(n * k) for n, k in sparse)
    return attention + shape.num_dense_layers * dense + shape.num_moe_layers * of_experts


def _generation_s(facts: Facts, call: Call, steady_steps: int | None) -> float:
    """Decode steps of the longest response, or of a steady engine's share, at the launches and host time of a step."""
    work, engine, shape = facts.workload, facts.generation, facts.roles[call.role].shape
    response = work.response
    if steady_steps is not None:
        steps = steady_state(work.engine_prompt_tokens, response).mean_response / steady_steps
    elif response.kind == "fixed":
        steps = float(response.maximum)
    else:
        steps = float(response.quantile(np.asarray([1.0 - 0.5 / work.num_samples]))[0])
    if engine.first_token_in_prefill:
        steps *= max(1.0 - 1.0 / response.mean, 0.0)
    step_s = engine.launch_s_per_layer * shape.num_layers + engine.host_s_per_step
    return steps * step_s * facts.correction(call.api, call.role)
