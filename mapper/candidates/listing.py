"""Candidate tables: for each role, every configuration on every kind and pool size, priced, filtered and pruned.

Pricing goes in steps (``stepwise``), each some numbers of GPUs from listing to pruning: so memory stays small, and when
time is up there is something of everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates import layouts
from mapper.candidates.engine import EnginePrices, bytes_apart, engine_rows
from mapper.candidates.floors import unpriced_on
from mapper.candidates.pairing import Shards, engines_beside, joined_with_engines, may_be_plain
from mapper.candidates.plain import plain_engine
from mapper.candidates.pruning import pruned_rows
from mapper.candidates.relaxation import Credit
from mapper.candidates.stepwise import price_early, price_in_turn, price_others, steps_of
from mapper.candidates.table import RoleTable, joined
from mapper.candidates.weights import ListedDegrees, copies_of, pairs, smallest_pool, weights_table, with_offload
from mapper.deadline import NEVER
from mapper.execution_mode import GENERATOR
from mapper.pins import pin_of
from simulator.cost.role_layouts import RoleLayouts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mapper.candidates.engine import EngineCandidates
    from mapper.candidates.pairing import Beside
    from mapper.candidates.plain import Mask
    from mapper.candidates.scoring import PricedCandidates
    from mapper.deadline import Deadline
    from mapper.problem import Problem
    from profiles.records import Floats, Ints

PAIRS_AT_ONCE = 100_000
"""Pairs of weights and engine configurations that are priced at once: some 100 MB."""

MANY_STEPS = 8
"""With more steps than that, a role that generates waits for the others to say what is worth an engine."""

MostSeconds = Callable[[RoleTable], "Floats"]
"""Seconds that transition and generation may take at most with each row for it to be worth keeping, ``[C]``."""


def bounding_tables(
    problem: Problem, roles: Sequence[str], prune: bool = True, deadline: Deadline = NEVER
) -> dict[str, RoleTable]:
    """``bounding_table`` of several roles; of what was priced by ``deadline`` (then they have an ``unpriced``)."""
    tables = tables_by_step(problem, roles, prune, deadline)
    return {role: worth_keeping(problem, table) for role, table in tables.items()} if prune else tables


def tables_by_step(
    problem: Problem,
    roles: Sequence[str],
    prune: bool = True,
    deadline: Deadline = NEVER,
    worth_pairing: Callable[[dict[str, RoleTable], str, str], MostSeconds] | None = None,
) -> dict[str, RoleTable]:
    """The same with rows that one of another step beats: those on other numbers of GPUs.

    ``worth_pairing``: asked, where a role that trains and generates has many steps, which of its rows are worth an
    engine, by what is priced so far: of that role the early steps, of the others all.
    """
    device_types = [
        (i, device_type) for i, device_type in enumerate(problem.facts.device_types) if problem.sizes[device_type]
    ]
    by_role = {
        role: [RowsOnKind(problem, role, i, device_type, prune) for i, device_type in device_types] for role in roles
    }
    price_in_turn([rows for of_role in by_role.values() for rows in of_role if not rows.waits(worth_pairing)], deadline)
    waiting = [rows for of_role in by_role.values() for rows in of_role if rows.waits(worth_pairing)]
    if worth_pairing is not None and waiting:
        price_early(waiting, deadline)
        for rows in waiting if not deadline.is_over() else []:
            rows.most_s = worth_pairing(_joined_of_kinds(by_role), rows.role, rows.device_type)
        price_others(waiting, deadline)
    return _joined_of_kinds(by_role)


def _joined_of_kinds(by_role: Mapping[str, Sequence[RowsOnKind]]) -> dict[str, RoleTable]:
    """What is priced of each role, rows that are in no plan last."""
    tables = {role: joined([rows.table() for rows in of_role]) for role, of_role in by_role.items()}
    away = {role: table.credit.unlisted for role, table in tables.items()}
    return {r: t.take(np.argsort(away[r], kind="stable")) if np.any(away[r]) else t for r, t in tables.items()}


def worth_keeping(problem: Problem, table: RoleTable) -> RoleTable:
    """The rows that no other on GPUs of the same kind beats; those that are in no plan last."""
    kept = [np.zeros(0, dtype=np.int64)]
    for i, device_type in enumerate(problem.facts.device_types):
        rows = np.flatnonzero(table.device_type == i)
        kept.append(rows[pruned_rows(table.take(rows), problem, device_type)])
    rows = np.concatenate(kept)
    return table.take(rows[np.argsort(table.credit.unlisted[rows], kind="stable")])


class RowsOnKind:
    """The rows of one role on one kind of GPU, priced in steps; what comes out does not depend on how they are cut.

    A step has all that is listed on some numbers of GPUs, so nothing in it depends on another step.
    """

    def __init__(self, problem: Problem, role: str, position: int, device_type: str, prune: bool) -> None:
        self._problem, self.role, self._position = problem, role, position
        self.device_type, self._prune = device_type, prune
        self.most_s: MostSeconds | None = None
        self._facts, self._pin = problem.facts.on(device_type), pin_of(problem.pins, role)
        self._sizes, self._parts = problem.sizes[device_type], list[RoleTable]()
        self._cut_short: list[Ints] = []
        self._steps, self.num_early = steps_of(self._used)

    @property
    def num_left(self) -> int:
        """Steps that were not taken yet."""
        return len(self._steps) - len(self._parts)

    def waits(self, worth_pairing: object) -> bool:
        """Whether what other roles take decides which rows are worth pairing with engines."""
        generates = self.role != GENERATOR and self._problem.flow.generates(self.role)
        return worth_pairing is not None and self._prune and generates and self.num_left > MANY_STEPS

    def price_next(self, deadline: Deadline) -> None:
        """Take the next step, or part of it when ``deadline`` is over."""
        self._parts.append(self._priced(self._steps[len(self._parts)], deadline))

    def table(self) -> RoleTable:
        """All that was priced, in the order of the listing."""
        table = joined(self._parts)
        if len(self._parts) > 1:
            table = table.take(self._order(table))
        left = [*self._cut_short, *(self._used[step] for step in self._steps[len(self._parts) :])]
        if not left:
            return table
        problem, used = self._problem, np.concatenate(left)
        rest = unpriced_on(self._facts, problem.flow, self.role, problem.mode, self._position, used)
        return replace(table, unpriced=rest)

    @cached_property
    def _engines(self) -> EnginePrices:
        flow, mode = self._facts.dataflow, self._problem.mode
        if self.role == GENERATOR:
            generator = next(role for role in flow.roles if flow.generates(role))
            return EnginePrices(self._facts, generator, mode.steady_steps, self._problem.kept_prices)
        return EnginePrices(self._facts, self.role, None, self._problem.kept_prices)

    @cached_property
    def _listed(self) -> ListedDegrees:
        return ListedDegrees.of(self._facts, self._problem.flow, self.role, self._sizes[-1], self._problem.options)

    @cached_property
    def _copies(self) -> PricedCandidates | None:
        problem = self._problem
        return copies_of(self._facts, problem.flow, self.role, self._sizes[-1], self._pin, problem.options)

    @cached_property
    def _used(self) -> Ints:
        """GPUs of each entry of the listing, ``[L]``."""
        if self.role != GENERATOR:
            return self._listed.num_gpus
        shape = self._facts.roles[self._engines.role].shape
        used = layouts.generator_gpus(self._facts, shape, self._sizes, self._problem.options)
        return np.asarray(used, dtype=np.int64)

    def _order(self, table: RoleTable) -> Ints:
        """Positions of the rows in the order of the listing; those of one entry are in order already."""
        if self.role == GENERATOR:
            assert table.layouts.generation is not None, "the generator generates"
            return np.argsort(table.layouts.generation.num_gpus, kind="stable")
        order: Ints = np.lexsort((self._listed.places(table.layouts.weights), table.offload))
        return order

    def _priced(self, index: Ints, deadline: Deadline) -> RoleTable:
        """The rows of one step that fit, pruned."""
        problem, facts, role, pin = self._problem, self._facts, self.role, self._pin
        if role == GENERATOR:
            table = _generator_table(self._engines, self._used[index], self._sizes, problem, self._prune)
        else:
            listed = self._listed.take(index)
            table = weights_table(facts, problem.flow, role, self._sizes, pin, problem.options, listed, self._copies)
            if problem.options.offload:
                table = with_offload(facts, problem, table)
            if problem.flow.generates(role):
                table = self._with_generation(table, deadline)
        return self._worth_keeping(table)[0]

    def _with_generation(self, table: RoleTable, deadline: Deadline) -> RoleTable:
        """Pair every weights configuration with every engine configuration of the same GPUs, and keep what is worth it.

        Where it stands for more data-parallel ranks than it has, also with those of up to as many GPUs as these have:
        in no plan, but in the bound. Some configurations at a time, each a cross section of all, until ``deadline``.
        """
        if self._prune:
            table = table.take(pruned_rows(table, self._problem, self.device_type, keep_apart=True))
        weights = table.layouts.weights
        last = np.maximum(table.credit.last_dp, weights.dp) * (weights.num_gpus // weights.dp)
        ends, asked = np.unique(np.stack([weights.num_gpus, last]), axis=1, return_inverse=True)
        asked = asked.ravel()
        most_s = np.full(len(table), np.inf) if self.most_s is None else self.most_s(table)
        plain = may_be_plain(self._facts, self._problem, table)
        worth, simple = (np.bincount(asked, weights=some, minlength=ends.shape[1]) > 0 for some in (most_s > 0, plain))
        options = self._problem.options
        rows = engine_rows(self._engines, ends[0], ends[1], self._pin, options, self._prune, worth, simple)
        shards = Shards.of_rows(table, asked, most_s, plain)
        num_pieces = self._num_pieces(shards, rows.asked)
        parts, lefts, rights = [], [], []
        for i in range(num_pieces):
            if i and deadline.is_over():
                self._cut_short.append(ends[0])
                break
            piece = np.arange(i, len(shards.first), num_pieces)
            left, beside = self._worth_pairing(table, most_s, plain, shards, rows, piece)
            part, kept = self._worth_keeping(joined_with_engines(self._engines, table, rows, left, beside, self._sizes))
            parts.append(part)
            lefts.append(left[kept])
            rights.append(beside.engine[kept])
        whole = joined(parts)
        whole = replace(whole, num_priced=whole.num_priced + table.num_priced + rows.num_priced)
        return whole.take(np.lexsort((np.concatenate(rights), np.concatenate(lefts))))

    def _num_pieces(self, shards: Shards, answered: Ints) -> int:
        """Pieces of which none is much more than ``PAIRS_AT_ONCE``, by rows where all of a shard's pairs are kept."""
        asked = shards.asked[shards.of] if self._problem.every_degree or not self._prune else shards.asked
        num_pairs = int(np.bincount(answered, minlength=int(asked.max(initial=0)) + 1)[asked].sum())
        return max(-(-num_pairs // PAIRS_AT_ONCE), 1)

    def _worth_pairing(
        self, table: RoleTable, most_s: Floats, plain: Mask, shards: Shards, rows: EngineCandidates, piece: Ints
    ) -> tuple[Ints, Beside]:
        """Rows of the shards ``piece`` and engines beside each: those short enough, and those that may be plain."""
        best = self._prune and not self._problem.every_degree
        beside = engines_beside(self._engines, table, shards, rows, piece, best)
        members = np.flatnonzero(np.isin(shards.of, piece))
        left, right = pairs(shards.of[members], beside.shards)
        left, beside = members[left], beside.take(right)
        keep = beside.transition_s + rows.seconds[beside.engine] <= most_s[left]
        keep |= plain[left] & plain_engine(self._facts, rows.engine)[beside.engine]
        return left[keep], beside.take(keep)

    def _worth_keeping(self, table: RoleTable) -> tuple[RoleTable, Ints]:
        """The rows that fit, pruned, and their positions in ``table``."""
        facts, pin = self._facts, self._pin
        capacity = facts.memory_room_bytes
        granted = table.relaxed() if table.credit.any else table
        fits = (granted.resident_bytes + granted.transient_bytes <= capacity) & (pin.device in (None, self.device_type))
        only_granted = table.resident_bytes + table.transient_bytes > capacity
        credit = replace(table.credit, unlisted=table.credit.unlisted | (only_granted & fits))
        kept = np.flatnonzero(fits)
        table = replace(table, credit=credit).take(kept)
        table = replace(table, device_type=np.full(len(table), self._position, dtype=np.int64))
        if not self._prune:
            return table, kept
        best = pruned_rows(table, self._problem, self.device_type)
        return table.take(best), kept[best]


def _generator_table(
    engines: EnginePrices, used: Ints, sizes: tuple[int, ...], problem: Problem, prune: bool
) -> RoleTable:
    """Engine configurations of an actor that generates on a dedicated pool; the transfer of weights is not priced.

    Any number of engine replicas up to one per sample: what the fullest has to do counts, as for data-parallel ranks.
    """
    facts, role, steady_steps = engines.facts, engines.role, problem.mode.steady_steps
    pin = pin_of(problem.pins, GENERATOR)
    rows = engine_rows(engines, used, used, pin, problem.options, prune)
    calls = [call.key for call in facts.dataflow.calls_of(role) if call.kind == "generate"]
    return RoleTable(
        role=GENERATOR,
        device_type=np.zeros(len(rows.seconds), dtype=np.int64),
        num_gpus=smallest_pool(rows.engine.num_gpus, sizes),
        durations_s={"transition": np.zeros(len(rows.seconds))} | dict.fromkeys(calls, rows.seconds),
        resident_bytes=np.full(len(rows.seconds), facts.generation.memory_reserve_bytes),
        transient_bytes=bytes_apart(facts, role, rows),
        layouts=RoleLayouts(generation=rows.engine, separate_generation=True, steady_steps=steady_steps),
        num_priced=rows.num_priced,
        offload=np.zeros(len(rows.seconds), dtype=np.int64),
        credit=Credit.none(len(rows.seconds)),
    )
