"""Predict the HybridFlow bars of the paper's Figs 9 and 15 and print the errors.

    python -m benchmarks.paper_figures

Fig 9: the mapper's own plan for each bar. Fig 15: the published training layout (p1 t8 d2, everything colocated)
and each generation TP size, with the largest number of sequences in flight whose KV cache fits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from mapper.layout_space import WAVES
from mapper.search import find_plan
from profiles.catalogue import load_model
from profiles.engine_facts import load_generation_engine, load_training_engine
from profiles.hardware import ClusterGroup
from profiles.store import load_device
from profiles.workload import LengthDistribution, Workload
from simulator import memory, pricing
from simulator.facts import Facts, RoleSpec
from simulator.layouts import GenerationLayouts, Layouts
from simulator.plan import ParallelLayout

PUBLISHED = Path(__file__).parent / "published"
MODELS = {"7B": "llama-2-7b", "13B": "llama-2-13b", "34B": "codellama-34b", "70B": "llama-2-70b"}
ROLES = ("actor", "critic", "reference", "reward")

ENGINE_PROMPT_TOKENS = 290
"""Mean unpadded prompt that the engine saw: fitted on Fig 15, 7B, t_g = 1 and 2. At 1,024 tokens the KV reads of
that bar alone would exceed peak bandwidth, so full-length prompts are ruled out."""


def paper_facts(size: str, num_gpus: int) -> Facts:
    """The paper's PPO job: four models of one size on A100 nodes, its batch, its engines."""
    shape = load_model(MODELS[size])
    device = load_device("a100-80gb-sxm")
    workload = Workload(
        1024, 1, 1024, LengthDistribution.fixed(1024), epochs=1, minibatches=8, prompt_tokens=ENGINE_PROMPT_TOKENS
    )
    return Facts(
        algorithm="ppo",
        roles={role: RoleSpec(shape) for role in ROLES},
        workload=workload,
        group=ClusterGroup.of(device.spec, num_gpus // 8),
        device=device,
        training=load_training_engine("megatron-core@0.6"),
        generation=load_generation_engine("vllm@0.3.1"),
    )


def figure_9() -> pd.DataFrame:
    """Predicted iteration time of every HybridFlow bar."""
    bars = pd.read_csv(PUBLISHED / "paper_fig9_ppo.csv").query("system == 'hybridflow'")
    rows = []
    for bar in bars.itertuples():
        result = find_plan(paper_facts(bar.model, bar.num_gpus), runners_up=False)
        rows.append((bar.model, bar.num_gpus, bar.iteration_s, result.iteration_s, result.plan.placement))
    return _with_error(pd.DataFrame(rows, columns=["model", "num_gpus", "measured_s", "predicted_s", "placement"]))


def figure_15() -> pd.DataFrame:
    """Predicted generation and transition time of every bar."""
    rows = []
    for bar in pd.read_csv(PUBLISHED / "paper_fig15_generation_tp.csv").itertuples():
        facts = paper_facts(bar.model, bar.num_gpus)
        generation_s, transition_s, slots = _best_generation(facts, int(bar.t_g))
        rows.append((bar.model, bar.t_g, slots, bar.transition_s, transition_s, bar.generation_s, generation_s))
    columns = ["model", "t_g", "slots", "transition_s", "predicted_transition_s", "measured_s", "predicted_s"]
    return _with_error(pd.DataFrame(rows, columns=columns))


def _best_generation(facts: Facts, t_g: int) -> tuple[float, float, int]:
    """``(generation s, transition s, sequences in flight)`` of the fastest number of sequences that fits."""
    training = Layouts.of([ParallelLayout(dp=facts.group.num_gpus // 8, tp=8)])
    frozen = Layouts.of([ParallelLayout(dp=facts.group.num_gpus // 8, tp=8, zero_stage=0)])
    load = facts.workload.num_samples * t_g // facts.group.num_gpus
    slots = sorted({min(-(-load // w), int(facts.generation.max_num_seqs)) for w in WAVES})
    rows = [[facts.group.num_gpus // t_g, t_g, 1, b] for b in slots]
    engine = GenerationLayouts(*np.asarray(rows, dtype=np.int64).T)
    shape, spread = facts.roles["actor"].shape, training.take(np.zeros(len(slots), dtype=np.int64))
    layouts = pricing.RoleLayouts(training=spread, generation=engine)
    resident = sum(
        memory.total(memory.resident_bytes(facts, shape, pricing.head_of(r), training if t else frozen, t))[0]
        for r, t in zip(ROLES, (True, True, False, False), strict=True)
    )
    need = resident + memory.total(pricing.role_memory(facts, "actor", layouts).transient["generate_sequences"])
    fits = need + facts.generation.memory_reserve_bytes <= facts.memory_capacity_bytes
    costs = pricing.role_costs(facts, "actor", layouts)
    seconds = np.where(fits, costs["generate_sequences"].time.s, np.inf)
    best = int(np.argmin(seconds))
    return float(seconds[best]), float(costs["transition"].time.s[best]), slots[best]


def _with_error(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(error=table.predicted_s / table.measured_s - 1)


def main() -> None:
    """Print both tables with mean and worst absolute error."""
    for name, table in (("Fig 9, HybridFlow, PPO", figure_9()), ("Fig 15, generation", figure_15())):
        error = table.error.abs()
        print(f"{name}: mean {error.mean():.1%}, worst {error.max():.1%}")
        print(table.round(3).to_string(index=False), "\n")


if __name__ == "__main__":
    main()
