"""Published RL iterations, priced with the plan that the row states: nothing is searched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.validation.gate import duplicates
from benchmarks.validation.gate_steps import check_degrees, check_step
from benchmarks.validation.guard import each
from benchmarks.validation.naive import iteration_s
from benchmarks.validation.names import (
    NotPredicted,
    is_empty,
    model_kind,
    number,
    published_device,
    published_models,
    text_of,
)
from benchmarks.validation.rl_plan import given_plan
from benchmarks.validation.rl_refit import completed
from benchmarks.validation.rl_work import given_facts, simulated_system
from benchmarks.validation.rows import Row
from simulator.play.simulate import build_timeline, price_calls
from simulator.systems.run import run_system

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd

    from simulator.facts import Facts
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

QUANTITIES = (
    "step_time_s",
    "gen_time_s",
    "logprob_time_s",
    "old_logprob_time_s",
    "ref_logprob_time_s",
    "critic_time_s",
    "train_time_s",
    "refit_time_s",
    "tokens_per_s_per_gpu",
)

CALLS_OF: dict[str, tuple[str, ...]] = {
    "gen_time_s": ("generate_sequences",),
    "logprob_time_s": ("compute_log_prob", "compute_ref_log_prob"),
    "old_logprob_time_s": ("compute_log_prob",),
    "ref_logprob_time_s": ("compute_ref_log_prob",),
    "critic_time_s": ("compute_values", "update_critic"),
    "train_time_s": ("update_actor",),
    "refit_time_s": ("transition",),
}
"""The calls whose durations add up to a published stage time."""

HAND_OVER_WITHIN = "gen_time_s"
"""Where verl counts its hand-over while it prints no time of one: ``generate_sequences`` entered and left the sharding
manager, which moves the weights, until a later release had an ``update_weights`` of its own."""

OF_THE_ENGINE = ("step_time_s", "tokens_per_s_per_gpu", "gen_time_s", "refit_time_s")
"""What a row says nothing about that gives the trainer's layout alone."""

UNPREDICTED_KINDS = {
    "train_mfu_only": "only an MFU is published, no time",
}


def predict(table: pd.DataFrame) -> list[Row]:
    """Every quantity of ``rl_steps.csv``-like rows."""
    return each(table, _rows_of, _predict, duplicates(table))


@dataclass(frozen=True)
class _Run:
    """One iteration as the row describes it, and what had to be assumed."""

    facts: Facts
    plan: Plan
    timeline: Timeline
    assumed: str


def _rows_of(cells: Mapping[str, Any]) -> list[Row]:
    common: dict[str, Any] = {
        "system": text_of(cells.get("system")),
        "placement": text_of(cells.get("placement")),
        "schedule": text_of(cells.get("schedule")),
        "level": text_of(cells.get("spec_level")),
        "device": text_of(cells.get("gpu_kind")),
    }
    measured = {quantity: number(cells.get(quantity)) for quantity in QUANTITIES}
    name = text_of(cells.get("id"))
    rows = [Row("rl", name, q, value, **common) for q, value in measured.items() if value is not None and value > 0]
    if not rows:
        return [Row("rl", name, "step_time_s", float("nan"), **common).without("the row publishes no time or rate")]
    return rows


def _predict(cells: Mapping[str, Any], rows: list[Row]) -> Iterable[Row]:
    if all(row.reason for row in rows):  # nothing published, nothing to predict
        return rows
    return _predictions(cells, rows)


def _predictions(cells: Mapping[str, Any], rows: list[Row]) -> Iterable[Row]:
    kind = text_of(cells.get("row_kind"))
    if kind in UNPREDICTED_KINDS:
        raise NotPredicted(UNPREDICTED_KINDS[kind])
    device = published_device(text_of(cells.get("gpu_kind")))
    shape = published_models(text_of(cells.get("model")))["actor"]
    run = _run(cells)
    overlapped = run.plan.schedule != "sync"
    of_trainer_alone = _lacks_engine(cells, kind)
    plain = iteration_s(run.facts, run.plan)
    _check(cells, run)
    for row in rows:
        row = replace(row, device=device, model_kind=model_kind(shape), by_rule=run.timeline.by_rule)
        naive = plain[row.quantity]
        if of_trainer_alone and row.quantity in OF_THE_ENGINE:
            yield row.without("the engine's layout is not stated")
        elif row.quantity == "step_time_s":
            yield row.with_prediction(run.timeline.iteration_s, run.assumed, naive)
        elif row.quantity == "tokens_per_s_per_gpu":
            rate = run.facts.workload.tokens / run.timeline.iteration_s / run.plan.num_gpus
            yield row.with_prediction(rate, run.assumed, naive)
        elif overlapped and row.quantity == "gen_time_s":
            yield row.without("in an overlapped schedule this is the time the trainer waits, not the rollout")
        else:
            yield _stage(row, run, naive, calls_within(cells, row.quantity))


def _check(cells: Mapping[str, Any], run: _Run) -> None:
    """Whether the actor can lie as the row states, and be trained as fast; ``NotPredicted`` says why not."""
    actor, spec, shape = run.plan.role("actor"), run.facts.device.spec, run.facts.roles["actor"].shape
    for layout in (actor.training, actor.generation):
        if layout is not None:
            check_degrees(shape, layout, run.plan.num_gpus, spec)
    work = run.facts.workload
    tokens, gpus = work.epochs * work.tokens, run.plan.num_gpus
    for quantity in ("step_time_s", "train_time_s"):
        check_step(shape, spec, tokens, number(cells.get(quantity)), gpus)
    rate = number(cells.get("tokens_per_s_per_gpu"))
    check_step(shape, spec, tokens, tokens / rate / gpus if rate else None, gpus)


def _lacks_engine(cells: Mapping[str, Any], kind: str) -> bool:
    """Whether a row of several GPUs leaves open how its engines lie on them."""
    filled = kind == "refit_only" or bool(simulated_system(cells))
    return not filled and number(cells.get("gen_tp")) is None and number(cells.get("num_gpus")) != 1


def calls_within(cells: Mapping[str, Any], quantity: str) -> tuple[str, ...]:
    """The calls that a published stage of a row holds."""
    calls = CALLS_OF[quantity]
    within = quantity == HAND_OVER_WITHIN and text_of(cells.get("system")).lower().startswith("verl")
    return calls + CALLS_OF["refit_time_s"] if within and is_empty(cells.get("refit_time_s")) else calls


def _stage(row: Row, run: _Run, naive: float, calls: tuple[str, ...]) -> Row:
    spans = [s for s in run.timeline.spans if s.call.partition(":")[0] in calls]
    if not spans:
        return row.without("the row describes no such call")
    return row.with_prediction(sum(span.duration_s for span in spans), run.assumed, naive)


def run_of(cells: Mapping[str, Any]) -> tuple[Facts, Plan]:
    """Facts and plan of the run that a row describes; ``NotPredicted`` says what is missing."""
    run = _run(cells)
    return run.facts, run.plan


def _run(cells: Mapping[str, Any]) -> _Run:
    assumed: list[str] = []
    if text_of(cells.get("row_kind")) == "refit_only":
        cells = completed(cells, assumed)
    if is_empty(cells.get("logprob_passes")) and not is_empty(cells.get("logprob_time_s")):
        cells = {**cells, "logprob_passes": "policy+reference"}
        assumed.append("log-prob passes not stated: policy and reference")
    system = simulated_system(cells)
    if system:
        own = run_system(system, given_facts(cells, assumed, system))
        assumed.append(f"layouts not stated: the fastest that {own.system.title} can run")
        return _Run(own.facts, own.plan, own.timeline, "; ".join(assumed))
    facts = given_facts(cells, assumed)
    plan = given_plan(cells, facts, assumed)
    timeline = build_timeline(plan, facts, price_calls(plan, facts))
    return _Run(facts, plan, timeline, "; ".join(assumed))
