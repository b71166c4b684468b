"""Training and scoring configurations of one role: listed by spread, paired, with what they keep and need.

A spread is one (dp, tp, pp, cp, ep) on one pool size with one ZeRO stage. A trained role scores in the spread that it
trains in, with a micro-batch of its own, or where ``SearchOptions`` allows it on a copy of its weights in another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates import layouts
from mapper.candidates.relaxation import last_degrees, weights_slack
from mapper.candidates.scoring import NUM_ZERO_STAGES, PricedCandidates, Spreads, priced, priced_copies, with_copies
from mapper.candidates.table import RoleTable, joined
from mapper.pins import Pin, Stage, matching, pinned_budgets
from mapper.search_options import FROZEN_OFFLOADS, OFFLOADS
from simulator.cost import memory, pricing
from simulator.cost.role_layouts import RoleLayouts, head_of
from simulator.cost.role_memory import planned_bytes
from simulator.plan.plan import RECOMPUTE_LEVELS

if TYPE_CHECKING:
    from mapper.problem import Problem
    from mapper.search_options import SearchOptions
    from profiles.records import Ints
    from simulator.facts import Facts
    from simulator.plan.dataflow import Dataflow
    from simulator.plan.layouts import Layouts

RECOMPUTE_INDICES = tuple(range(len(RECOMPUTE_LEVELS)))

Degrees = tuple[int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class ListedDegrees:
    """``(dp, tp, pp, cp, ep)`` in order, the last data-parallel degree that each stands for, and its GPUs, ``[S]``."""

    degrees: tuple[Degrees, ...]
    last_dp: Ints
    num_gpus: Ints

    @staticmethod
    def of(facts: Facts, flow: Dataflow, role: str, most_gpus: int, options: SearchOptions) -> ListedDegrees:
        """All that a role may have on up to ``most_gpus`` GPUs."""
        work, kinds = facts.workload, {call.kind for call in flow.calls_of(role)}
        dealt = {work.minibatch_samples if "train" in kinds else work.num_samples}
        if len(kinds) > 1:
            dealt.add(work.num_samples)  # scoring and generation deal all at once
        listed = layouts.degrees(facts, facts.roles[role].shape, most_gpus, *sorted(dealt), options=options)
        used = np.asarray([dp * tp * pp * cp for dp, tp, pp, cp, _ in listed], dtype=np.int64)
        return ListedDegrees(tuple(listed), last_degrees(listed), used)

    def take(self, index: Ints) -> ListedDegrees:
        """Those at ``index``."""
        degrees = tuple(self.degrees[i] for i in index.tolist())
        return ListedDegrees(degrees, self.last_dp[index], self.num_gpus[index])

    def places(self, layouts: Layouts) -> Ints:
        """The position of each layout's degrees, ``[C]``."""
        of_list = _packed(*np.asarray(self.degrees, dtype=np.int64).reshape(-1, 5).T)
        order = np.argsort(of_list, kind="stable")
        asked = _packed(layouts.dp, layouts.tp, layouts.pp, layouts.cp, layouts.ep)
        return np.asarray(order[np.searchsorted(of_list[order], asked)], dtype=np.int64)


def _packed(dp: Ints, tp: Ints, pp: Ints, cp: Ints, ep: Ints) -> Ints:
    return np.asarray((((dp * 2**10 + tp) * 2**11 + pp) * 2**6 + cp) * 2**11 + ep, dtype=np.int64)


def weights_table(
    facts: Facts,
    flow: Dataflow,
    role: str,
    sizes: tuple[int, ...],
    pin: Pin,
    options: SearchOptions,
    listed: ListedDegrees,
    copies: PricedCandidates | None,
) -> RoleTable:
    """Training and inference configurations in the listed degrees, without generation.

    ``copies``: priced layouts that a copy of the weights may score in, where ``options`` allows one (``copies_of``).
    """
    spec, work, degrees = facts.roles[role], facts.workload, listed.degrees
    kinds = {call.kind: call for call in flow.calls_of(role)}
    zero = facts.training.zero_stages
    if "train" not in kinds:
        zero = tuple(z for z in zero if z == 3) or (0,)
    train = forward = None
    if "train" in kinds:
        per_rank = np.asarray([-(-work.minibatch_samples // x[0]) for x in degrees], dtype=np.int64)
        chunked = spec.shape.num_layers if options.interleaving else 0
        rows = layouts.cross(degrees, zero, RECOMPUTE_INDICES, per_rank, chunked, _budgets(facts, pin, "training"))
        train = priced(facts, kinds["train"], *_pinned(pin, "training", *rows))
    if "forward" in kinds:
        per_rank = np.asarray([-(-work.num_samples // x[0]) for x in degrees], dtype=np.int64)
        rows = layouts.cross(degrees, zero, (0,), per_rank, budgets=_budgets(facts, pin, "inference"))
        forward = priced(facts, kinds["forward"], *_pinned(pin, "inference", *rows))
    if train is not None and forward is not None:
        if copies is not None:
            trained_in = Spreads.of(degrees, np.unique(train.spread), listed.last_dp)
            forward = with_copies(facts, kinds["forward"], forward, trained_in, copies)
        left, right = pairs(train.spread, forward.spread)
        train, forward = train.take(left), forward.take(right)
    return _paired(facts, flow, role, train, forward, smallest_pool(listed.num_gpus, sizes), listed.last_dp)


def copies_of(
    facts: Facts, flow: Dataflow, role: str, most_gpus: int, pin: Pin, options: SearchOptions
) -> PricedCandidates | None:
    """Priced layouts that a copy of a trained role's weights may score in; ``None`` where it may not, or does not."""
    kinds = {call.kind: call for call in flow.calls_of(role)}
    if not options.scoring_layouts or not {"train", "forward"} <= set(kinds):
        return None
    samples = facts.workload.num_samples
    degrees = layouts.degrees(facts, facts.roles[role].shape, most_gpus, samples, options=options)
    per_rank = np.asarray([-(-samples // x[0]) for x in degrees], dtype=np.int64)
    listed = layouts.cross(degrees, (0,), (0,), per_rank, budgets=_budgets(facts, pin, "inference"))
    return priced_copies(facts, kinds["forward"], *_pinned(pin, "inference", *listed))


def smallest_pool(used: Ints, sizes: tuple[int, ...]) -> Ints:
    """The smallest of ``sizes`` with at least ``used`` GPUs, elementwise."""
    ascending = np.asarray(sorted(sizes), dtype=np.int64)
    return ascending[np.searchsorted(ascending, used)]


def _budgets(facts: Facts, pin: Pin, stage: Stage) -> tuple[int, ...]:
    return layouts.token_budgets(facts, pinned_budgets(pin, stage))


def _pinned(pin: Pin, stage: Stage, layouts: Layouts, owner: Ints) -> tuple[Layouts, Ints]:
    """The layouts that a pin leaves, and their owners."""
    index = matching(pin, stage, layouts)
    return layouts.take(index), owner[index]


def _paired(
    facts: Facts,
    flow: Dataflow,
    role: str,
    train: PricedCandidates | None,
    forward: PricedCandidates | None,
    gpus_of_spread: Ints,
    last_dp: Ints,
) -> RoleTable:
    """One table of rows that pair training with inference in the same spread (or have only one of them)."""
    spec = facts.roles[role]
    present = [rows for rows in (train, forward) if rows is not None]
    by_kind = {"train": train, "forward": forward}
    durations = {call.key: rows.seconds for call in flow.calls_of(role) if (rows := by_kind.get(call.kind)) is not None}
    layouts = RoleLayouts(train.layouts if train else None, forward.layouts if forward else None)
    resident = memory.resident_bytes(facts, spec.shape, head_of(role), layouts.weights, flow.is_trained(role))
    spread = present[0].spread // NUM_ZERO_STAGES
    train_key = next((call.key for call in flow.calls_of(role) if call.kind == "train"), None)
    credit = weights_slack(facts, role, train_key, layouts.weights, last_dp[spread])
    if forward is not None and np.any(forward.gain_s > 0):
        gains = {call.key: forward.gain_s for call in flow.calls_of(role) if call.kind == "forward"}
        credit = replace(credit, seconds=credit.seconds | gains)
    return RoleTable(
        role=role,
        device_type=np.zeros(len(present[0].seconds), dtype=np.int64),
        num_gpus=gpus_of_spread[spread],
        durations_s=durations,
        resident_bytes=memory.total(resident),
        transient_bytes=np.max([rows.need_bytes for rows in present], axis=0),
        layouts=layouts,
        num_priced=sum(len(rows.seconds) for rows in present),
        offload=np.zeros(len(present[0].seconds), dtype=np.int64),
        credit=credit,
    )


def with_offload(facts: Facts, problem: Problem, table: RoleTable) -> RoleTable:
    """The rows as they are, and again with each choice of what waits in host memory; before they meet an engine.

    Copies are all that the times gain: those of the transition stand under its key until the rest of it is known.
    """
    apart = problem.mode.dedicated_rollout and facts.dataflow.generates(table.role)
    waits = problem.flow.generates(table.role)
    calls = [call for call in facts.dataflow.calls_of(table.role) if call.key in table.durations_s]
    calls += [call for call in facts.dataflow.calls_of(table.role) if call.kind == "transition" and waits]
    none = np.zeros(len(table))
    tables = []
    for i, option in enumerate(OFFLOADS if facts.dataflow.is_trained(table.role) else FROZEN_OFFLOADS):
        layouts = replace(table.layouts, offload=option, separate_generation=apart)
        resident, transient = planned_bytes(facts, table.role, layouts)
        copies = {
            c.key: pricing.host_traffic(facts, c, layouts).time.s * facts.correction(c.api, c.role) for c in calls
        }
        tables.append(
            replace(
                table,
                durations_s={key: table.durations_s.get(key, none) + s for key, s in copies.items()},
                resident_bytes=np.broadcast_to(resident, (len(table),)),
                transient_bytes=np.broadcast_to(transient, (len(table),)),
                offload=np.full(len(table), i, dtype=np.int64),
            )
        )
    return joined(tables)


def pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Index pairs ``(i, j)`` with ``left[i] == right[j]``, in order of ``i``, then of ``j``."""
    order = np.argsort(right, kind="stable")
    first, beyond = (np.searchsorted(right[order], left, side=side) for side in ("left", "right"))
    num = beyond - first
    nth = np.arange(num.sum()) - np.repeat(np.cumsum(num) - num, num)
    return np.repeat(np.arange(len(left)), num), order[np.repeat(first, num) + nth]
