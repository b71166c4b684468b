"""The models that verl runs in one process: one Megatron layout for all, and micro-batches as verl cuts them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hybridmap.exports.export import Points
from hybridmap.exports.follow import (
    DEGREES,
    all_in_tokens,
    degrees_of,
    degrees_text,
    even_micro_batch,
    in_one_unit,
    keeps_samples,
    pin_text,
    require_it_fits,
    with_degrees,
    with_fitting_cache,
)
from hybridmap.exports.verl.places import home
from profiles.errors import InputError
from simulator.systems.targets import SAME_PROCESS

if TYPE_CHECKING:
    from hybridmap.exports.export import Source
    from simulator.plan.plan import ParallelLayout, Plan

SYSTEM = "verl"
SERVED = ("reward",)
"""Models that an inference engine serves: they have no micro-batches of the trainer's."""


def one_layout(source: Source, planned: Plan, out: Points) -> Source:
    """The Megatron models of a process in one layout: of those that the plan has, the fastest that fits all.

    verl's engine keeps the parallel state that it finds (workers/engine/megatron/transformer_impl.py:244), so all
    models of a process get the one that is built first, whatever their own keys say. ``planned``: what was asked for.
    """
    layouts = _layouts(source)
    if len({tuple(degrees_of(layout).values()) for layout in layouts.values()}) == 1:
        return source
    leader, shared = _fastest(source, layouts)
    for name, taken in _layouts(shared).items():
        if degrees_of(layouts[name]) != degrees_of(taken):
            stage = "training" if shared.plan.role(name).training else "inference"
            out.instead(
                f"{name}.{stage}",
                f"verl keeps one Megatron layout a process: {degrees_text(taken)}, the {leader}'s, in place of "
                f"{degrees_text(getattr(planned.role(name), stage))}; to plan for it, pin: {pin_text(shared)}",
            )
    return shared


def _layouts(source: Source) -> dict[str, ParallelLayout]:
    """The layout of every model in the actor's process, as it trains or else scores."""
    here = [e for e in source.plan.roles if e.role in SAME_PROCESS and e.pool == source.actor.pool]
    found = {entry.role: entry.training or entry.inference for entry in here}
    return {role: layout for role, layout in found.items() if layout is not None}


def _fastest(source: Source, layouts: dict[str, ParallelLayout]) -> tuple[str, Source]:
    """The role whose layout serves all best, and the plan in it; ``InputError`` if none serves all."""
    tried: list[tuple[float, str, Source]] = []
    reasons = []
    for role in layouts:
        shared = _sharing(source, role)
        try:
            whole = with_fitting_cache(equal_batches(shared, Points()), Points())
            tried.append((require_it_fits(whole, SYSTEM), role, shared))
        except InputError as error:
            reasons.append(f"the {role}'s: {str(error).split('; plan again')[0]}")
    if not tried:
        raise InputError(
            f"verl runs {', '.join(layouts)} in one process, whose Megatron models all get one layout, and no layout "
            f"of the plan does for all ({'; '.join(dict.fromkeys(reasons))}); plan again with one pinned, such as pin: "
            f"{pin_text(_sharing(source, 'actor'))}"
        )
    _, role, shared = min(tried, key=lambda each: each[0])
    return role, shared


def _sharing(source: Source, leader: str) -> Source:
    """All Megatron models of the actor's process in one role's degrees."""
    entry = source.plan.role(leader)
    layout, pool = entry.training or entry.inference, home(source)
    assert layout is not None, f"{leader} trains or scores"
    change = partial(with_degrees, degrees={name: getattr(layout, name) for name in DEGREES}, pool=pool)
    for each in source.plan.roles:
        if each.role in SAME_PROCESS and each.pool == pool.name:
            stages = {stage: getattr(each, stage) for stage in ("training", "inference")}
            source = source.with_entry(each.role, **{k: change(v) for k, v in stages.items() if v is not None})
    return source


def _as_budgets(source: Source) -> Source:
    """Packs as what verl makes of them: budgets of tokens, without a pack in them."""
    if source.packed_tokens is None:
        return source
    built = source.job.implementation.model_copy(update={"packed_tokens": None})
    return all_in_tokens(source, SERVED).with_job(implementation=built)


def equal_batches(source: Source, out: Points) -> Source:
    """Micro-batches as verl cuts them: equal ones; or budgets of tokens, of which a critic has one for both passes."""
    source = _as_budgets(source)
    source = in_one_unit(source, out, SYSTEM, SERVED) if keeps_samples(source) else all_in_tokens(source, SERVED)
    steps = source.minibatch_prompts * source.facts.workload.samples_per_prompt
    for entry in source.plan.roles:
        if entry.role in SERVED:
            continue
        if entry.role == "critic" and entry.training and entry.inference and entry.training.token_budget is not None:
            same = entry.inference.model_copy(update={"micro_batch": entry.training.micro_batch})
            source = source.with_entry("critic", inference=same)
            entry = source.plan.role("critic")
        changed = {
            stage: even_micro_batch(entry.role, stage, layout, samples, out, SYSTEM)
            for stage, samples in (("training", steps), ("inference", source.facts.workload.num_samples))
            if (layout := getattr(entry, stage)) is not None
        }
        source = source.with_entry(entry.role, **changed)
    return source
