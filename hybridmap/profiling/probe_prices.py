"""The price of what a probe measured, by the simulator's own functions: what the engine's constants are fitted with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from profiles.hardware import ClusterGroup
from profiles.host_times import BEFORE_CALLS, slowed
from profiles.models.shape import ModelShape
from profiles.workload import LengthDistribution, Workload
from simulator.cost.pricing import call_cost
from simulator.cost.role_layouts import RoleLayouts
from simulator.facts import Facts, Implementation, RoleSpec
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import GenerationLayout, ParallelLayout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiles.device import DeviceProfile
    from profiles.engine_facts import GenerationEngine, TrainingEngine

EAGER = Implementation(kernels="eager", loss_head="unfused")
"""How the torch-native engine is built: uncompiled, log-softmax in tensor operations."""
ROLE_OF = {
    "generate_sequences": "actor",
    "compute_values": "critic",
    "compute_ref_log_prob": "reference",
    "update_critic": "critic",
    "update_actor": "actor",
}


def shape_of(row: Mapping[str, Any]) -> ModelShape:
    """The model of a row of table ``engine_step``."""
    kind = str(row["model_type"])
    return ModelShape(
        name="probe",
        architecture=kind,
        hidden=row["hidden"],
        num_layers=row["layers"],
        vocab=row["vocab"],
        num_heads=row["heads"],
        num_kv_heads=row["kv_heads"],
        head_dim=row["head_dim"],
        ffn=row["ffn"],
        max_position=1 << 20,
        tied_embeddings=row["tied"] == 2,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
    )


def probe_facts(
    row: Mapping[str, Any],
    device: DeviceProfile,
    training: TrainingEngine,
    generation: GenerationEngine,
    ranks: int = 1,
) -> Facts:
    """The job that a probe was, on ranks of the device."""
    dtype = str(row["dtype"])
    spec = RoleSpec(shape_of(row), dtype)
    work = Workload(row["samples"], 1, row["prompt"], LengthDistribution.fixed(row["response"]), 1, row["minibatches"])
    return Facts(
        algorithm="ppo",
        roles=dict.fromkeys(("actor", "critic", "reference", "reward"), spec),
        workload=work,
        group=ClusterGroup(device.name, 1, ranks, device.spec.inter_node_bytes_per_s_per_node, ranks),
        device=device,
        training=slowed(training, 0.0, BEFORE_CALLS),
        generation=generation,
        implementation=replace(EAGER, training_dtype=dtype),
    )


def price_of(row: Mapping[str, Any], facts: Facts, ranks: int = 1) -> float:
    """Predicted seconds of the row's call."""
    layout = Layouts.of([ParallelLayout(dp=ranks, micro_batch=row["micro_batch"], zero_stage=int(ranks > 1))])
    engine = GenerationLayouts.of([GenerationLayout(dp=ranks, max_num_seqs=row["samples"], kv_cache_bytes=0)])
    layouts = RoleLayouts(training=layout, inference=layout, generation=engine)
    role = ROLE_OF[str(row["call"])]
    call = next(c for c in facts.dataflow.calls_of(role) if c.api == row["call"])
    return float(call_cost(facts, call, layouts).time.s[0])
