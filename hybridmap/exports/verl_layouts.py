"""A model's layout as keys of verl's engines: Megatron-Core and FSDP, batches, recomputation, offload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import largest_divisor

if TYPE_CHECKING:
    from hybridmap.exports.export import Settings, Source
    from simulator.plan import ParallelLayout, Pool, RolePlan


def trained_keys(role: str, place: str, source: Source, fsdp: bool, out: Settings) -> None:
    """Keys of a trained role: its engine, batches and offload."""
    entry, work = source.plan.role(role), source.facts.workload
    assert entry.training is not None, f"{role} is trained"
    layout = whole_pool(role, "training", entry.training, source.plan.pool_of(role), out)
    model = "critic.model" if role == "critic" else "actor_rollout_ref.model"
    steps = source.minibatch_prompts * work.samples_per_prompt
    out.put({
        "ppo_mini_batch_size": source.minibatch_prompts, "ppo_epochs": work.epochs, "use_dynamic_bsz": False,
        "ppo_micro_batch_size_per_gpu": micro_batch(role, "training", layout, steps, out),
    }, place)  # fmt: skip
    engine_keys(role, place, entry, layout, fsdp, source, out)
    out.put({"enable_gradient_checkpointing": layout.recompute != "none" if fsdp else False}, model)


def micro_batch(role: str, stage: str, layout: ParallelLayout, samples: int, out: Settings) -> int:
    """The plan's micro-batch, or the largest below it that verl can cut a batch of ``samples`` into."""
    if samples % layout.dp:
        out.cannot(f"{role}.{stage}.dp", f"{samples:,} samples do not divide into {layout.dp} data-parallel groups")
        return layout.micro_batch
    found = largest_divisor(layout.micro_batch, samples // layout.dp)
    if found != layout.micro_batch:
        out.cannot(
            f"{role}.{stage}.micro_batch",
            f"verl cuts {samples // layout.dp:,} samples of a rank into equal micro-batches: {found} in place of "
            f"{layout.micro_batch}",
        )
    return found


def whole_pool(role: str, stage: str, layout: ParallelLayout, pool: Pool, out: Settings) -> ParallelLayout:
    """The layout spread over the whole pool, as verl does: fewer pipeline stages where they do not divide it."""
    if layout.num_gpus == pool.num_gpus:
        return layout
    ranks, slice_ = pool.num_gpus, layout.tp * layout.cp
    if ranks % slice_:
        layout, slice_ = layout.model_copy(update={"tp": 1, "cp": 1, "ep": 1}), 1
    pp = next(n for n in range(layout.pp, 0, -1) if ranks % (slice_ * n) == 0)
    filled = layout.model_copy(update={"pp": pp, "dp": ranks // (slice_ * pp)})
    out.cannot(
        f"{role}.{stage}",
        f"verl uses all {ranks:,} GPUs of a pool, the plan {layout.num_gpus:,}; exported as t{filled.tp} p{filled.pp} "
        f"d{filled.dp}",
    )
    return filled


def last_stage_layers(num_layers: int, pp: int) -> int | None:
    """Layers of the last pipeline stage where the stages are uneven, the others rounded up; else ``None``."""
    return None if num_layers % pp == 0 else num_layers - (pp - 1) * -(-num_layers // pp)


def engine_keys(
    role: str, place: str, entry: RolePlan, layout: ParallelLayout, fsdp: bool, source: Source, out: Settings
) -> None:
    """Keys of a trained role's engine, FSDP or Megatron-Core, and its offload."""
    section = f"{place}.{('fsdp' if role == 'critic' else 'fsdp_config') if fsdp else 'megatron'}"
    if fsdp:
        fsdp_keys(role, section, layout, out)
        out.put({"strategy": "fsdp2"}, place)
    else:
        megatron_keys(role, section, layout, out)
        _recompute(role, section, layout, out)
        last = last_stage_layers(source.facts.roles[role].shape.num_layers, layout.pp)
        if last is not None:
            out.put({f"+{section}.override_transformer_config.num_layers_in_last_pipeline_stage": last})
    out.put(
        {"param_offload": "parameters" in entry.offload, "optimizer_offload": "optimizer" in entry.offload}, section
    )


def megatron_keys(role: str, section: str, layout: ParallelLayout, out: Settings, forward: bool = False) -> None:
    """Degrees in Megatron-Core; a model that only goes ``forward`` has no optimizer to shard."""
    out.put({
        "tensor_model_parallel_size": layout.tp, "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp, "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": 1 if layout.ep > 1 else None,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
    }, section)  # fmt: skip
    if forward:
        return
    out.put({
        "use_distributed_optimizer": layout.zero_stage >= 1, "use_megatron_fsdp": layout.zero_stage == 3,
        "sequence_parallel": layout.sequence_parallel and layout.tp > 1,
    }, section)  # fmt: skip
    if layout.zero_stage == 2:
        out.cannot(
            f"{role}.training.zero_stage", "verl's Megatron shards the optimizer (ZeRO 1), not the gradients too"
        )


def _recompute(role: str, section: str, layout: ParallelLayout, out: Settings) -> None:
    keys: dict[str, Any] = {"recompute_granularity": None if layout.recompute == "none" else layout.recompute}
    if layout.recompute == "full":
        keys |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    elif layout.recompute == "selective":
        keys["recompute_modules"] = ["layernorm"]
        out.cannot(
            f"{role}.training.recompute",
            "the plan also computes the product inside the feed-forward block again; Megatron-Core has no such module "
            "for dense layers, so only the norms are, and the run keeps a little more than planned",
        )
    out.put(keys, f"{section}.override_transformer_config")


def fsdp_keys(role: str, section: str, layout: ParallelLayout, out: Settings, forward: bool = False) -> None:
    """Sharding in FSDP; degrees that it does not have are points."""
    for name, degree in (("tp", layout.tp), ("pp", layout.pp), ("ep", layout.ep)):
        if degree > 1:
            out.cannot(f"{role}.{name}", f"verl's FSDP has no {name}; the plan has {degree}")
    out.put({
        "fsdp_size": -1, "reshard_after_forward": layout.zero_stage == 3,
        "ulysses_sequence_parallel_size": layout.cp,
    }, section)  # fmt: skip
    if layout.zero_stage < 2 and not forward:
        out.cannot(
            f"{role}.training.zero_stage",
            f"FSDP shards gradients and optimizer at least (ZeRO 2); the plan has stage {layout.zero_stage}",
        )
