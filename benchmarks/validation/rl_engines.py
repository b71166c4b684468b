"""The engines of a published RL iteration by the words of its row: releases, launches, drivers, expert dispatch."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.validation.dates import month_of
from benchmarks.validation.names import NotPredicted, integer, text_of
from benchmarks.validation.sweeps import facts_file, release_of
from profiles.engine_facts import load_generation_engine
from profiles.records import Basis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiles.engine_facts import GenerationEngine
    from simulator.facts import EngineDriver, ExpertDispatch


def training_engine(cells: Mapping[str, Any]) -> str:
    """The trainer's facts by the words of the row."""
    words = text_of(cells.get("train_backend")).lower() or text_of(cells.get("system")).lower()
    if "megatron" in words or "mcore" in words:
        release = re.search(r"nemo[- ]?rl\W+v?0\.(\d+)", text_of(cells.get("system")).lower())
        before = release is not None and int(release[1]) <= 4
        return "megatron-core@0.14" if before or "-before" in text_of(cells.get("id")) else "megatron-core@0.16"
    if words == "fsdp" and "verl" in text_of(cells.get("system")).lower():
        return "fsdp@2.6"  # its strategy of that name is FSDP1; the other is called fsdp2
    if re.search(r"deepspeed|zero", words):
        return "deepspeed@0.19"
    if any(name in words for name in ("fsdp", "dtensor", "automodel", "veomni", "torchtitan")):
        return "fsdp@2.13"
    raise NotPredicted(f"no training engine known for '{words}'")


def generation_engine(cells: Mapping[str, Any]) -> str:
    """The engine's facts by the words of the row: its family, and its release or the one of the row's date."""
    words = text_of(cells.get("gen_backend")).lower()
    families = {"tensorrtllm": r"trt|tensorrt", "sglang": r"sglang", "vllm": r"vllm"}
    for family, pattern in families.items():
        if re.search(pattern, words):
            return facts_file(cells, family, words)
    raise NotPredicted(f"no generation engine known for '{words or 'an unnamed engine'}'")


GRAPH_UNTIL = (0, 21)
"""First release of vLLM whose Ray executor sends messages by default: 0.20 has the switch and it is off, 0.22 on."""


EAGER_UNTIL = "2025-08"
"""verl's rollouts ran without CUDA graphs by default (``rollout.enforce_eager``) up to its release 0.5."""

LAUNCHES_OF = "vllm@0.3.1"
"""Facts with the host's time to launch a layer eagerly; it is carried over to later releases."""


def as_launched(engine: GenerationEngine, cells: Mapping[str, Any], assumed: list[str]) -> GenerationEngine:
    """The engine with the row's launch of decode steps: eager where the row or its system's default says so."""
    if re.search(r"disables vllm custom all-reduce", text_of(cells.get("notes")).lower()):
        engine = replace(engine, custom_all_reduce=False)
    stated = re.search(r"enforce_eager\W*(true|false)", text_of(cells.get("notes")).lower())
    written, of_verl = month_of(cells), text_of(cells.get("system")).lower().startswith("verl")
    early = bool(written) and written < EAGER_UNTIL and of_verl
    if engine.family != "vllm" or (stated[1] == "false" if stated else not early):
        return engine
    if not stated:
        assumed.append("decode steps launched eagerly, verl's default of that time")
    names = ("launch_s_per_layer", "collective_launch_s", "prefill_launch_s_per_layer")
    eager = load_generation_engine(LAUNCHES_OF)
    times = {name: getattr(eager, name) for name in names}
    bases = {**engine.bases, **dict.fromkeys(names, Basis.ASSUMED)}
    return replace(engine, cuda_graphs=False, bases=bases, **times)


def driver(cells: Mapping[str, Any]) -> EngineDriver:
    """Who starts an engine's steps: NeMo-RL runs those that span GPUs through Ray."""
    words = text_of(cells.get("gen_backend")).lower()
    if "nemo" not in text_of(cells.get("system")).lower() or integer(cells.get("gen_tp"), 1) == 1:
        return "own"
    return "ray-graph" if "vllm" in words and release_of(cells, "vllm", words) < GRAPH_UNTIL else "ray"


def dispatch(cells: Mapping[str, Any]) -> ExpertDispatch:
    """How tokens reach experts: Megatron-Core's flexible dispatcher is DeepEP or HybridEP, by its words."""
    words = text_of(cells.get("moe_dispatcher")).lower()
    if "deepep" in words:
        return "deepep"
    return "hybrid" if re.search(r"flex|hybrid", words) else "all-to-all"
