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
from executor.transition.megatron_layout import MegatronLayout
from executor.transition.memory_meter import MemoryMeter
from simulator.groups import Degrees

if TYPE_CHECKING:
    from executor.transition.architecture import Architecture


def run_swap(arch: Architecture, x: Degrees, rank: int, repeats: int) -> Outcome:
    """Reshard a Megatron model of the training degrees into one of the generation degrees, on one rank."""
    target = Degrees(x.pg, x.tg, x.num_replicas, x.pg, x.tg)
    models = [_model(arch, degrees) for degrees in (x, target)]
    layouts = [MegatronLayout(arch, degrees) for degrees in (x, target)]
    tensors = [{f"0:{name}": p.data for name, p in m.named_parameters()} for m in models]
    fill_whole(arch, layouts[0], rank, tensors[0])
    counted, best, meter = [0, 0], float("inf"), MemoryMeter()
    for _ in range(repeats + 1):  # the first makes the plan
        counted[:] = [0, 0]
        dist.barrier()
        started_s = time.perf_counter()
        with megatron_session(ParallelSizes.of(x)), _counting(counted), torch.no_grad():
            from megatron.core.resharding.refit import swap_model_weights

            with MemoryMeter([*tensors[0].values(), *tensors[1].values()]) as meter:
                swap_model_weights([models[0]], [models[1]], "gloo")
        dist.barrier()
        best = min(best, time.perf_counter() - started_s)
    wrong = wrong_tensors(arch, layouts[1], rank, tensors[1])
    source_bytes = sum(tensor.nbytes for tensor in tensors[0].values())
    return Outcome(counted[1], counted[0], meter.peak_bytes, 0, source_bytes, best, {}, tuple(wrong))


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
