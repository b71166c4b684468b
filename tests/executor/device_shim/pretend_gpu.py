"""A GPU that is none: a private-use backend of torch whose tensors have shapes and no values, and ranks that are alone.

Engines run on it as rank ``r`` of ``n`` with collectives that do nothing, and what would go wrong or be slow on GPUs is
counted by the line that did it: tensors of the host in collectives, waits of the host for the device, bytes that live.
Numbers mean nothing here: a value that is read is 1. Importing this registers the backend in the process, for good.
"""

from __future__ import annotations

import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from executor.engines.fsdp import engine as fsdp
from executor.weights.memory_meter import MemoryMeter

NAME = "pretendgpu"
ROOT = str(Path(__file__).parents[3] / "executor")


class _Stream:
    """A stream or an event of a device that never works."""

    def __init__(self, *_, **__):
        self.device = torch.device(NAME, 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __getattr__(self, name):
        if name in ("wait_stream", "wait_event", "record", "record_event", "synchronize", "wait"):
            return lambda *_, **__: self
        raise AttributeError(name)


class _Backend(_DummyBackendModule):
    """What torch asks of ``torch.cuda``."""

    Stream = Event = _Stream
    priority = None

    def current_stream(self, *_):
        return _Stream()

    def stream(self, stream):
        return stream

    def synchronize(self, *_):
        host_waits()

    def is_initialized(self):
        return True


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())


_WATCHES = []


def host_waits():
    """The host waits for all that the device was given."""
    for watch in _WATCHES:
        watch.syncs[_line()] += 1


_ONE_BY_ONE = {
    "reduce_scatter_tensor_coalesced_": "_reduce_scatter_base_",
    "allgather_into_tensor_coalesced_": "_allgather_base_",
}


def _line():
    """The innermost line of the executor on the stack."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(ROOT) and not frame.filename.endswith("cpu_shim.py"):
            return f"{frame.filename[len(ROOT) + 1 :]}:{frame.lineno}"
    return "outside"


class _Constants(TorchFunctionMode):
    """``torch.tensor`` with a device fills it below all modes: here on the host, and copied, which is what it does."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == NAME:
            device = kwargs.pop("device")
            made = func(*args, **kwargs)
            return torch.empty(made.shape, dtype=made.dtype).to(device)  # fakes keep constants, and compute with them
        if func is torch.Tensor.to and not isinstance(args[0], FakeTensor | DTensor):
            args = (torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:])  # what was put together with values
        return func(*args, **kwargs)


class Watch(MemoryMeter):
    """Counts, while entered, what a GPU would not take, or not be quick at."""

    def __init__(self, known=()):
        super().__init__()
        self.on_host, self.syncs, self.largest_bytes = Counter(), Counter(), 0
        self.summed = set()
        for tensor in known:
            self.see(tensor)

    def see(self, tensor):
        if isinstance(tensor, DTensor):  # has the shape of the whole, and memory for this rank's part
            tensor = tensor.to_local()
        if tensor.device.type == NAME:
            super().see(tensor)
            self.largest_bytes = max(self.largest_bytes, tensor.untyped_storage().nbytes())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        space, name = func.namespace, func._schema.name.split("::")[1]  # noqa: SLF001
        if space in ("c10d", "_c10d_functional"):
            self._collective(name, args)
            if name in _ONE_BY_ONE:  # torch has no fake of these
                single = getattr(torch.ops.c10d, _ONE_BY_ONE[name])
                return [single(*pair, *args[2:]) for pair in zip(*args[:2], strict=True)][-1][-1]
        if name == "_local_scalar_dense":
            return self._read(args[0])
        if name in ("nonzero", "masked_select", "equal") and _is_on_device(args[0]):
            self.syncs[_line()] += 1
        output = super().__torch_dispatch__(func, types, args, kwargs)
        if name in ("_to_copy", "copy_") and _crosses(name, args, output) and not _is_async(name, args, kwargs):
            self.syncs[_line()] += 1
        return output

    def _collective(self, name, args):
        flat = [x for arg in args for x in _flat(arg)]
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        if any(not _is_on_device(x) for x in tensors):
            self.on_host[f"{_line()} {name}"] += 1
        if "reduce_scatter" in name:
            self.summed.update(str(x.dtype).removeprefix("torch.") for x in tensors)

    def _read(self, tensor):
        if _is_on_device(tensor):
            self.syncs[_line()] += 1
        return True if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1


def _flat(value):
    return [x for part in value for x in _flat(part)] if isinstance(value, list | tuple) else [value]


def _is_on_device(tensor):
    return tensor.device.type == NAME


def _crosses(name, args, output):
    """Whether a copy is between the host and the device."""
    source = args[1] if name == "copy_" else args[0]
    return source.numel() > 0 and _is_on_device(source) != _is_on_device(output)


def _is_async(name, args, kwargs):
    return bool(kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))


def with_values(method):
    """What is made of numbers that are read: meshes of ranks, and what the host puts together of a batch."""

    def called(*args, **kwargs):
        with _disable_current_modes():
            return method(*args, **kwargs)

    return called


@contextmanager
def pretended_world(rank, num_ranks):
    """Be ``rank`` of ``num_ranks`` with such devices: all tensors made inside are fakes, collectives do nothing."""
    dist.init_process_group(f"cpu:fake,{NAME}:fake", store=FakeStore(), rank=rank, world_size=num_ranks)

    def everyone_has_mine(found, mine, group=None):
        found[:] = [mine] * len(found)

    try:
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            _Constants(),
            patch.object(dist, "all_gather_object", everyone_has_mine),
            patch.object(fsdp, "init_device_mesh", with_values(fsdp.init_device_mesh)),
            patch.object(DeviceMesh, "__getitem__", with_values(DeviceMesh.__getitem__)),
            patch.object(DeviceMesh, "_concatenate", with_values(DeviceMesh._concatenate)),  # noqa: SLF001
        ):
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def watched(known=()):
    """Count inside; ``known`` tensors live already."""

    def tolist(tensor):  # torch's own looks at elements below all modes
        if tensor.numel() and _is_on_device(tensor):
            watch.syncs[_line()] += 1
        return _filled(tensor.shape, 1.0 if tensor.is_floating_point() else 0)  # sums of bits are equal

    # fakes hold weak references to each other, of which torch has no need when a module moves to another device
    unchecked = patch.object(torch.utils, "weakref", SimpleNamespace(getweakrefs=lambda _: ()))
    with Watch(known) as watch, patch.object(FakeTensor, "tolist", tolist), unchecked:
        _WATCHES.append(watch)
        try:
            yield watch
        finally:
            _WATCHES.remove(watch)


def _filled(shape, value):
    return [_filled(shape[1:], value) for _ in range(shape[0])] if shape else value
