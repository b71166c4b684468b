"""Matrix products ``[m, k] x [k, n]`` as linear layers run them: weights stored ``[n, k]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from executor.profiling.cases import Case, torch_dtype

if TYPE_CHECKING:
    from executor.profiling.timing import Runner


def gemm_case(dtype: str, m: int, n: int, k: int) -> Case:
    """A row of table ``gemm``."""
    kind = torch_dtype(dtype)

    def make(device: torch.device, copies: int) -> Runner:
        inputs = [torch.randn(m, k, device=device).to(kind) for _ in range(copies)]
        weights = [torch.randn(n, k, device=device).to(kind) for _ in range(copies)]

        def run(i: int) -> torch.Tensor:
            with torch.no_grad():
                return F.linear(inputs[i], weights[i])

        return run

    return Case("gemm", {"dtype": dtype, "m": m, "n": n, "k": k}, make, (m * k + n * k) * kind.itemsize)
