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
    """So many nodes of the cluster stay free."""

    nodes: int

    def __str__(self) -> str:
        return f"spare_nodes: {self.nodes}"


def check_share(facts: Facts, share: Share) -> None:
    """Raise ``InputError`` for roles that the job does not have, and for fewer than two."""
    for role in share.roles:
        if role not in facts.dataflow.roles:
            raise UnknownNameError("role to share", role, facts.dataflow.roles)
    if len(set(share.roles)) < 2:
        raise InputError(f"pin of {share}: name two roles or more")


def check_spare(facts: Facts, spares: list[Spare]) -> None:
    """Raise ``InputError`` if no node would be left, or if the number is given twice."""
    nodes = facts.group.nodes
    if len(spares) > 1:
        raise InputError("pin spare_nodes once")
    for spare in spares:
        if not 0 <= spare.nodes < nodes:
            raise InputError(f"pin of spare_nodes: {spare.nodes} of {nodes:,} nodes; at least one must be left to use")
