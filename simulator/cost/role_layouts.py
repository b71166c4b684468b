"""Candidate layouts of one role, and the calls that it runs in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulator.plan.layouts import GenerationLayouts, Layouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.models.shape import Head
    from profiles.records import Ints
    from simulator.facts import Facts
    from simulator.plan.dataflow import Call
    from simulator.plan.plan import Offload, Plan, RolePlan


@dataclass(frozen=True, eq=False)
class RoleLayouts:
    """Candidate layouts of one role, by column; each present one has the same length ``C``.

    ``training`` is there for a trained role, ``inference`` for one that scores, ``generation`` for the actor.
    ``separate_generation``: it generates on a dedicated pool; ``steady_steps`` iterations of samples are in its
    engines at any time, or ``None`` where each generation ends before the next begins; ``offload``: what waits in
    host memory while another call has the GPUs.
    """

    training: Layouts | None = None
    inference: Layouts | None = None
    generation: GenerationLayouts | None = None
    separate_generation: bool = False
    steady_steps: int | None = None
    offload: tuple[Offload, ...] = ()

    def take(self, index: Ints) -> RoleLayouts:
        """The candidates at ``index``, in that order.

        Parameters
        ----------
        index
            Positions, ``[K]``.

        Returns
        -------
        RoleLayouts
            The candidates there, ``[K]``.
        """
        return replace(
            self,
            training=None if self.training is None else self.training.take(index),
            inference=None if self.inference is None else self.inference.take(index),
            generation=None if self.generation is None else self.generation.take(index),
        )

    @staticmethod
    def joined(parts: Sequence[RoleLayouts]) -> RoleLayouts:
        """Several candidate lists of one role after each other.

        Parameters
        ----------
        parts
            Lists of candidates of one role, all with the same stages and the same of the rest.

        Returns
        -------
        RoleLayouts
            One list.
        """
        first = parts[0]
        return replace(
            first,
            training=None
            if first.training is None
            else Layouts.joined([p.training for p in parts if p.training is not None]),
            inference=None
            if first.inference is None
            else Layouts.joined([p.inference for p in parts if p.inference is not None]),
            generation=None
            if first.generation is None
            else GenerationLayouts.joined([p.generation for p in parts if p.generation is not None]),
        )

    @property
    def weights(self) -> Layouts:
        """The layout that the role's weights rest in."""
        layouts = self.training if self.training is not None else self.inference
        assert layouts is not None, "every role trains or scores"
        return layouts


def head_of(role: str) -> Head:
    """Actor and reference end in the vocabulary head, the other models in one scalar per token.

    Parameters
    ----------
    role
        Name in the dataflow.

    Returns
    -------
    Head
        ``lm`` or ``scalar``.
    """
    return "lm" if role in ("actor", "reference") else "scalar"


def calls_of(facts: Facts, role: str, layouts: RoleLayouts) -> tuple[Call, ...]:
    """The calls of a role that run in these layouts: without one for generation, all but generation and transition.

    Parameters
    ----------
    role
        Name in the dataflow.
    layouts
        Of the role, ``[C]``.

    Returns
    -------
    tuple[Call, ...]
        Calls in the dataflow's order.
    """
    calls = facts.dataflow.calls_of(role)
    engine = ("generate", "transition")
    return calls if layouts.generation is not None else tuple(c for c in calls if c.kind not in engine)


def layouts_of(entry: RolePlan, plan: Plan | None = None) -> RoleLayouts:
    """The layouts of one role as a list of one candidate.

    Parameters
    ----------
    entry
        Of the role.
    plan
        Adds its schedule, where there is one.

    Returns
    -------
    RoleLayouts
        ``[1]``.
    """
    steady = plan.steps_in_flight if plan is not None and plan.schedule == "async" else None
    return RoleLayouts(
        separate_generation=entry.separate_generation,
        steady_steps=steady,
        offload=entry.offload,
        training=Layouts.of([entry.training]) if entry.training else None,
        inference=Layouts.of([entry.inference]) if entry.inference else None,
        generation=GenerationLayouts.of([entry.generation]) if entry.generation else None,
    )
