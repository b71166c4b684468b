"""vLLM beside a trainer: memory that it gives back and takes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from executor.memory import note_peak_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class EngineMemory(Protocol):
    """Memory that an engine has while it generates; weights come before the cache and leave after it.

    So a trainer that copies them, or wakes to be copied into, never needs room beside both.
    """

    def release_cache(self) -> None:
        """Give back the cache alone."""

    def release(self) -> None:
        """Give back weights and cache."""

    def restore_weights(self) -> None:
        """Take the weights' memory again; they are undefined until somebody writes them."""

    def restore_cache(self) -> None:
        """Take the cache's memory again, empty."""


class SleepingEngine:
    """``EngineMemory`` by vLLM's own sleep, on GPUs: level 0 pauses, 2 keeps no copy of the weights."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def release_cache(self) -> None:
        note_peak_memory()
        self._llm.sleep(level=0)
        self._llm.release_kv_cache_memory()

    def release(self) -> None:
        note_peak_memory()
        self._llm.sleep(level=2)

    def restore_weights(self) -> None:
        self._wake("weights")

    def restore_cache(self) -> None:
        self._wake("kv_cache")

    def _wake(self, tag: str) -> None:
        if self._llm.llm_engine.is_sleeping():
            note_peak_memory()
            torch.cuda.empty_cache()  # vLLM asks the driver, and torch keeps what the trainer has freed
            self._llm.wake_up(tags=[tag])


class EmptiedStorages:
    """``EngineMemory`` where vLLM cannot sleep: storages without bytes."""

    def __init__(self, weights: Mapping[str, torch.Tensor], caches: Callable[[], list[Any]]) -> None:
        self._weights = [tensor.untyped_storage() for tensor in weights.values()]
        self._caches = [
            part.untyped_storage()
            for cache in caches()
            for part in (cache if isinstance(cache, list | tuple) else (cache,))
        ]
        self._sizes = {id(storage): storage.nbytes() for storage in (*self._weights, *self._caches)}

    def release_cache(self) -> None:
        for storage in self._caches:
            storage.resize_(0)

    def release(self) -> None:
        for storage in (*self._weights, *self._caches):
            storage.resize_(0)

    def restore_weights(self) -> None:
        self._restore(self._weights)

    def restore_cache(self) -> None:
        self._restore(self._caches)

    def _restore(self, storages: list[torch.UntypedStorage]) -> None:
        for storage in storages:
            if not storage.nbytes():
                storage.resize_(self._sizes[id(storage)])
                storage.fill_(0)  # type: ignore[attr-defined]
