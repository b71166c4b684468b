"""The notation read aloud on one role of the user's own plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.text.notation import generation_text, scoring_text, training_text

if TYPE_CHECKING:
    from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, RolePlan


def worked_lines(plan: Plan) -> list[str]:
    """One role's layouts in words, and below them letters that only other roles have; for any plan."""
    role = next((e for e in plan.roles if e.generation is not None), plan.roles[0])
    parts = []
    if role.training is not None:
        parts.append(f"trains {training_text(role.training)}: {_training_words(role.training)}")
    if role.generation is not None:
        parts.append(f"generates {generation_text(role.generation)}: {_generation_words(role.generation)}")
    if not parts and role.inference is not None:
        parts.append(f"scores {scoring_text(role.inference)}: {_training_words(role.inference)}")
    more = _letters_of_others(plan, role)
    return [f"notation    {role.role} {'; '.join(parts)}", *([f"            {'; '.join(more)}"] if more else [])]


def _training_words(layout: ParallelLayout) -> str:
    degrees = (
        ("tensor", layout.tp),
        ("pipeline", layout.pp),
        ("data", layout.dp),
        ("context", layout.cp),
    )
    product = " x ".join(f"{name} {n:,}" for name, n in degrees if n > 1)
    words = [f"{product} = {_gpus(layout.num_gpus)}" if product else "one GPU"]
    if layout.vpp > 1:
        words.append(f"{layout.vpp} model chunks per pipeline stage")
    if layout.ep > 1:
        words.append(f"experts over {layout.ep}")
    if layout.zero_stage:
        words.append(f"ZeRO stage {layout.zero_stage}")
    budget = layout.token_budget
    samples = f"{layout.micro_batch} sample{'' if layout.micro_batch == 1 else 's'}"
    words.append(f"micro-batches of {samples if budget is None else f'{budget:,} tokens'}")
    return ", ".join(words)


def _generation_words(layout: GenerationLayout) -> str:
    each = layout.tp * layout.pp
    spread = [
        text
        for n, text in (
            (layout.pp, f"pipeline {layout.pp}"),
            (layout.ep, f"experts over {layout.ep}"),
            (layout.attention_dp, f"{layout.attention_dp} copies of attention"),
        )
        if n > 1
    ]
    inside = f" ({', '.join([f'tensor {layout.tp}', *spread])})" if spread else ""
    engines = f"{layout.dp:,} engine{'s' if layout.dp > 1 else ''} of {_gpus(each)}{inside}"
    return f"{engines}, up to {layout.max_num_seqs:,} sequences at once in each"


def _gpus(count: int) -> str:
    return f"{count:,} GPU{'' if count == 1 else 's'}"


def _letters_of_others(plan: Plan, told: RolePlan) -> list[str]:
    """What a letter means which another role's layout has and the told one has not."""
    there = [layout for e in plan.roles if e is not told for layout in (e.training, e.inference) if layout is not None]
    told_layout = told.training or told.inference

    def new(name: str) -> bool:
        return any(getattr(layout, name) > 1 for layout in there) and getattr(told_layout, name, 1) <= 1

    meanings = {
        "cp": "c context parallel: parts of one sequence",
        "ep": "e expert parallel: whole experts, within the data-parallel ranks",
        "vpp": "v model chunks per pipeline stage",
    }
    return [text for name, text in meanings.items() if new(name)]
