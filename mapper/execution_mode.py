"""Where the actor generates, and when: on the GPUs that it trains on, or on a dedicated pool, in turn or at once.

On a dedicated pool the generating actor is a role by itself in the search, ``generator``: it has its own
configurations, weights and GPUs. It runs the transfer of the new weights too, whose price also depends on the GPUs
that send; ``mapper.candidates.weight_sync`` sees to that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from profiles.errors import InputError
from simulator.plan.dataflow import CONTROLLER, Dataflow, overlapped_calls
from simulator.plan.plan import GENERATOR as GENERATOR

if TYPE_CHECKING:
    from simulator.plan.plan import Plan, Schedule


@dataclass(frozen=True)
class ExecutionMode:
    """How the iterations of a plan follow each other.

    Parameters
    ----------
    schedule
        As in ``Plan``: ``sync``, or one that trains on samples of an earlier iteration while it generates.
    dedicated_rollout
        The actor generates on a dedicated pool.
    steps_in_flight, in_flight_updates
        As in ``Plan``.
    """

    schedule: Schedule = "sync"
    dedicated_rollout: bool = False
    steps_in_flight: int = 1
    in_flight_updates: bool = False

    def __post_init__(self) -> None:
        if self.schedule != "sync" and not self.dedicated_rollout:
            raise InputError(
                f"schedule {self.schedule} generates while it trains, which takes a dedicated generation pool; "
                "allow one (generation_pool: own) or use schedule sync"
            )
        if self.steps_in_flight < 1 or (self.steps_in_flight > 1 and self.schedule != "async"):
            raise InputError(
                f"schedule {self.schedule} with {self.steps_in_flight} steps in flight: only async keeps several"
            )
        if self.in_flight_updates and self.schedule == "sync":
            raise InputError("in-flight updates need a schedule that generates while it trains, not sync")

    @property
    def overlapped(self) -> bool:
        """Whether generation and training run at once."""
        return self.schedule != "sync"

    @property
    def steady_steps(self) -> int | None:
        """Iterations of samples that the engines always hold, or ``None`` where they drain."""
        return self.steps_in_flight if self.schedule == "async" else None

    def __str__(self) -> str:
        pool = "a dedicated generation pool" if self.dedicated_rollout else "generation on the actor's GPUs"
        return f"{self.schedule}, {pool}"


SYNC = ExecutionMode()


def mode_of(plan: Plan) -> ExecutionMode:
    """The mode that a plan runs in."""
    own = any(entry.separate_generation for entry in plan.roles)
    return ExecutionMode(plan.schedule, own, plan.steps_in_flight, plan.in_flight_updates)


def search_flow(flow: Dataflow, mode: ExecutionMode) -> Dataflow:
    """The calls as the search places them.

    Every call waits for the transfer, on whatever pool it runs, so the transfer needs no turn on the trainer's pool. A
    transfer into running engines takes no turn on theirs either: it is beside both, as the controller's calls are.
    """
    if not mode.dedicated_rollout:
        return flow
    calls = overlapped_calls(flow.calls, mode.overlapped, mode.in_flight_updates)
    beside = CONTROLLER if mode.in_flight_updates else GENERATOR
    role = {"generate": GENERATOR, "transition": beside}
    calls = tuple(replace(call, role=role.get(call.kind, call.role)) for call in calls)
    roles = tuple(r for role in flow.roles for r in ((role, GENERATOR) if flow.generates(role) else (role,)))
    return Dataflow(flow.algorithm, roles, calls)
