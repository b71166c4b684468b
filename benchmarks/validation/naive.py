"""The estimate that anybody makes without us: 6 N T at 40 % of the peak, and decode bound by memory bandwidth.

Every error of the reports stands beside this one's, so that nobody takes a number for good that a line of arithmetic
also gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from profiles.hardware import DeviceSpec
    from profiles.models.shape import ModelShape
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

MFU = 0.4


def passes_s(spec: DeviceSpec, shape: ModelShape, tokens: float, num_gpus: int, flop_per_param: float = 6.0) -> float:
    """Seconds of ``tokens`` through the model: 6 FLOPs a parameter and token for training, 2 for a forward pass."""
    return flop_per_param * shape.active_params_per_token * tokens / (MFU * spec.peak("bf16") * num_gpus)


def decode_step_s(
    spec: DeviceSpec, shape: ModelShape, num_gpus: int, sequences: float, context: float, weight_bytes: float = 2.0
) -> float:
    """Seconds in which ``num_gpus`` read the weights that a step touches and the cache of ``sequences``."""
    params = float(shape.num_params)
    if shape.moe is not None:
        moe = shape.moe
        touched = 1.0 - (1.0 - moe.experts_per_token / moe.num_experts) ** sequences
        routed = (shape.num_params - shape.active_params_per_token) / (1.0 - moe.experts_per_token / moe.num_experts)
        params -= routed * (1.0 - touched)
    cache = 2.0 * shape.kv_elements_per_token_per_layer * shape.num_layers * sequences * context
    return (params * weight_bytes + cache) / (spec.memory_bytes_per_s * num_gpus)


def iteration_s(facts: Facts, plan: Plan) -> dict[str, float]:
    """Seconds of an RL iteration by the columns of ``rl_steps.csv``, of the actor alone."""
    shape, spec, work = facts.roles["actor"].shape, facts.device.spec, facts.workload
    actor = plan.role("actor")
    engine, trained = actor.generation, actor.training
    assert engine is not None and trained is not None
    tokens, gpus = float(work.tokens), trained.num_gpus
    replicas = engine.dp
    sequences = min(work.num_samples / replicas, engine.max_num_seqs)
    waves = np.ceil(work.num_samples / replicas / sequences)
    context = work.engine_prompt_tokens + work.response.mean / 2
    step = decode_step_s(spec, shape, engine.tp * engine.pp, sequences, context)
    found = {"gen_time_s": waves * work.response.mean * step}
    forward = passes_s(spec, shape, tokens, gpus, 2.0)
    calls = [call.api for call in facts.dataflow.calls]
    found |= {"old_logprob_time_s": forward, "ref_logprob_time_s": forward}
    found["logprob_time_s"] = forward * sum(api in calls for api in ("compute_log_prob", "compute_ref_log_prob"))
    found["train_time_s"] = passes_s(spec, shape, tokens, gpus)
    found["critic_time_s"] = forward + found["train_time_s"]
    found["refit_time_s"] = 2.0 * shape.num_params / facts.group.inter_node_bytes_per_s
    learning = found["logprob_time_s"] + found["train_time_s"]
    sync = found["gen_time_s"] + learning
    found["step_time_s"] = sync if plan.schedule == "sync" else max(found["gen_time_s"], learning)
    found["tokens_per_s_per_gpu"] = tokens / found["step_time_s"] / plan.num_gpus
    return {name: float(value) for name, value in found.items()}
