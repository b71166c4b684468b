"""Memory by class as tables and lines: what ``hybridmap fit`` and the report say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.full_length import peak_memory
from simulator.pool_memory import memories_on, pool_memory

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan, Pool
    from simulator.plan.timeline import PoolMemory

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


def parts_text(classes: dict[str, float]) -> tuple[str, str]:
    """Their sum in GiB, and each class of a tenth of a GiB at least, the largest first."""
    from hybridmap.text.notation import gib

    large = sorted((name for name in classes if gib(classes[name]) != "0.0"), key=lambda name: -classes[name])
    return gib(sum(classes.values())), ", ".join(f"{name} {gib(classes[name])}" for name in large)


def answer_line(plan: Plan, fits: bool, facts: Facts) -> str:
    """Whether it fits, and what is left or missing on the GPU with the least room."""
    from hybridmap.text.notation import gib, memory_text

    left = {pool.name: _left_bytes(pool_memory(plan, pool, facts)) for pool in plan.pools}
    worst = min(plan.pools, key=lambda pool: left[pool.name])
    told = f"{gib(left[worst.name])} GiB left" if fits else f"{gib(-left[worst.name])} GiB too much"
    peak = pool_memory(plan, worst, facts)
    where = f" of pool {worst.name}" if len(plan.pools) > 1 else ""
    return f"{'fits' if fits else 'does not fit'}: the fullest GPU{where} holds {memory_text(peak)}, {told}"


def _left_bytes(peak: PoolMemory) -> float:
    return (peak.usable_bytes or peak.capacity_bytes) - peak.used_bytes


def binding_line(plan: Plan, pool: Pool, facts: Facts) -> str:
    """When a pool's fullest GPU is fullest, and the largest term of it by role."""
    from hybridmap.text.notation import gib

    peak = pool_memory(plan, pool, facts)
    terms = peak_terms(plan, pool, facts)
    (role, name), size = max(terms.items(), key=lambda item: item[1])
    whose = f"{role}'s {name}" if role else name
    return (
        f"{f'pool {pool.name}':<12}fullest in {peak.peak_call or 'no call'}; the largest term is {whose} "
        f"({gib(size)} GiB)"
    )


def full_length_lines(plan: Plan, facts: Facts) -> list[str]:
    """What happens on each pool if every sample is as long as it may be, where that takes more: as ``plan`` says it."""
    from hybridmap.text.plan import full_length_text

    peaks = {pool.name: peak_memory(plan, pool, facts) for pool in plan.pools}
    return [f"note: {full_length_text(name, peak)}" for name, peak in peaks.items() if peak.full_length_bytes]


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
