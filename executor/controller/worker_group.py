"""Worker groups: one model as the script sees it. A call on the group is a call on every rank, by its protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.worker.futures import Future
from executor.worker.protocols import Skip, registration_of
from profiles.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.controller.controller import Controller
    from executor.worker.protocols import Registration
    from simulator.plan.groups import Degrees


@dataclass(frozen=True)
class WorkerGroup:
    """The ranks of one role. Methods that its worker class registers are methods here, and return futures at once.

    ``scoring``: the degrees of calls that score, where they differ from those of training.
    """

    controller: Controller
    role: str
    pool: str
    worker_class: type
    degrees: Degrees
    scoring: Degrees | None = None

    def __getattr__(self, method: str) -> Callable[..., Any]:
        registration = registration_of(self.worker_class, method)
        if registration is None:
            if method.startswith("_"):
                raise AttributeError(method)
            raise UnknownNameError(f"call of {self.role}", method, callable_methods(self.worker_class))

        def call(argument: Any = None, *, suffix: str = "", **options: Any) -> Any:
            number = self.controller.next_number()
            return self._call(number, method, registration, argument, suffix, options)

        return call

    def call_numbered(self, number: int, method: str, options: dict[str, Any]) -> Any:
        """Make a call without an argument that shares its place in call order with one of another group."""
        registration = registration_of(self.worker_class, method)
        assert registration is not None, f"{method} is a call of {self.role}"
        return self._call(number, method, registration, None, "", options)

    def _call(
        self, number: int, method: str, registration: Registration, argument: Any, suffix: str, options: dict[str, Any]
    ) -> Any:
        degrees = self.scoring if registration.scores and self.scoring is not None else self.degrees
        protocol = registration.protocol
        inputs: list[Any] = [None] * degrees.num_ranks
        steps, dealing = self.controller.dealt_steps, None
        if isinstance(argument, Future):
            argument = argument.reading(registration.reads)
            if protocol.deals and steps and degrees.d > 1:
                dealing = argument.dealing(degrees.d, steps)
        if argument is not None or protocol.name == "RANK_ZERO":
            inputs = protocol.distribute(argument, degrees)
        if dealing is not None:
            inputs = [share.dealt(dealing) for share in inputs]
        columns = registration.returns(options) if registration.returns else None
        sources = set() if columns == frozenset() else set(protocol.sources(degrees))
        outputs = self._dispatch(number, method, suffix, inputs, sources, options)
        value = protocol.collect([out.having(columns) if out else None for out in outputs], degrees)
        return value.dealt(dealing) if dealing is not None and isinstance(value, Future) else value

    def _dispatch(
        self, number: int, method: str, suffix: str, inputs: list[Any], sources: set[int], options: dict[str, Any]
    ) -> list[Future | None]:
        """Hand a call to every rank that has an input; one future per rank, ``None`` for ranks left out."""
        key = f"{method}:{suffix}" if suffix else method
        asked = {rank: value for rank, value in enumerate(inputs) if value is not Skip}
        futures = self.controller.dispatch(self, number, key, method, asked, sources, options)
        return [futures.get(rank) for rank in range(self.degrees.num_ranks)]


def callable_methods(worker_class: type) -> list[str]:
    """Names of the methods that a worker class registers."""
    return [name for name in dir(worker_class) if registration_of(worker_class, name) is not None]
