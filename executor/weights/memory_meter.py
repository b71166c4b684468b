"""Peak bytes of tensors that live while a transition runs: every storage that appears is seen, and when it is gone.

On GPUs the allocator's own statistics would do; this works on any device and sees nothing but tensors.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterable


class MemoryMeter(TorchDispatchMode):
    """While entered, ``peak_bytes`` follows the storages that operations return, on top of those it was told of.

    A storage that is freed takes its bytes off ``live_bytes`` itself, so an operation costs the same however many
    tensors live. Whatever a backend allocates for itself below torch's operators (gloo copies to buffers of its own)
    is not seen.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, tuple[ref[torch.UntypedStorage], int]] = {}
        self.live_bytes = self.peak_bytes = 0
        for tensor in known:
            self.see(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for value in output if isinstance(output, list | tuple) else (output,):
            if isinstance(value, torch.Tensor):
                self.see(value)
        return output

    def see(self, tensor: torch.Tensor) -> None:
        """Count a tensor that lives already."""
        storage = tensor.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes()  # noqa: SLF001 - its identity while it lives
        found = self._live.get(key)
        if found is not None:
            if found[1] == num_bytes:
                return
            self.live_bytes -= found[1]  # it was resized
        # torch keeps the Python object of a storage for as long as the storage itself lives
        self._live[key] = (ref(storage, partial(self._freed, key)), num_bytes)
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _freed(self, key: int, gone: ref[torch.UntypedStorage]) -> None:
        found = self._live.get(key)
        if found is not None and found[0] is gone:
            self.live_bytes -= found[1]
            del self._live[key]
