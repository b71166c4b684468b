"""Megatron's parallel state, one per set of degrees: roles of one process may differ, its globals know only one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.engines.megatron.cpu_shim import cuda_calls_on_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulator.plan.groups import Degrees

RANK_ORDER = "tp-cp-ep-pp-dp"
"""Tensor parallel fastest, context parallel next, data parallel slowest, as ``simulator.plan.groups`` has it.

Megatron's default differs.
"""


@dataclass(frozen=True)
class ParallelSizes:
    """What Megatron's groups depend on."""

    t: int
    p: int
    d: int
    vpp: int = 1
    ep: int = 1
    c: int = 1

    @staticmethod
    def of(degrees: Degrees, vpp: int = 1, ep: int = 1) -> ParallelSizes:
        return ParallelSizes(degrees.t, degrees.p, degrees.d, vpp, ep, degrees.c)

    @property
    def expert_t(self) -> int:
        """Tensor-parallel size of experts: the model's own, ``t c`` where stages follow context parallelism.

        No mixture has both here; Megatron wants stages of experts and of the rest to be the same ranks.
        """
        return self.t * self.c if self.p > 1 else self.t


_STATES: dict[ParallelSizes, dict[str, Any]] = {}
_CURRENT: list[ParallelSizes] = []


@contextmanager
def megatron_session(sizes: ParallelSizes) -> Iterator[None]:
    """Inside, Megatron's globals are those of ``sizes``, and CUDA calls work on a CPU.

    The first entry makes the process groups: all ranks of the pool must enter the same sizes in the same order. Not to
    be nested with other sizes.
    """
    with cuda_calls_on_cpu():
        if _CURRENT:
            assert _CURRENT[-1] == sizes, "sessions of different sizes do not nest"
            yield
            return
        from megatron.core import parallel_state

        if sizes in _STATES:
            vars(parallel_state).update(_STATES[sizes])
        else:
            _make(sizes)
        _CURRENT.append(sizes)
        try:
            yield
        finally:
            _CURRENT.pop()
            _STATES[sizes] = _globals_of(parallel_state)


def _make(sizes: ParallelSizes) -> None:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        sizes.t,
        sizes.p,
        sizes.vpp if sizes.vpp > 1 else None,
        context_parallel_size=sizes.c,
        expert_model_parallel_size=sizes.ep,
        expert_tensor_parallel_size=sizes.expert_t,
        order=RANK_ORDER,
        create_gloo_process_groups=False,
    )
    random.model_parallel_cuda_manual_seed(0, force_reset_rng=True)


def _globals_of(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name.startswith("_") and name.isupper()}
