"""A rank: one process that hosts a shard of every role of its pool and runs their methods in call order.

Nothing here imports torch: what a role needs, its class brings.
"""

from __future__ import annotations

import socket
import time
import traceback
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from executor.batch import drop_padding, is_batch, num_bytes, row_tokens, to_wire
from executor.checks import require_numbers
from executor.device_time import DeviceClock, kernels_into
from executor.errors import SECONDARY_FAILURES, Failure, UpstreamError
from executor.memory import peak_memory_bytes, reset_peak_memory
from executor.records import CallRecord, Drafted, Spent, WeightsMoved
from executor.worker.futures import FutureShare
from executor.worker.protocols import registration_of
from executor.worker.resolve import resolve
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from executor.faults import Fault
    from executor.records import CallRequest, Identity
    from executor.worker.protocols import Registration

    Fetch = Callable[[Sequence[Any]], list[Any]]


LOOPBACK_HOST = "127.0.0.1"
"""Where ranks of one machine meet, unless a launcher says by which address others reach theirs."""


class CallFailedError(Exception):
    """Carries a rank's ``Failure`` to the controller; made of plain values, so it can cross processes."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Worker:
    """One role's part of a rank: its registered methods are the role's calls. One without an engine counts nothing."""

    @property
    def spent(self) -> Spent:
        """What collectives and offload have taken so far."""
        return Spent()

    def weights_moved(self) -> WeightsMoved:
        """Weights received and sent since this was last asked."""
        return WeightsMoved()

    def drafted(self) -> Drafted:
        """Drafts checked since this was last asked."""
        return Drafted()


def invoke(worker: Worker, request: CallRequest, inputs: tuple[Any, ...]) -> Any:
    """Call the method of a worker that a request names."""
    return getattr(worker, request.method)(*inputs, **request.options)


class RankProcess:
    """Hosts roles and runs calls. ``fetch`` waits for references and returns their values."""

    def __init__(self, identity: Identity, fetch: Fetch) -> None:
        self.identity, self.host = identity, LOOPBACK_HOST
        self._fetch = fetch
        self._roles: dict[str, Worker] = {}
        self._invoke: Callable[[Worker, CallRequest, tuple[Any, ...]], Any] = invoke

    def address(self) -> str:
        """An address of this process where the pool's ranks can meet."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{self.host}:{free.getsockname()[1]}"

    def add_role(self, role: str, worker_class: type[Worker], options: dict[str, Any]) -> None:
        """Construct a role's worker here. Loading its model is a call of its own (``init_model``)."""
        self._roles[role] = worker_class(self.identity, **options)  # type: ignore[call-arg]  # each has options of its own

    def inject_faults(self, faults: tuple[Fault, ...]) -> None:
        """Let ``faults`` happen in the calls to come, in place of any given before."""
        from executor.worker.inject_faults import FaultInjector

        self._invoke = FaultInjector(self.identity, faults, invoke)

    def call(self, request: CallRequest) -> tuple[Any, CallRecord]:
        """Run one call; any error becomes ``CallFailedError`` with this rank's traceback."""
        try:
            return self._run(request)
        except Exception as error:
            raise CallFailedError(self._failure(request, error)) from None

    # Long by what a record says of a call: a line for each.
    def _run(self, request: CallRequest) -> tuple[Any, CallRecord]:
        worker = self._roles[request.role]
        argument = self._resolved(request.argument, registration_of(type(worker), request.method))
        before = worker.spent
        reset_peak_memory()
        start_s, clock, kernels = time.time(), DeviceClock(), dict[str, float]()
        inputs = () if argument is None else (argument,)
        with kernels_into(kernels) if request.watched else nullcontext():
            output = self._invoke(worker, request, inputs)
        require_numbers(output)
        device_s = clock.stop_s()
        end_s = time.time()
        tokens = row_tokens(argument, output)
        if is_batch(output):
            output = drop_padding(output)  # filler rows end where they were used
        stored = (to_wire(output) if is_batch(output) else output) if request.returns else None
        spent, weights = worker.spent, worker.weights_moved()
        record = CallRecord(
            request.number,
            request.key,
            request.method,
            request.role,
            self.identity.pool,
            self.identity.rank,
            start_s,
            end_s,
            comm_s=spent.comm_s - before.comm_s,
            bytes_in=num_bytes(argument) + weights.received_bytes,
            bytes_out=num_bytes(stored) + weights.sent_bytes,
            peak_memory_bytes=peak_memory_bytes(),
            num_rows=int(output.batch_size[0]) if is_batch(output) else 0,
            host_s=spent.host_s - before.host_s,
            host_bytes=spent.host_bytes - before.host_bytes,
            bucket_bytes=weights.bucket_bytes,
            weights_peak_bytes=weights.peak_bytes,
            device_s=device_s,
            kernels=kernels,
            row_tokens=tokens,
            drafted=worker.drafted(),
        )
        return self._kept(stored), record

    def _kept(self, stored: Any) -> Any:
        """What others get for an output: itself, unless a launcher lets them read it here."""
        return stored

    def _resolved(self, argument: Any, registration: Registration | None) -> Any:
        if not isinstance(argument, FutureShare):
            return argument
        return resolve(argument, self._fetch_input, registration.reads if registration else None)

    def _fetch_input(self, references: Sequence[Any]) -> list[Any]:
        try:
            return self._fetch(references)
        except Exception as error:  # whatever it was, it went wrong where the input is made, and is reported there
            raise UpstreamError(f"an input of rank {self.identity.rank} was never made") from error

    def _failure(self, request: CallRequest, error: Exception) -> Failure:
        text = "".join(traceback.format_exception(error))
        summary = f"{type(error).__name__}: {error}"
        is_secondary = isinstance(error, UpstreamError) or any(mark in summary for mark in SECONDARY_FAILURES)
        expected = isinstance(error, InputError)
        call = f"{request.role}.{request.method}"
        shown = str(error) if expected else summary
        return Failure(
            request.number, call, self.identity.pool, self.identity.rank, shown, text, is_secondary, expected
        )
