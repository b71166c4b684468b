"""Protects that no constant of a generation engine stands in its file without a price or a memory that reads it."""

from dataclasses import fields, replace

import numpy as np
import pytest

from profiles.engine_facts import GenerationEngine
from profiles.models.catalogue import load_model
from simulator.cost import generate
from simulator.facts import Facts, Implementation
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout
from simulator.serving.engine import kv_tokens, serve_on
from simulator.serving.run import Load
from simulator.speculation import Speculation
from tests.builders import make_facts

MODEL = load_model("qwen3-8b")
ONE = GenerationLayout(dp=1, tp=2, max_num_seqs=2048, kv_cache_bytes=0)
OF_TRANSITIONS = {"transition_fixed_s", "reload_bytes_per_s", "gather_s_per_layer_per_gpu"} | {
    "sync_s_per_byte",
    "sync_growth_per_doubling",
    "gathers_layers",
}
"""Read by time and memory of weights on their way into the engine: tests of reshard and static_batches."""

ELSEWHERE = {"call_rank_s", "wake_s", "shared_experts_beside", "tuned_experts"} | {
    "picked_prompt_ratio",
    "picked_prompt_ratio_with_fp4",
}
"""Read where calls of several ranks are played (test_host_costs), where a mixture has shared experts (test_moe), and
where attention picks blocks of keys (test_indexer)."""

NUMBERS = [f.name for f in fields(GenerationEngine) if f.type == "float"]


def seen(engine: GenerationEngine) -> tuple[float, ...]:
    """What one engine makes of a rollout and of a served load that its cache does not hold."""
    facts = make_facts("grpo", "qwen3-8b", device="h100-80gb-sxm", generation="vllm@0.12", nodes=2, gpus_per_node=1)
    facts = replace(facts, generation=engine, implementation=Implementation(engine_driver="ray-graph"))
    layouts = GenerationLayouts.of([ONE])
    rollout = float(generate.generation_cost(facts, MODEL, layouts).time.s[0])
    load = Load(
        3072,
        1024,
        400,
        500,
        front_end_s=engine.front_end_s,
        front_end_s_per_prompt_token=engine.front_end_s_per_prompt_token,
    )
    layout = ONE.model_copy(update={"max_num_seqs": int(engine.max_num_seqs)})
    served = serve_on(facts, MODEL, layout, load)
    reserve = facts.generation.memory_reserve_bytes
    return (rollout, served.ttft_s, served.tpot_s, reserve)


@pytest.mark.parametrize("name", sorted(set(NUMBERS) - OF_TRANSITIONS - ELSEWHERE))
def test_every_constant_changes_a_prediction(name: str) -> None:
    base = make_facts("grpo", "qwen3-8b", device="h100-80gb-sxm", generation="vllm@0.12").generation
    if name == "captured_tokens":  # what a step beyond the graphs waits for
        base = replace(base, prefill_launch_s_per_layer=0.05)
    value = getattr(base, name)
    changed = replace(
        base, **{name: 0.5 * value if value else {"admits_with_output": 1.0, "keeps_for_running": 1.0}.get(name, 0.05)}
    )
    assert not np.allclose(seen(base), seen(changed), rtol=1e-9), f"{name}: no prediction reads it"


SWITCHES = {
    "cuda_graphs": False,
    "prefix_sharing": False,
    "scheduler": "prefill-first",
    "plans_ahead": True,
    "custom_all_reduce": False,
    "fp8_cache_with": ("fp8",),
    "fused_quantization": ("fp8",),
    "mxfp8_activations": True,
    "drafts_in_graph": True,
    "grouped_query_kernels": (),
    "window_frees_cache": False,
    "share_holds_activations": False,
    "static_batches": True,
    "first_token_in_prefill": True,
}
"""Every rule of an engine that is no number, turned to what vllm@0.12 has not."""

CHOOSES = {
    "name",
    "family",
    "release",
    "facts_hash",
    "stands_in",
    "settings",
    "shares_weights",
    "mixture_parallel",
    "gathers_every_batch",
    "caches_every_head",
    "keeps_workspace",
}
"""Which tables, releases, transitions and layouts there are: tests of stores, other_releases, reshard, static_batches
and the candidates."""


def test_every_rule_is_turned() -> None:
    other = {f.name for f in fields(GenerationEngine)} - set(NUMBERS) - CHOOSES - {"bases"}
    assert other == set(SWITCHES)


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_every_rule_changes_a_prediction(name: str) -> None:
    device, precision = ("b200-sxm", "mxfp4") if name == "mxfp8_activations" else ("h100-80gb-sxm", "fp8")
    facts = make_facts("grpo", "gpt-oss-20b", device=device, generation="vllm@0.12")
    facts = replace(facts, workload=replace(facts.workload, samples_per_prompt=8))
    facts = replace(facts, speculation=Speculation((0.8, 0.6)) if name == "drafts_in_graph" else None)
    assert getattr(facts.generation, name) != SWITCHES[name]
    turned = replace(facts, generation=replace(facts.generation, **{name: SWITCHES[name]}))
    shape, layout = load_model("gpt-oss-20b"), ONE.model_copy(update={"max_num_seqs": 2})
    layouts = GenerationLayouts.of([layout])

    def all_of(facts: Facts) -> list[float]:
        cost = generate.generation_cost(facts, shape, layouts, precision).time.s
        served = serve_on(
            facts, shape, layout, Load(6144, 1024, 80, 100), precision
        )  # two prompts are over a step's budget
        return [*cost, served.ttft_s, served.tpot_s, kv_tokens(facts, shape, layout, precision)]

    assert not np.allclose(all_of(facts), all_of(turned), rtol=1e-9), f"{name}: no prediction reads it"
