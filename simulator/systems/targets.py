"""What the systems that plans are made for allow, with file and line of their sources.

Data alone: how a plan is brought to what one of them runs stands beside its export.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from simulator.plan.plan import Schedule

SAME_PROCESS = ("actor", "critic", "reference")
"""Models that verl trains and scores in one process."""

ENGINE_SEQUENCES = 128
"""Sequences of an engine of OpenRLHF at once: it sets none (trainer/ray/vllm_engine.py:63), and vLLM then has no
default of its own for engines that are no server (vllm/config/scheduler.py, DEFAULT_MAX_NUM_SEQS)."""

MAY_SHARE = (frozenset({"actor", "reference"}), frozenset({"critic", "reward"}))
"""Models of OpenRLHF that may share GPUs where engines have their own."""


@dataclass(frozen=True)
class Rule:
    """One thing that a system does not do otherwise, and the file and line that make it so."""

    text: str
    source: str


@dataclass(frozen=True)
class Target:
    """A system, its release and its trainer.

    Parameters
    ----------
    name, version
        As ``plan --target`` has it, and the release whose rules these are.
    trainers
        The engines that price its trainer, without a release; the best of several.
    models
        What its trainer runs, to train or to score; a reward model that is served is not among them.
    pairs
        Which of them may share GPUs where engines have their own; else, and where there are none, all share.
    one_layout
        Whether all have the same degrees.
    degrees
        What is fixed of their degrees.
    engine_pipeline
        Whether its rollout engines have pipeline stages.
    rules
        What the search is held to.
    generation
        The engine that generates, without a release; empty where the job's own does.
    max_num_seqs
        Sequences of an engine at once, where no setting says them.
    offloads
        Whether states of the trainer may wait in host memory.
    expert_engines, any_experts
        Whether an engine may spread experts over all its ranks, and over any part of them beside copies of attention.
    may_bypass
        Whether log-probs of the rollout may stand for old ones: verl's bypass_mode, slime's --use-rollout-logprobs.
    by_hand
        What becomes of a reward model that no setting of the system starts; empty where it has one.
    bypassing
        Schedules, without (``False``) or with updates in flight, whose program lets them do so by itself.
    """

    name: str
    version: str
    trainers: tuple[str, ...]
    models: tuple[str, ...]
    one_layout: bool
    degrees: Mapping[str, int]
    engine_pipeline: bool
    rules: tuple[Rule, ...]
    generation: str = ""
    max_num_seqs: int | None = None
    offloads: bool = False
    expert_engines: bool = True
    any_experts: bool = False
    pairs: Collection[frozenset[str]] = ()
    may_bypass: bool = False
    by_hand: str = ""
    bypassing: Collection[tuple[Schedule, bool]] = ()

    @property
    def system(self) -> str:
        """The system without its trainer."""
        return self.name.partition("/")[0]

    @property
    def alike(self) -> tuple[str, ...]:
        """Models that have one layout."""
        return self.models if self.one_layout else ()


_VERL = (
    Rule("actor, critic and reference share their GPUs", "verl/trainer/ppo/ray_trainer.py:784"),
    Rule("rollout engines have no pipeline stages", "verl/workers/config/rollout.py:319"),
)
VERL_BYPASSES: tuple[tuple[Schedule, bool], ...] = (
    ("one-step-off", False),
    ("one-step-off", True),
    ("async", False),
)
"""verl/experimental/one_step_off_policy/main_ppo.py:121 and fully_async_policy/fully_async_main.py:235."""

_NEMO_RL = Rule(
    "the reference is the policy's workers with other weights: its GPUs, its layout",
    "nemo_rl/algorithms/grpo.py:869, the policy initialises it",
)
_NEMO_RL_WAITS = Rule(
    "sharing GPUs with engines, the policy waits in host memory meanwhile", "nemo_rl/algorithms/grpo.py:1876"
)

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "verl/fsdp",
            "0.9.1",
            ("fsdp",),
            SAME_PROCESS,
            one_layout=False,
            degrees={"tp": 1, "pp": 1, "ep": 1},
            engine_pipeline=False,
            rules=(
                *_VERL,
                Rule(
                    "FSDP has no tensor, pipeline or expert parallelism; Ulysses splits sequences",
                    "verl/workers/engine/fsdp/transformer_impl.py:244",
                ),
                Rule(
                    "a reference's parameters stay in host memory", "verl/workers/engine/fsdp/transformer_impl.py:459"
                ),
            ),
            may_bypass=True,
            bypassing=VERL_BYPASSES,
        ),
        Target(
            "verl/megatron",
            "0.9.1",
            ("megatron-core",),
            SAME_PROCESS,
            one_layout=True,
            degrees={},
            engine_pipeline=False,
            rules=(
                *_VERL,
                Rule(
                    "a process keeps the parallel state that it finds, so its models have one layout",
                    "verl/workers/engine/megatron/transformer_impl.py:244",
                ),
            ),
            may_bypass=True,
            bypassing=VERL_BYPASSES,
        ),
        Target(
            "nemo-rl/dtensor",
            "0.7.0",
            ("fsdp",),
            ("actor", "reference"),
            one_layout=True,
            degrees={"pp": 1, "ep": 1},
            engine_pipeline=True,
            rules=(
                _NEMO_RL,
                _NEMO_RL_WAITS,
                Rule("a DTensor policy has no pipeline stages", "nemo_rl/models/policy/__init__.py:328"),
            ),
            by_hand="becomes an environment; write env.* by hand",
            offloads=True,
        ),
        Target(
            "nemo-rl/megatron",
            "0.7.0",
            ("megatron-core",),
            ("actor", "reference"),
            one_layout=True,
            degrees={},
            engine_pipeline=True,
            rules=(_NEMO_RL, _NEMO_RL_WAITS),
            by_hand="becomes an environment; write env.* by hand",
            offloads=True,
        ),
        Target(
            "openrlhf",
            "0.11.2",
            ("deepspeed",),
            ("actor", "critic", "reference", "reward"),
            one_layout=True,
            degrees={"pp": 1, "ep": 1},
            engine_pipeline=False,
            rules=(
                Rule(
                    "all models and engines share all GPUs; or actor with reference, and critic with reward",
                    "openrlhf/cli/train_ppo_ray.py:56",
                ),
                Rule(
                    "DeepSpeed has one layout for all models: data, ring and tensor parallelism",
                    "openrlhf/utils/deepspeed/deepspeed.py:105",
                ),
                Rule(
                    "on the same GPUs critic and actor train by turns only if their optimizers wait in host memory "
                    "meanwhile",
                    "openrlhf/trainer/ppo_trainer.py:281",
                ),
                Rule(
                    f"an engine runs {ENGINE_SEQUENCES} sequences at once, as vLLM takes it where nothing is said",
                    "openrlhf/trainer/ray/vllm_engine.py:63",
                ),
            ),
            pairs=MAY_SHARE,
            max_num_seqs=ENGINE_SEQUENCES,
            offloads=True,
            expert_engines=False,
        ),
        Target(
            "slime",
            "0.3.1",
            ("megatron-core",),
            ("actor", "reference"),
            one_layout=True,
            degrees={},
            engine_pipeline=False,
            rules=(
                Rule("engines share all of the actor's GPUs or none of them", "slime/ray/placement_group.py:114"),
                Rule(
                    "sharing GPUs with engines, the trainer waits in host memory meanwhile",
                    "slime/utils/arguments.py:1883",
                ),
                Rule("the optimizer is always sharded", "slime/backends/megatron_utils/arguments.py:147"),
            ),
            by_hand="is a server of its own; give --rm-url by hand",
            may_bypass=True,
            generation="sglang",
            offloads=True,
            any_experts=True,
        ),
    )
}
