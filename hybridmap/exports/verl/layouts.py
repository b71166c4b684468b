"""A model's layout as keys of verl's engines: Megatron-Core and FSDP, batches, recomputation, offload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.recompute import recomputed_modules
from hybridmap.exports.verl.places import uses_fsdp

if TYPE_CHECKING:
    from hybridmap.exports.export import Settings, Source
    from profiles.models.shape import ModelShape
    from simulator.plan.plan import ParallelLayout, RolePlan


FP8_RECIPES = {"fp8_block": ("e4m3", "blockwise"), "fp8": ("hybrid", "tensorwise")}
"""Number formats of training GEMMs as Megatron-Core's transformer configuration names them: format and recipe."""


def trained_keys(role: str, place: str, source: Source, out: Settings) -> None:
    """Keys of a trained role: its engine, batches and offload."""
    entry, work = source.plan.role(role), source.facts.workload
    layout = entry.training
    assert layout is not None, f"{role} is trained"
    model = "critic.model" if role == "critic" else "actor_rollout_ref.model"
    budget = token_budget(source, layout)
    out.put({"ppo_mini_batch_size": source.minibatch_prompts, "ppo_epochs": work.epochs}, place)
    out.put({f"{place}.use_dynamic_bsz": budget is not None})
    if budget is None:
        out.put({f"{place}.ppo_micro_batch_size_per_gpu": layout.micro_batch})
    elif role == "actor":
        out.put({f"{place}.ppo_max_token_len_per_gpu": budget})
    engine_keys(role, place, entry, layout, source, out)
    fsdp = uses_fsdp(source)
    out.put({"enable_gradient_checkpointing": layout.recompute != "none" if fsdp else False}, model)
    rank = source.facts.implementation.lora_rank
    if rank:
        out.put({f"{model}.{'lora_rank' if fsdp else 'lora.rank'}": rank})


def token_budget(source: Source, layout: ParallelLayout) -> int | None:
    """Tokens of a micro-batch on one GPU where they are counted: verl multiplies by the ranks that share a sequence."""
    tokens = source.tokens_of(layout)
    return None if tokens is None else -(-tokens // layout.cp)


def last_stage_layers(num_layers: int, pp: int) -> int | None:
    """Layers of the last pipeline stage where the stages are uneven, the others rounded up; else ``None``."""
    return None if num_layers % pp == 0 else num_layers - (pp - 1) * -(-num_layers // pp)


def engine_keys(role: str, place: str, entry: RolePlan, layout: ParallelLayout, source: Source, out: Settings) -> None:
    """Keys of a trained role's engine, FSDP or Megatron-Core, and its offload."""
    fsdp = uses_fsdp(source)
    section = f"{place}.{('fsdp' if role == 'critic' else 'fsdp_config') if fsdp else 'megatron'}"
    if fsdp:
        fsdp_keys(section, layout, out)
        out.put({"strategy": "fsdp2"}, place)
    else:
        megatron_keys(section, layout, out)
        _recompute(section, layout, source.facts.roles[role].shape, out)
        out.put(kernel_keys(source.facts.roles[role].shape), f"+{section}.override_transformer_config")
        found = FP8_RECIPES.get(source.facts.implementation.training_dtype)
        if found is not None:
            keys = dict(zip(("fp8", "fp8_recipe"), found, strict=True))
            out.put(keys, f"+{section}.override_transformer_config")
        last = last_stage_layers(source.facts.roles[role].shape.num_layers, layout.pp)
        if last is not None:
            out.put({f"+{section}.override_transformer_config.num_layers_in_last_pipeline_stage": last})
    out.put(
        {"param_offload": "parameters" in entry.offload, "optimizer_offload": "optimizer" in entry.offload}, section
    )


def kernel_keys(shape: ModelShape) -> dict[str, Any]:
    """What verl's own Megatron recipes tell the transformer: rotary embedding in one kernel, routers in FP32.

    Source: examples/grpo_trainer/run_nemotron_nano_v3_30b_a3b_megatron.sh:115, 117. Megatron-Core has that kernel for
    multi-head latent attention with YaRN alone, so it is left out there.
    """
    fused = {} if shape.mla is not None else {"apply_rope_fusion": True}
    return fused | ({} if shape.moe is None else {"moe_router_dtype": "fp32"})


def megatron_keys(section: str, layout: ParallelLayout, out: Settings, forward: bool = False) -> None:
    """Degrees in Megatron-Core; a model that only goes ``forward`` has no optimizer to shard."""
    out.put(
        {
            "tensor_model_parallel_size": layout.tp,
            "pipeline_model_parallel_size": layout.pp,
            "context_parallel_size": layout.cp,
            "expert_model_parallel_size": layout.ep,
            "expert_tensor_parallel_size": 1 if layout.ep > 1 else None,
            "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        },
        section,
    )
    if forward:
        return
    out.put(
        {
            "use_distributed_optimizer": layout.zero_stage >= 1,
            "use_megatron_fsdp": layout.zero_stage == 3,
            "sequence_parallel": layout.sequence_parallel and layout.tp > 1,
        },
        section,
    )


def _recompute(section: str, layout: ParallelLayout, shape: ModelShape, out: Settings) -> None:
    keys: dict[str, Any] = {"recompute_granularity": None if layout.recompute == "none" else layout.recompute}
    if layout.recompute == "full":
        keys |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    elif layout.recompute == "selective":
        keys["recompute_modules"] = recomputed_modules(shape)
    out.put(keys, f"{section}.override_transformer_config")


def fsdp_keys(section: str, layout: ParallelLayout, out: Settings) -> None:
    """Sharding in FSDP, and Ulysses, which is its context parallelism."""
    out.put(
        {"fsdp_size": -1, "reshard_after_forward": layout.zero_stage == 3, "ulysses_sequence_parallel_size": layout.cp},
        section,
    )
