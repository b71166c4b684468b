"""Prices of what was run under factors, and what measured seconds make of these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from profiles.calibration import CALLS, FACTORS, factors_of_calls
from simulator.calibration.factors import Belief, calibrated, calibration_of
from simulator.calibration.posterior import WHOLE, Observation, Posterior, fit_to
from simulator.plan.dataflow import CONTROLLER
from simulator.play.host_contention import shared_host
from simulator.play.schedule import beside_others, in_company
from simulator.play.simulate import price_calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

GRID = 0.25
"""Between host factors this far apart, in logarithms, the logarithm of a price is taken to be straight."""

UNLIKE = 1.02
"""Prices that differ by less are one: they do not tell what a call takes at any length."""

HOST = ("generation_host", "training_host")


@dataclass(frozen=True)
class Case:
    """A plan that was run, and the facts of what it ran, uncalibrated."""

    plan: Plan
    facts: Facts


class Prices:
    """Seconds of observations under factors; calls are priced at points of the host factors and read off between."""

    def __init__(self, cases: Sequence[Case], seconds_per_sample: Mapping[str, float]) -> None:
        self.cases, self.seconds_per_sample = tuple(cases), dict(seconds_per_sample)
        waiting = {c.key for case in cases for c in case.facts.dataflow.calls if c.role == CONTROLLER}
        self._waiting = {key: s for key, s in self.seconds_per_sample.items() if key in waiting}
        self._priced: dict[tuple[int, int], dict[str, float]] = {}

    def seconds(self, observed: Observation, log_factors: Floats) -> float:
        """Predicted seconds of what was observed."""
        case = self.cases[observed.case]
        # where ranks share a host, what other pools do at the same time is in a call's measured time
        if observed.calls == (WHOLE,) or shared_host(case.facts) is not None:
            calls = played_s(case.plan, case.facts, self.calls_s(observed.case, log_factors))
        else:
            calls = self.calls_s(observed.case, log_factors, observed.calls)
        return together_s(case.plan, case.facts, calls, observed.calls)

    def same_run(self, one: int, other: int) -> bool:
        """Whether two cases are one plan, at different lengths."""
        return self.cases[one].plan == self.cases[other].plan

    def calls_s(self, index: int, log_factors: Floats, keys: Sequence[str] = ()) -> dict[str, float]:
        """Seconds of calls of a case, each alone; of every call without ``keys``."""
        at = dict(zip(FACTORS, log_factors.tolist(), strict=True))
        factor_of = factors_of_calls({name: float(np.exp(value)) for name, value in at.items()})
        facts = self.cases[index].facts
        beside = {
            k: s * facts.workload.num_samples for k, s in self.seconds_per_sample.items() if k not in self._waiting
        }
        return {
            call.key: self._alone_s(index, call.key, at[_host_of(call.api)])
            * (1.0 if facts.is_function(call.role) else factor_of.get(call.api, 1.0))
            + beside.get(call.api, 0.0)
            for call in facts.dataflow.calls
            if not keys or call.key in keys
        }

    def _alone_s(self, index: int, key: str, host: float) -> float:
        """Seconds of a call at a host factor's logarithm, between two points at which it was priced."""
        low = int(np.floor(host / GRID))
        ends = [self._at(index, low)[key], self._at(index, low + 1)[key]]
        if min(ends) <= 0:
            return ends[0]
        part = host / GRID - low
        return float(np.exp((1.0 - part) * np.log(ends[0]) + part * np.log(ends[1])))

    def _at(self, index: int, point: int) -> dict[str, float]:
        """Seconds of every call with the host times of both engines at one point; each call has one of them."""
        if (index, point) not in self._priced:
            case = self.cases[index]
            only_host = np.asarray([point * GRID if name in HOST else 0.0 for name in FACTORS])
            layer = calibration_of(Belief(only_host, np.eye(len(FACTORS))), self._waiting)
            priced = price_calls(case.plan, calibrated(case.facts, layer))
            self._priced[index, point] = {call: float(cost.time.s) for call, cost in priced.items()}
        return self._priced[index, point]


def _host_of(api: str) -> str:
    return "generation_host" if api == "generate_sequences" else "training_host"


def fit(
    cases: Sequence[Case],
    observations: Sequence[Observation],
    seconds_per_sample: Mapping[str, float] | None = None,
) -> tuple[Belief, dict[str, float]]:
    """What measured seconds of runs make of the factors, and of seconds that calls take beside at any length.

    Parameters
    ----------
    cases
        What was run.
    observations
        What was measured there.
    seconds_per_sample
        Of the controller's calls, as measured.

    Returns
    -------
    tuple[Belief, dict[str, float]]
        As of ``fit_to``; and seconds per sample, those of the controller's calls and by API those of the others.
    """
    given = dict(seconds_per_sample or {})
    prices = Prices(cases, given)
    seen = [one for one in observations if _moves(prices, one)]
    found = fit_to(prices, seen, _at_several_lengths(prices, seen))
    apis = {call.key: call.api for case in cases for call in case.facts.dataflow.calls}
    samples = cases[0].facts.workload.num_samples if cases else 1
    belief = replace(found.belief, of_calls=_of_calls(found, apis))
    return belief, given | {apis[key]: s / samples for (key,), s in found.seconds.items() if s > 0}


def _moves(prices: Prices, observed: Observation) -> bool:
    """Whether a factor moves any of what was observed: none moves what costs nothing, nor a function's time."""
    facts = prices.cases[observed.case].facts
    functions = {call.key for call in facts.dataflow.calls if facts.is_function(call.role)}
    return not set(observed.calls) <= functions and prices.seconds(observed, np.zeros(len(FACTORS))) > 0.0


def _of_calls(found: Posterior, apis: Mapping[str, str]) -> Floats:
    """Covariance of how far whole calls are off at the lengths that were seen, in the order of ``FACTORS``.

    A factor and what comes beside it are known together better than each: ``(1 - share) * factor + share``.
    """
    num = len(FACTORS)
    of_call = {}
    for i, ((key,), share) in enumerate(found.shares.items()):
        row = np.zeros(num + len(found.shares))
        row[[FACTORS.index(name) for name, calls in CALLS.items() if apis[key] in calls]] = 1.0 - share
        row[num + i] = 1.0
        of_call[apis[key]] = row
    rows = np.eye(num, num + len(found.shares))
    for name in ("generation", "training", "scoring"):
        own = [row for api, row in of_call.items() if api in CALLS[name] and api not in CALLS["reference"]]
        if own:
            rows[FACTORS.index(name)] = np.mean(own, axis=0)
    for api in CALLS["reference"]:
        if api in of_call:  # it is multiplied by the factor of scoring, too
            rows[FACTORS.index("reference")] = of_call[api] - rows[FACTORS.index("scoring")]
    return np.asarray(rows @ found.joint @ rows.T, dtype=np.float64)


def _at_several_lengths(prices: Prices, observations: Sequence[Observation]) -> list[tuple[str, ...]]:
    """Calls that were timed alone, in cases between which their price differs."""
    priced: dict[tuple[str, ...], list[float]] = {}
    for observed in observations:
        if len(observed.calls) == 1 and observed.calls != (WHOLE,):
            priced.setdefault(observed.calls, []).append(prices.seconds(observed, np.zeros(len(FACTORS))))
    return [calls for calls, seconds in priced.items() if max(seconds) > UNLIKE * min(seconds)]


def together_s(plan: Plan, facts: Facts, seconds: Mapping[str, float], keys: Sequence[str]) -> float:
    """Of ``seconds`` those of calls that were timed together: in turn in a pool, pools side by side; or ``WHOLE``."""
    if WHOLE in keys:
        return seconds[WHOLE]
    by_pool: dict[str, float] = {}
    for call in facts.dataflow.calls:
        if call.key in keys:
            pool = plan.generation_pool_of(call.role) if call.kind == "generate" else plan.pool_of(call.role)
            by_pool[pool.name] = by_pool.get(pool.name, 0.0) + seconds[call.key]
    return max(by_pool.values())


def planned_s(plan: Plan, facts: Facts) -> dict[str, float]:
    """Seconds of every call of a plan on average, and of ``WHOLE`` the iteration, as ``simulate`` has it."""
    return played_s(plan, facts, {key: float(cost.time.s) for key, cost in price_calls(plan, facts).items()})


def played_s(plan: Plan, facts: Facts, alone_s: Mapping[str, float]) -> dict[str, float]:
    """Seconds of every call among the calls that it meets, given those alone, and of ``WHOLE`` the iteration.

    Those of calls are what their times are on average, whether others wait for the slowest of them or not.
    """
    calls = beside_others(plan, facts, alone_s)
    return {**calls, WHOLE: max(record.end_s for record in in_company(plan, facts, calls))}
