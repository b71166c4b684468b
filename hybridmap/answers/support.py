"""What an engine's step rests on, by device, kind of model and number format: measured tables, rules, or nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from profiles.engine_facts import default_engine, engine_names, load_generation_engine, load_training_engine
from profiles.errors import NoBasisError
from profiles.hardware import ClusterGroup
from profiles.models.catalogue import load_model
from profiles.records import Basis
from profiles.store import load_device
from profiles.workload import LengthDistribution, Workload
from simulator.cost import engine_attention, engine_comms, engine_layer
from simulator.facts import Facts, RoleSpec
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout

if TYPE_CHECKING:
    from profiles.device import DeviceProfile
    from profiles.records import Priced

MODELS = {
    "dense": "qwen3-8b",
    "windowed, experts": "gpt-oss-120b",
    "experts": "qwen3-235b-a22b",
    "latent, experts": "deepseek-v3",
    "sparse, experts": "deepseek-v3.2",
    "linear, experts": "qwen3-next-80b-a3b-instruct",
    "Mamba": "nvidia-nemotron-nano-9b-v2",
}
"""A model of each kind of layers."""

PRECISIONS = ("bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4")
SEQUENCES, CONTEXT, GPUS = 64.0, 4096.0, 8
"""The step that is looked at: decode of so many sequences at this context, and a prompt as long, on eight GPUs."""

_READ = (Basis.MEASURED, Basis.INTERPOLATED)


@dataclass(frozen=True)
class Support:
    """One cell: of the GPU's time of a decode step and a prefill, the share that measured tables give.

    ``measured`` is ``None`` where there is no price, and ``reason`` then says why.
    """

    engine: str
    kind: str
    model: str
    precision: str
    measured: float | None
    reason: str = ""


def support_of(device: str, engines: tuple[str, ...] = ()) -> list[Support]:
    """Every cell of one device, for the newest release of each engine or for those named.

    Parameters
    ----------
    device
        A name of the catalogue, or the path of a device folder.
    engines
        ``engine@version`` of generation engines.

    Returns
    -------
    list[Support]
        By engine, kind of model and precision.

    Raises
    ------
    UnknownNameError
        There is no such device or engine.
    """
    profile = load_device(device)
    return [
        cell_of(profile, engine, kind, precision)
        for engine in engines or newest_engines()
        for kind in MODELS
        for precision in PRECISIONS
    ]


def newest_engines() -> tuple[str, ...]:
    """The newest profiled release of each engine whose operators were measured."""
    newest = {name.split("@")[0]: name for name in engine_names("generation")}
    return tuple(newest[family] for family in ("vllm", "sglang", "tensorrt-llm"))


def cell_of(profile: DeviceProfile, engine: str, kind: str, precision: str) -> Support:
    """One cell: of a device and an engine, the kind of a model and the number format of its weights."""
    model = MODELS[kind]
    try:
        work = _gpu_work(_facts(profile, engine, model, precision), precision)
    except NoBasisError as error:
        return Support(engine, kind, model, precision, None, str(error))
    parts = work.by_basis_s.reshape(len(Basis), -1).sum(axis=1)
    return Support(engine, kind, model, precision, float(sum(parts[b] for b in _READ) / parts.sum()))


def _gpu_work(facts: Facts, precision: str) -> Priced:
    """Layers and head of a decode step, and layers of a prefill, each of equal weight in the sum."""
    shape = facts.roles["actor"].shape
    layouts = GenerationLayouts.of([GenerationLayout(dp=1, tp=GPUS, max_num_seqs=int(SEQUENCES), kv_cache_bytes=0)])
    many, one, long = (np.asarray([[x]]) for x in (SEQUENCES, 1.0, CONTEXT))
    step = engine_layer.layer_work(facts, shape, layouts, many, precision)
    step = step + engine_attention.attention_of_decode(facts, shape, layouts, many, long, precision)
    step = (step + engine_comms.layer_reduces(facts, shape, layouts, many)) * float(shape.num_layers)
    step = step + engine_layer.sampling_head(facts, shape, layouts, many)
    prompt = engine_layer.layer_work(facts, shape, layouts, long, precision)
    prompt = prompt + engine_attention.attention_of_prefill(facts, shape, layouts, one, long, precision)
    prompt = prompt + engine_comms.layer_reduces(facts, shape, layouts, long)
    return step * (1.0 / step.s) + prompt * (1.0 / prompt.s)


def _facts(profile: DeviceProfile, engine: str, model: str, precision: str) -> Facts:
    work = Workload(1, 1, 1, LengthDistribution.fixed(1), 1, 1, 0.0, None)
    group = replace(ClusterGroup.of(profile.spec, 1), gpus_per_node=GPUS)
    roles = {"actor": RoleSpec(load_model(model), precision)}
    trainer = load_training_engine(default_engine("training"))
    return Facts("grpo", roles, work, group, profile, trainer, load_generation_engine(engine)).of_engine
