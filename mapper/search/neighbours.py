"""What ranks that share one host's cores cost each other, of whole plans: ``host_contention`` searches by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mapper.search.place import build_plan
from simulator.play.host_contention import shared_host
from simulator.play.schedule import scheduled
from simulator.play.simulate import price_calls

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.model.variables import Choice
    from mapper.problem import Problem


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Prices whole plans of one problem, in ticks of ``tick_s`` seconds; ``further_rank_ticks`` between two calls."""

    problem: Problem
    tick_s: float
    further_rank_ticks: int

    def ticks(self, instance: Instance, choice: Choice) -> int:
        """Ticks of an iteration of ``choice``, as ``simulate`` plays it."""
        plan, facts = build_plan(instance, choice, self.problem), self.problem.facts
        alone_s = {key: float(call.time.s) for key, call in price_calls(plan, facts).items()}
        return round(max(record.end_s for record in scheduled(plan, facts, alone_s)) / self.tick_s)


def neighbours_of(problem: Problem, tick_s: float) -> Neighbours | None:
    """What ranks of the problem's host cost each other; ``None`` where they share nothing."""
    host = shared_host(problem.facts)
    return None if host is None else Neighbours(problem, tick_s, round(host.further_rank_s / tick_s))
