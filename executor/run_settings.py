"""What a job and its ``run:`` section ask of a run: refusals before anything starts, and settings that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from executor.controller.pools import degrees_of, generate_ahead, require_devices, require_supported
from executor.engines.support import require_engines_run
from executor.launch.choice import count_devices, runs_here
from profiles.errors import InputError, NotYetError
from simulator.plan.algorithms import algorithm_of

if TYPE_CHECKING:
    from executor.engines.model_spec import DraftSpec
    from executor.rl.data_section import DataSection
    from executor.rl.hyperparameters import Hyperparameters
    from executor.run_config import EnginesSection, RunConfig
    from executor.weights.architecture import Adapters
    from profiles.workload import Workload
    from simulator.plan.dataflow import Dataflow
    from simulator.plan.plan import Plan


class ImplementationFacts(Protocol):
    """What a run reads of a job's ``implementation:``."""

    @property
    def lora_rank(self) -> int: ...
    @property
    def lora_targets(self) -> tuple[str, ...]: ...
    @property
    def lora_adapters(self) -> int: ...


class DraftFacts(Protocol):
    """What a run reads of a job's ``speculation:``; ``draft`` is ``None`` for the model's own prediction layers."""

    @property
    def draft(self) -> object | None: ...
    @property
    def drafted(self) -> int: ...


class JobFacts(Protocol):
    """What a run reads of a job; ``simulator.facts.Facts`` has it."""

    @property
    def algorithm(self) -> str: ...
    @property
    def workload(self) -> Workload: ...
    @property
    def dataflow(self) -> Dataflow: ...
    @property
    def implementation(self) -> ImplementationFacts: ...
    @property
    def speculation(self) -> DraftFacts | None: ...


def require_processes(plan: Plan, run_config: RunConfig) -> None:
    """Raise ``InputError`` where there are fewer devices than the plan asks for, or one process cannot be all of it."""
    if not runs_here(plan, run_config):
        require_devices(plan, count_devices(plan, run_config).num)
    elif any(entry.separate_generation for entry in plan.roles):
        raise InputError("a generation pool needs processes of its own, which need Ray; run.launcher: ray")


def require_runnable(plan: Plan, engines: EnginesSection) -> None:
    """Raise ``NotYetError`` for an algorithm without a script, or a plan beyond this executor."""
    from executor.rl.algorithms import RUNNABLE

    if plan.algorithm not in RUNNABLE:
        raise NotYetError(f"{plan.algorithm} has no script yet; {', '.join(sorted(RUNNABLE))} can run")
    require_supported(plan)
    require_engines_run(plan, engines)
    for entry in plan.roles:
        degrees_of(entry, plan.pool_of(entry.role).num_gpus)


def adapters_of(job_facts: JobFacts, config: RunConfig) -> Adapters | None:
    """The adapters that the job is priced with; ``None`` where all weights are trained."""
    from executor.weights.architecture import Adapters

    built = job_facts.implementation
    if not built.lora_rank:
        return None
    if built.lora_adapters > 1:
        raise NotYetError(
            f"implementation.lora_adapters {built.lora_adapters} cannot run yet: a run trains the adapters of one job"
        )
    return Adapters(built.lora_rank, config.lora_alpha, built.lora_targets)


def draft_of(job_facts: JobFacts, plan: Plan, config: RunConfig) -> DraftSpec | None:
    """The model that drafts, and how many tokens a step; ``None`` where the plan drafts nothing.

    Raises ``NotYetError`` for drafts that no engine of the run can make, ``InputError`` for a draft without weights.
    """
    from executor.engines.draft_support import require_drafts_run
    from executor.engines.model_spec import DraftSpec

    known = job_facts.speculation
    tokens = plan.draft_tokens if plan.draft_tokens is not None or known is None else known.drafted
    if not tokens:
        return None
    if known is None:
        raise InputError(f"the plan drafts {tokens} tokens a step, and its job says nothing of drafts (speculation)")
    trains_adapters = bool(job_facts.implementation.lora_rank)
    path = require_drafts_run(plan, config, own_layers=known.draft is None, adapters=trains_adapters)
    return DraftSpec(path, tokens)


def require_groups(job_facts: JobFacts, plan: Plan, learning: Hyperparameters) -> None:
    """Raise ``InputError`` where responses are compared with others to the same prompt, and there are none."""
    samples = job_facts.workload.samples_per_prompt
    if learning.dynamic_sampling and not algorithm_of(job_facts.algorithm).compares_responses:
        raise InputError(
            f"dynamic_sampling is about groups of responses to a prompt, which {job_facts.algorithm} does not compare"
        )
    if learning.dynamic_sampling and generate_ahead(plan):
        raise NotYetError(
            f"dynamic_sampling cannot run yet with schedule '{plan.schedule}': it waits for the scores of an iteration "
            "before it knows the prompts of the next; 'sync' can"
        )
    if algorithm_of(job_facts.algorithm).compares_responses and samples < 2:
        raise InputError(
            f"{job_facts.algorithm} compares the responses to a prompt; workload.samples_per_prompt must be at least "
            f"2, it is {samples}"
        )


def require_turns(job_facts: JobFacts, plan: Plan, config: RunConfig) -> None:
    """Raise where responses cannot have several turns: values and token rewards would cross what nobody learned."""
    assert config.environment is not None, "only a run with an environment asks"
    if not algorithm_of(job_facts.algorithm).compares_responses:
        raise NotYetError(
            f"run.environment cannot run yet with {job_facts.algorithm}, whose advantages differ from token to token; "
            "grpo, rloo and dapo can"
        )
    lacking: dict[str, object] = {"run.validation": config.validation}
    lacking |= {"run.learning.dynamic_sampling": config.learning.dynamic_sampling}
    lacking[f"schedule '{plan.schedule}'"] = generate_ahead(plan)
    for name, is_given in lacking.items():
        if is_given:
            raise NotYetError(f"run.environment cannot run yet with {name}: its responses have one turn")
    from executor.rl.environment import environment_class

    environment_class(config.environment.name)


def end_tokens(data: DataSection, asked: int | str) -> tuple[int, ...]:
    """The tokens that end a response, in order; none for ``never``, and for ``tokenizer`` where text is an alphabet."""
    if isinstance(asked, int):
        return (asked,)
    if asked == "never" or data.tokenizer is None:
        return ()
    from executor.rl.text import TextCodec

    return TextCodec(tokenizer=data.tokenizer).end_tokens()


def hyperparameters(job_facts: JobFacts, config: RunConfig, plan: Plan) -> Hyperparameters:
    """The learning section with what the job's workload and the plan's schedule say."""
    work, learning = job_facts.workload, config.learning
    recomputes = any(call.key == "compute_log_prob" for call in job_facts.dataflow.calls)
    if not recomputes and (learning.importance != "none" or learning.top_p < 1.0 or learning.top_k):
        raise InputError(
            "run.learning: importance, top_p and top_k take log-probs that the trainer computes: the job must say "
            "implementation: {old_log_prob: trainer}, which prices that pass, too"
        )
    given = {
        "recomputes_log_probs": recomputes,
        "end_tokens": end_tokens(config.data, learning.end_token),
        "num_samples": work.num_samples,
        "max_tokens": work.response.maximum,
        "epochs": work.epochs,
        "minibatches": work.minibatches,
        "seed": config.seed,
        "staleness_bound": generate_ahead(plan),
    }
    return learning.model_copy(update=given)
