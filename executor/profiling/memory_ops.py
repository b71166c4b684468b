"""Work that moves bytes: element-wise kernels, norms, embedding, cross-entropy, the optimizer step; and copies.

``num_bytes`` is the least that has to be read and written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from executor.profiling.cases import Case, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.profiling.timing import Runner

    Maker = Callable[[torch.device, int], Runner]

WIDTH = 1024
"""Elements of a row where a kernel works on rows."""
VOCABULARY = 4096
ADAM_BYTES = 28
"""AdamW in fp32 reads parameter, gradient and two moments and writes three of them."""


def element_wise_case(dtype: str, num_bytes: int) -> Case:
    """Add two tensors: two reads and a write."""
    size = max(1, num_bytes // (3 * torch_dtype(dtype).itemsize))

    def make(device: torch.device, copies: int) -> Runner:
        a, b, out = (_tensors(dtype, device, copies, size) for _ in range(3))
        return lambda i: torch.add(a[i], b[i], out=out[i])

    return _case("element_wise", dtype, 3 * size * torch_dtype(dtype).itemsize, make)


def norm_case(dtype: str, num_bytes: int) -> Case:
    """Root-mean-square norm of rows in fp32, written in tensor operations as the torch-native engine has it."""
    kind = torch_dtype(dtype)
    rows = max(1, num_bytes // (2 * kind.itemsize * WIDTH))

    def make(device: torch.device, copies: int) -> Runner:
        x = _tensors(dtype, device, copies, rows, WIDTH)
        weight = torch.ones(WIDTH, device=device, dtype=kind)

        def run(i: int) -> torch.Tensor:
            wide = x[i].float()
            return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kind)

        return run

    return _case("norm", dtype, 2 * rows * WIDTH * kind.itemsize, make)


def embedding_case(dtype: str, num_bytes: int) -> Case:
    """Rows of a table, read and written."""
    kind = torch_dtype(dtype)
    rows = max(1, num_bytes // (2 * kind.itemsize * WIDTH))

    def make(device: torch.device, copies: int) -> Runner:
        table = torch.randn(VOCABULARY, WIDTH, device=device).to(kind)
        tokens = [torch.randint(0, VOCABULARY, (rows,), device=device) for _ in range(copies)]
        return lambda i: F.embedding(tokens[i], table)

    return _case("embedding", dtype, 2 * rows * WIDTH * kind.itemsize, make)


def cross_entropy_case(dtype: str, num_bytes: int) -> Case:
    """Cross-entropy of logits, forward and backward: logits read, gradients written."""
    kind = torch_dtype(dtype)
    rows = max(1, num_bytes // (2 * kind.itemsize * VOCABULARY))

    def make(device: torch.device, copies: int) -> Runner:
        logits = [x.requires_grad_() for x in _tensors(dtype, device, copies, rows, VOCABULARY)]
        targets = torch.randint(0, VOCABULARY, (rows,), device=device)

        def run(i: int) -> object:
            return torch.autograd.grad(F.cross_entropy(logits[i].float(), targets), logits[i])

        return run

    return _case("cross_entropy", dtype, 2 * rows * VOCABULARY * kind.itemsize, make)


def adamw_case(num_bytes: int) -> Case:
    """AdamW on one flat fp32 buffer, as the torch-native engine steps."""
    size = max(1, num_bytes // ADAM_BYTES)

    def make(device: torch.device, copies: int) -> Runner:
        parameter = torch.nn.Parameter(torch.randn(size, device=device))
        optimizer = torch.optim.AdamW([parameter], lr=1e-4)
        parameter.grad = torch.randn_like(parameter)
        return lambda i: optimizer.step()

    return _case("adamw", "fp32", ADAM_BYTES * size, make)


def copy_case(kind: str, num_bytes: int) -> Case:
    """Row of table ``copy``: ``host_to_device``, ``device_to_host`` (pinned memory) or ``device_to_device``.

    On a CPU all three are copies in memory, and are measured all the same.
    """

    def make(device: torch.device, copies: int) -> Runner:
        pinned = device.type == "cuda"
        host = [torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(copies)]
        here = [torch.empty(num_bytes, dtype=torch.uint8, device=device) for _ in range(copies)]
        there = [torch.empty_like(x) for x in here] if kind == "device_to_device" else here
        source: Any = {"host_to_device": host, "device_to_host": here, "device_to_device": here}[kind]
        target: Any = {"host_to_device": here, "device_to_host": host, "device_to_device": there}[kind]
        return lambda i: target[i].copy_(source[i], non_blocking=True)

    return Case("copy", {"kind": kind, "num_bytes": num_bytes}, make, 2.0 * num_bytes)


MEMORY_OPS: dict[str, Callable[[str, int], Case]] = {
    "element_wise": element_wise_case,
    "norm": norm_case,
    "embedding": embedding_case,
    "cross_entropy": cross_entropy_case,
    "adamw": lambda dtype, num_bytes: adamw_case(num_bytes),
}
COPY_KINDS = ("host_to_device", "device_to_host", "device_to_device")


def _case(op: str, dtype: str, num_bytes: int, make: Maker) -> Case:
    return Case("memory_ops", {"op": op, "dtype": dtype, "num_bytes": num_bytes}, make, float(num_bytes))


def _tensors(dtype: str, device: torch.device, copies: int, *shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape, device=device).to(torch_dtype(dtype)) for _ in range(copies)]
