"""Megatron-Core's own ``swap_model_weights`` for ``benchmarks/transition.py``: two models, a plan made once, copies."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from benchmarks.transition_cases import Outcome, fill_whole, wrong_tensors
from executor.engines.megatron.session import ParallelSizes, megatron_session
from executor.weights.megatron_layout import MegatronLayout
from executor.weights.memory_meter import MemoryMeter
from simulator.plan.groups import Degrees

if TYPE_CHECKING:
    from executor.weights.architecture import Architecture


class Swap:
    """Reshards a Megatron model of the training degrees into one of the generation degrees, on one rank."""

    def __init__(self, arch: Architecture, x: Degrees, rank: int) -> None:
        self.arch, self.degrees, self.rank = arch, x, rank
        target = Degrees(x.pg, x.tg, x.num_replicas, x.pg, x.tg)
        self.models = [_model(arch, degrees) for degrees in (x, target)]
        self.layouts = [MegatronLayout(arch, degrees) for degrees in (x, target)]
        self.tensors = [{f"0:{name}": p.data for name, p in m.named_parameters()} for m in self.models]
        fill_whole(arch, self.layouts[0], rank, self.tensors[0])
        self.times_s: list[float] = []
        self._counted, self._meter = [0, 0], MemoryMeter()
        self.once()  # this one makes the plan
        self.times_s.clear()

    def once(self) -> None:
        """One swap, between two barriers."""
        self._counted[:] = [0, 0]
        dist.barrier()
        started_s = time.perf_counter()
        with megatron_session(ParallelSizes.of(self.degrees)), _counting(self._counted), torch.no_grad():
            from megatron.core.resharding.refit import swap_model_weights

            with MemoryMeter([*self.tensors[0].values(), *self.tensors[1].values()]) as self._meter:
                swap_model_weights([self.models[0]], [self.models[1]], "gloo")
        dist.barrier()
        self.times_s.append(time.perf_counter() - started_s)

    def outcome(self) -> Outcome:
        """What the swaps did here, all tensors compared."""
        wrong = wrong_tensors(self.arch, self.layouts[1], self.rank, self.tensors[1])
        received, sent, source = self._counted[1], self._counted[0], self.tensors[0].values()
        return Outcome(
            received,
            sent,
            self._meter.peak_bytes,
            0,
            sum(tensor.nbytes for tensor in source),
            min(self.times_s),
            {},
            tuple(wrong),
            times_s=tuple(self.times_s),
        )


def _model(arch: Architecture, degrees: Degrees) -> Any:
    with megatron_session(ParallelSizes.of(degrees)):
        from megatron.core.process_groups_config import ProcessGroupCollection

        from executor.engines.megatron.model import build_chunks, transformer_config

        layout = MegatronLayout(arch, degrees)
        config = transformer_config(
            arch, layout, torch.float32, sequence_parallel=False, recompute="none", device=torch.device("cpu")
        )
        (model,) = build_chunks(arch, layout, config)
        model.pg_collection = ProcessGroupCollection.use_mpu_process_groups()
        return model


def _counting(counted: list[int]) -> ExitStack:
    """Count bytes of point-to-point messages: ``[sent, received]``."""
    theirs = dist.batch_isend_irecv

    def counting(operations: list[Any]) -> Any:
        for operation in operations:
            counted[operation.op is dist.irecv] += operation.tensor.nbytes
        return theirs(operations)

    stack = ExitStack()
    stack.enter_context(patch.object(dist, "batch_isend_irecv", counting))
    return stack
