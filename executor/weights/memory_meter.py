"""Peak bytes of tensors that live while a transition runs: every storage that appears is seen, and when it is gone.

On GPUs the allocator's own statistics would do; this works on any device and sees nothing but tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterable


class MemoryMeter(TorchDispatchMode):
    """While entered, ``peak_bytes`` follows the storages that operations return, on top of those it was told of.

    Whatever a backend allocates for itself below torch's operators (gloo copies to buffers of its own) is not seen.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0
        for tensor in known:
            self.see(tensor)

    @property
    def live_bytes(self) -> int:
        """Bytes that live now."""
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        return sum(size for _, size in self._live.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for value in output if isinstance(output, list | tuple) else (output,):
            if isinstance(value, torch.Tensor):
                self.see(value)
        return output

    def see(self, tensor: torch.Tensor) -> None:
        """Count a tensor that lives already."""
        storage = tensor.untyped_storage()
        found = self._live.get(storage._cdata)  # noqa: SLF001 - its identity while it lives
        if found is not None and not found[0].expired() and found[1] == storage.nbytes():
            return
        self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # noqa: SLF001
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
