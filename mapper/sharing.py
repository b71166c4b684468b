"""Pins that are not about one role: who shares a pool and who does not, and nodes that stay free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from mapper.problem import Sets
    from simulator.facts import Facts


@dataclass(frozen=True)
class Share:
    """All of ``roles`` share one pool (``wanted``), or no two of them do."""

    roles: tuple[str, ...]
    wanted: bool

    def allows(self, partition: Sets) -> bool:
        """Whether a placement agrees."""
        if self.wanted:
            return any(set(self.roles) <= set(group) for group in partition)
        return all(len(set(self.roles) & set(group)) < 2 for group in partition)

    def __str__(self) -> str:
        return f"share: {'require' if self.wanted else 'forbid'} {', '.join(self.roles)}"


@dataclass(frozen=True)
class Spare:
    """So many nodes stay free, of one kind of GPU where the cluster has several."""

    nodes: int
    kind: str | None = None

    def __str__(self) -> str:
        return f"spare_nodes: {self.nodes}" + (f" of {self.kind}" if self.kind else "")


def check_share(roles: tuple[str, ...], share: Share) -> None:
    """Raise ``InputError`` for roles that are not among ``roles``, and for fewer than two."""
    for role in share.roles:
        if role not in roles:
            raise UnknownNameError("role to share", role, roles)
    if len(set(share.roles)) < 2:
        raise InputError(f"pin of {share}: name two roles or more")


def check_spare(facts: Facts, spares: list[Spare]) -> None:
    """Raise ``InputError`` if no node would be left, a kind is not there, or a number is given twice."""
    if len({spare.kind for spare in spares}) < len(spares) or (len(spares) > 1 and None in {s.kind for s in spares}):
        raise InputError("pin spare_nodes once, or once for each kind of GPU")
    for spare in spares:
        if spare.kind is None and len(facts.device_types) > 1:
            raise InputError(
                f"pin of spare_nodes: {spare.nodes} of which kind? The cluster has {', '.join(facts.device_types)}; "
                f"write spare_nodes: {{{facts.device_types[0]}: {spare.nodes}}}"
            )
        kind = spare.kind or facts.device_types[0]
        if kind not in facts.device_types:
            raise UnknownNameError("device of spare_nodes", kind, facts.device_types)
        nodes = facts.on(kind).group.nodes
        least = 0 if len(facts.device_types) == 1 else -1  # of several kinds one may stay free altogether
        if not 0 <= spare.nodes < nodes - least:
            raise InputError(f"pin of spare_nodes: {spare.nodes} of {nodes:,} nodes; at least one must be left to use")
