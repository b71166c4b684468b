"""RL dataflows as data: which role calls what, in which order, on whose outputs.

A dataflow is a list of calls in the order of the algorithm's script. Call names are the primitive APIs of the
HybridFlow paper (Table 4). The controller runs ``compute_advantage`` itself and waits for its inputs there, so
every later call of the script also waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from profiles.errors import InputError, UnknownNameError
from simulator.plan.algorithms import algorithm_of

if TYPE_CHECKING:
    from simulator.plan.algorithms import Algorithm

Stage = Literal["generation", "transition", "preparation", "training", "weight_sync", "other"]
STAGES: tuple[Stage, ...] = ("generation", "transition", "preparation", "training", "weight_sync", "other")

CallKind = Literal["generate", "transition", "forward", "train", "controller"]

CONTROLLER = "controller"


@dataclass(frozen=True)
class Call:
    """One call of an iteration.

    Parameters
    ----------
    key
        Unique name in the dataflow, ``api`` plus a suffix where an API is called twice.
    role
        The model that runs it, or ``controller``.
    inputs
        Keys of the calls whose outputs it needs.
    """

    key: str
    api: str
    role: str
    stage: Stage
    kind: CallKind
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataflow:
    """The calls of one iteration in call order, and the roles that run them."""

    algorithm: str
    roles: tuple[str, ...]
    calls: tuple[Call, ...]

    def calls_of(self, role: str) -> tuple[Call, ...]:
        """The calls of one role, in call order."""
        return tuple(call for call in self.calls if call.role == role)

    def index(self, key: str) -> int:
        """Position of a call in call order."""
        return next(i for i, call in enumerate(self.calls) if call.key == key)

    def is_trained(self, role: str) -> bool:
        """Whether the role's weights are updated in the iteration."""
        return any(call.kind == "train" for call in self.calls_of(role))

    def generates(self, role: str) -> bool:
        """Whether the role generates responses."""
        return any(call.kind == "generate" for call in self.calls_of(role))


_SCORERS: dict[str, str] = {
    "critic": "compute_values",
    "reference": "compute_ref_log_prob",
    "reward": "compute_reward",
    "cost": "compute_cost",
}


@cache
def build_dataflow(algorithm: str, roles: tuple[str, ...], old_log_prob: bool = False) -> Dataflow:
    """The dataflow of ``algorithm`` for the models that are there; ``old_log_prob`` adds the actor's own scoring pass.

    Raises ``UnknownNameError`` for an unknown algorithm and ``InputError`` for a missing or superfluous role.
    """
    what = algorithm_of(algorithm)
    _check_roles(what, roles)
    calls = _generation_calls(what)
    if old_log_prob:
        sampled = ("generate_sequences",)
        calls.append(Call("compute_log_prob", "compute_log_prob", "actor", "preparation", "forward", sampled))
    calls += _preparation_calls(what, roles)
    prepared = tuple(call.key for call in calls if call.stage in ("generation", "preparation", "other"))
    calls.append(Call("compute_advantage", "compute_advantage", CONTROLLER, "other", "controller", prepared))
    calls += _training_calls(what, roles)
    order = tuple(r for r in ("actor", "critic", "reference", "reward", "cost") if r in roles)
    return Dataflow(algorithm, order, tuple(calls))


def overlapped_calls(calls: tuple[Call, ...], overlapped: bool, in_flight: bool) -> tuple[Call, ...]:
    """The calls of the steady state of a schedule that trains on samples of an earlier iteration.

    Nothing waits for this iteration's generation, everything for the transfer of weights that opens the iteration; with
    ``in_flight`` updates generation does not wait for that either. Not ``overlapped``: the calls as they are.
    """
    if not overlapped:
        return calls
    out = []
    for call in calls:
        inputs = call.inputs
        if call.kind != "generate":
            inputs = tuple("transition" if key.startswith("generate_sequences") else key for key in inputs)
        elif in_flight:
            inputs = ()
        out.append(replace(call, inputs=tuple(dict.fromkeys(inputs))))
    return tuple(out)


def _check_roles(algorithm: Algorithm, roles: tuple[str, ...]) -> None:
    known = (*algorithm.roles, *algorithm.optional_roles)
    for role in roles:  # before what is missing: a misspelt role is both
        if role not in known:
            raise UnknownNameError(f"role of {algorithm.name}", role, known)
    missing = [r for r in algorithm.roles if r not in roles]
    if missing:
        raise InputError(
            f"{algorithm.name} needs a model for {', '.join(missing)}; models names {', '.join(sorted(roles))}"
        )


def _generation_calls(algorithm: Algorithm) -> list[Call]:
    generate = "generate_sequences"
    calls = [
        Call("transition", "transition", "actor", "transition", "transition"),
        Call(generate, generate, "actor", "generation", "generate", ("transition",)),
    ]
    if algorithm.greedy_baseline:  # do_sample=False
        calls.append(Call(f"{generate}:greedy", generate, "actor", "generation", "generate", ("transition",)))
    return calls


def _preparation_calls(algorithm: Algorithm, roles: tuple[str, ...]) -> list[Call]:
    sampled = ("generate_sequences",)
    calls = []
    scorers = [role for role in ("critic", "reference", "reward", "cost") if role in roles]
    for role in (*scorers, *((CONTROLLER,) if "reward" not in roles else ())):
        api = _SCORERS.get(role, "compute_reward")
        stage: Stage = "other" if role == CONTROLLER else "preparation"
        kind: CallKind = "controller" if role == CONTROLLER else "forward"
        calls.append(Call(api, api, role, stage, kind, sampled))
        if api == "compute_reward" and algorithm.greedy_baseline:
            calls.append(Call(f"{api}:greedy", api, role, stage, kind, ("generate_sequences:greedy",)))
    return calls


def _training_calls(algorithm: Algorithm, roles: tuple[str, ...]) -> list[Call]:
    ready: tuple[str, ...] = ("compute_advantage",)
    calls = []
    if "critic" in roles:
        calls.append(Call("update_critic", "update_critic", "critic", "training", "train", ready))
    if algorithm.pretraining_loss:  # of the actor on a batch of its own
        calls.append(Call("compute_loss", "compute_loss", "actor", "training", "forward", ready))
        ready = (*ready, "compute_loss")
    calls.append(Call("update_actor", "update_actor", "actor", "training", "train", ready))
    return calls
