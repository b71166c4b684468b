"""Transfer protocols: how the input of a call reaches the ranks of a model, and how their outputs come back.

A protocol is a pair (distribute, collect). ``distribute`` turns one input into one input per rank, ``collect`` turns
one output per rank into one output. Both are pure functions of the model's degrees and work alike on batches
(``TensorDict``) and on futures, so resharding between two models is the source's collect followed by the
destination's distribute, and no tensor passes through the controller. Six are Table 3 of the HybridFlow paper (its
text counts eight and prints six); RANK_ZERO and PIPELINE_AS_DATA are ours to complete them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from executor.batch import is_batch, join, take_share
from executor.worker.futures import Future, FutureShare, join_futures
from profiles.errors import InputError, UnknownNameError
from simulator.plan.groups import Degrees, generation_coordinates, generation_replica, training_coordinates

Distribute = Callable[[Any, Degrees], list[Any]]
Collect = Callable[[list[Any], Degrees], Any]
Returns = Callable[[Mapping[str, Any]], frozenset[str] | None]
Ranks = Callable[[Degrees], tuple[int, ...]]
Method = TypeVar("Method", bound=Callable[..., Any])


class Skip:
    """The input of a rank that a call leaves out."""


@dataclass(frozen=True)
class TransferProtocol:
    """A named pair. ``sources`` are the ranks whose outputs ``collect`` reads; the others keep theirs.

    ``deals``: a data-parallel rank may have any rows, so they can be dealt by tokens.
    """

    name: str
    distribute: Distribute
    collect: Collect
    sources: Ranks
    deals: bool = False


PROTOCOLS: dict[str, TransferProtocol] = {}
"""Every protocol by name, the user's included."""


def add_protocol(name: str, distribute: Distribute, collect: Collect, sources: Ranks | None = None) -> TransferProtocol:
    """Add a protocol; ``InputError`` if the name is taken. Without ``sources`` every rank returns its output."""
    if name in PROTOCOLS:
        raise InputError(f"transfer protocol '{name}' exists already; known: {', '.join(sorted(PROTOCOLS))}")
    PROTOCOLS[name] = TransferProtocol(name, distribute, collect, sources or _all_ranks)
    return PROTOCOLS[name]


@dataclass(frozen=True)
class Registration:
    """What the controller knows of a worker method before it runs.

    Parameters
    ----------
    protocol
        Moves its data.
    reads
        Columns of its batch that it needs, ``None`` for all: the call waits for no others, and gets no others.
    returns
        Columns that it returns, given the call's options; ``None`` where that is not known beforehand, an empty set
        where it returns nothing at all.
    scores
        Runs in the role's layout for scoring, where the plan has another one than for training.
    """

    protocol: TransferProtocol
    reads: frozenset[str] | None = None
    returns: Returns | None = None
    scores: bool = False


def register(
    *,
    protocol: TransferProtocol | str,
    reads: Iterable[str] | None = None,
    returns: Iterable[str] | Returns | None = None,
    scores: bool = False,
) -> Callable[[Method], Method]:
    """Mark a worker method as callable from the controller; parameters as in ``Registration``.

    ``returns`` may be a function of the call's options. ``UnknownNameError`` for a protocol that does not exist.
    """
    if isinstance(protocol, str) and protocol not in PROTOCOLS:
        raise UnknownNameError("transfer protocol", protocol, PROTOCOLS)
    chosen = PROTOCOLS[protocol] if isinstance(protocol, str) else protocol
    fixed = None if returns is None or callable(returns) else frozenset(returns)
    named = returns if callable(returns) else (lambda _options: fixed) if fixed is not None else None
    registration = Registration(chosen, None if reads is None else frozenset(reads), named, scores)

    def mark(method: Method) -> Method:
        method.registration = registration  # type: ignore[attr-defined]
        return method

    return mark


def registration_of(worker_class: type, method: str) -> Registration | None:
    """How a worker class registers a method, if it does."""
    found = getattr(getattr(worker_class, method, None), "registration", None)
    return found if isinstance(found, Registration) else None


def split(value: Any, count: int) -> list[Any]:
    """``count`` shares of a batch or a future, in row order; uneven ones padded."""
    if is_batch(value):
        return [take_share(value, i, count) for i in range(count)]
    if isinstance(value, Future):
        return [FutureShare(value.parts, i, count) for i in range(count)]
    raise InputError(f"only a batch or a future can be split by rows, got {type(value).__name__}")


def whole(value: Any) -> Any:
    """What a rank gets that needs all of ``value``."""
    return FutureShare(value.parts) if isinstance(value, Future) else value


def concat(values: list[Any]) -> Any:
    """Rows of all ``values`` in order, padding dropped; lists (of weight names, say) are chained."""
    if all(isinstance(value, Future) for value in values):
        return join_futures(values)
    if all(is_batch(value) for value in values):
        return join(values)
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def _all_ranks(degrees: Degrees) -> tuple[int, ...]:
    return tuple(range(degrees.num_ranks))


def _last_stage_of_replicas(degrees: Degrees) -> tuple[int, ...]:
    """Rank (p = last, c = 0, t = 0) of every data-parallel replica: only the last stage has the output."""
    stage = degrees.t * degrees.c
    return tuple((dp * degrees.p + degrees.p - 1) * stage for dp in range(degrees.d))


def _heads_of_generation(degrees: Degrees) -> tuple[int, ...]:
    """Local rank 0 (first stage, first slice) of every generation replica, in replica order."""
    heads = [r for r in range(degrees.num_ranks) if generation_coordinates(r, degrees)[:2] == (0, 0)]
    return tuple(sorted(heads, key=lambda r: generation_replica(r, degrees)))


def _stages_of_first_replica(degrees: Degrees) -> tuple[int, ...]:
    return tuple(pp * degrees.t * degrees.c for pp in range(degrees.p))


def _stages_of_replicas(degrees: Degrees) -> tuple[int, ...]:
    """Rank t = 0 of every pipeline stage, stages taken as more replicas."""
    return tuple(range(0, degrees.num_ranks, degrees.t * degrees.c))


def _rank_zero(_x: Degrees) -> tuple[int, ...]:
    return (0,)


def _broadcast(value: Any, degrees: Degrees) -> list[Any]:
    return [whole(value)] * degrees.num_ranks


def _by_replica(value: Any, degrees: Degrees) -> list[Any]:
    shares = split(value, degrees.d)
    return [shares[training_coordinates(rank, degrees)[2]] for rank in range(degrees.num_ranks)]


def _by_generation_replica(value: Any, degrees: Degrees) -> list[Any]:
    shares = split(value, degrees.num_replicas)
    return [shares[generation_replica(rank, degrees)] for rank in range(degrees.num_ranks)]


def _by_rank(value: Any, degrees: Degrees) -> list[Any]:
    return split(value, degrees.num_ranks)


def _by_stage(value: Any, degrees: Degrees) -> list[Any]:
    shares = split(value, degrees.p * degrees.d)
    return [shares[rank // (degrees.t * degrees.c)] for rank in range(degrees.num_ranks)]


def _one_each(value: Any, degrees: Degrees) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) != degrees.num_ranks:
        raise InputError(
            f"ALL_TO_ALL takes a list of {degrees.num_ranks} inputs, one per rank, got {type(value).__name__}"
        )
    return [whole(item) for item in value]


def _first_only(value: Any, degrees: Degrees) -> list[Any]:
    return [whole(value), *[Skip] * (degrees.num_ranks - 1)]


def _gathered(sources: Ranks) -> Collect:
    return lambda outputs, x: [outputs[rank] for rank in sources(x)]


def _concatenated(sources: Ranks) -> Collect:
    return lambda outputs, x: concat([outputs[rank] for rank in sources(x)])


def _pair(name: str, distribute: Distribute, sources: Ranks, combine: Callable[[Ranks], Collect]) -> TransferProtocol:
    return add_protocol(name, distribute, combine(sources), sources)


_pair("ONE_TO_ALL", _broadcast, _all_ranks, _gathered)
PROTOCOLS["3D_PROTO"] = replace(_pair("3D_PROTO", _by_replica, _last_stage_of_replicas, _concatenated), deals=True)
# The paper's "micro-DP groups" are read as the generation replicas: those are what takes a slice of prompts each, and
# reading them as the groups that gather weights would repeat rows wherever a replica has more than one rank.
_pair("3D_ALL_MICRO_DP", _by_generation_replica, _heads_of_generation, _concatenated)
_pair("3D_PP_ONLY", _broadcast, _stages_of_first_replica, _concatenated)
_pair("DP_PROTO", _by_rank, _all_ranks, _concatenated)
_pair("ALL_TO_ALL", _one_each, _all_ranks, _gathered)
add_protocol("RANK_ZERO", _first_only, lambda outputs, _x: outputs[0], _rank_zero)
_pair("PIPELINE_AS_DATA", _by_stage, _stages_of_replicas, _concatenated)
