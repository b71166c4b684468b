"""Which degrees and values a search lists: the space that the word optimal speaks of, for people to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapper.candidates import layouts
from simulator.plan.plan import RECOMPUTE_LEVELS

if TYPE_CHECKING:
    from mapper.search_options import SearchOptions
    from simulator.facts import Facts


def listed_values(facts: Facts, options: SearchOptions) -> dict[str, str]:
    """By what is chosen, the values that are listed for this job; what a model or a pool cannot have is left out."""
    wide = max(facts.on(kind).group.nvlink_domain_gpus for kind in facts.device_types)
    tensor = {t for s in facts.roles.values() for t in layouts.tensor_degrees(facts, s.shape, wide, options)}
    budgets = layouts.token_budgets(facts, ())
    out = {
        "t": _numbers(sorted(tensor)),
        "p": "the fewest for each length of a stage",
        "d": f"all to {layouts.EVERY}, then where a load changes",
        "z": _numbers(facts.training.zero_stages),
        "mb": _numbers(layouts.MICRO_BATCHES) + (f", {_numbers(budgets)} tokens" if budgets else ""),
        "recompute": ", ".join(RECOMPUTE_LEVELS),
        "seqs": f"a replica's samples in {layouts.WAVES[0]} to {layouts.WAVES[-1]} waves",
        "engine p": _numbers(layouts.ENGINE_STAGES),
    }
    if facts.workload.padded_length >= layouts.LONG_CONTEXT_TOKENS:
        out["c"] = _numbers(layouts.CONTEXT_DEGREES)
    if any(spec.shape.moe is not None for spec in facts.roles.values()):
        out["e"] = "powers of two that divide experts and ranks"
        if facts.generation.mixture_parallel:
            out["engine e and a"] = "powers of two in a stage"
    if options.interleaving:
        out["v"] = "all that the layers allow"
    return out


def _numbers(values: tuple[int, ...] | list[int]) -> str:
    return " ".join(map(str, values))
