"""Memory by class as tables and lines: what ``hybridmap fit`` and the report say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.feasibility import memories_on, pool_memory

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool

CLASSES = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "gathered parameters",
    "gathered weights",
    "generation weights",
    "kv cache",
    "generation workspace",
    "engine reserve",
    "reserve",
)
"""The order of the columns; a class that is not named here comes after these."""

RESIDENT = "always"
"""What is kept whatever runs, as against what a call needs on top."""


def memory_rows(plan: Plan, pool: Pool, facts: Facts) -> list[dict[str, Any]]:
    """One row per role and call of a pool's fullest GPU, ``{role, when, classes}`` in bytes; the reserve last."""
    rows: list[dict[str, Any]] = []
    for role, needs in memories_on(plan, pool, facts).items():
        kept = _positive(needs.resident)
        if kept:
            rows.append({"role": role, "when": RESIDENT, "classes": kept})
        for call, classes in needs.transient.items():
            if there := _positive(classes):
                rows.append({"role": role, "when": call, "classes": there})
    reserve = float(facts.on(pool.device).training.memory_reserve_bytes)
    rows.append({"role": "", "when": RESIDENT, "classes": {"reserve": reserve}})
    return rows


def _positive(classes: Any) -> dict[str, float]:
    sizes = {name: float(size[0]) for name, size in classes.items()}
    return {name: size for name, size in sizes.items() if size > 0}


def classes_of(rows: list[dict[str, Any]]) -> list[str]:
    """Every class of some rows, in the order of ``CLASSES``."""
    there = dict.fromkeys(name for row in rows for name in row["classes"])
    return [name for name in CLASSES if name in there] + [name for name in there if name not in CLASSES]


def binding_line(plan: Plan, pool: Pool, facts: Facts) -> str:
    """What fills a pool's fullest GPU, when, and the largest term of it by role."""
    from hybridmap.text.notation import gib, memory_text

    peak = pool_memory(plan, pool, facts)
    terms = peak_terms(plan, pool, facts)
    (role, name), size = max(terms.items(), key=lambda item: item[1])
    left = (peak.usable_bytes or peak.capacity_bytes) - peak.used_bytes
    room = f"{gib(left)} GiB left" if left >= 0 else f"{gib(-left)} GiB too much"
    whose = f"{role}'s {name}" if role else name
    return (
        f"pool {pool.name}: {memory_text(peak)}, in {peak.peak_call or 'no call'}, "
        f"{room}; the largest term is {whose} ({gib(size)} GiB)"
    )


def peak_terms(plan: Plan, pool: Pool, facts: Facts) -> dict[tuple[str, str], float]:
    """Bytes by role and class at a pool's peak; they add up to what ``pool_memory`` says is used."""
    peak = pool_memory(plan, pool, facts)
    out: dict[tuple[str, str], float] = {}
    for row in memory_rows(plan, pool, facts):
        if row["when"] in (RESIDENT, peak.peak_call):
            for name, size in row["classes"].items():
                key = (row["role"], name)
                out[key] = out.get(key, 0.0) + size
    return out
