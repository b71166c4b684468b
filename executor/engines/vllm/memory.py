"""vLLM beside a trainer: what it asks of the device when it starts, and memory that it gives back and takes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

GIB = 1 << 30
START_RESERVE_BYTES = 2 * GIB
"""What NCCL's buffers and the activations of vLLM's first pass take besides weights and cache (assumed)."""


def memory_share(free_bytes: int, total_bytes: int, weights_bytes: int, cache_bytes: int) -> float:
    """The ``gpu_memory_utilization`` of vLLM for what the plan gives this rank beside a trainer that lies there.

    Parameters
    ----------
    free_bytes, total_bytes
        Of the device, as its driver says once the trainer is loaded.
    weights_bytes, cache_bytes
        This rank's generation shard, and its KV cache by the plan; 0 leaves vLLM what is free, less the reserve.

    Returns
    -------
    float
        In (0, 1): vLLM refuses to start where the device has less free than that share of all of it.

    Raises
    ------
    InputError
        Weights, cache and reserve are more than is free.
    """
    needed = weights_bytes + cache_bytes + START_RESERVE_BYTES
    if needed > free_bytes:
        raise InputError(
            f"vLLM needs {needed / GIB:.1f} GiB of its GPU to start ({weights_bytes / GIB:.1f} weights, "
            f"{cache_bytes / GIB:.1f} KV cache, {START_RESERVE_BYTES / GIB:.0f} reserve), {free_bytes / GIB:.1f} of "
            f"{total_bytes / GIB:.1f} are free beside the trainer: plan with a smaller KV cache, or offload the trainer"
        )
    asked = weights_bytes + cache_bytes if cache_bytes else free_bytes - START_RESERVE_BYTES
    return asked / total_bytes


class EngineMemory(Protocol):
    """Memory that an engine has while it generates; weights come before the cache, so that they never need both."""

    def release(self) -> None:
        """Give back weights and cache."""

    def restore_weights(self) -> None:
        """Take the weights' memory again; they are undefined until somebody writes them."""

    def restore_cache(self) -> None:
        """Take the cache's memory again, empty."""


class SleepingEngine:
    """``EngineMemory`` by vLLM's own sleep, on GPUs: level 2 keeps no copy of the weights."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def release(self) -> None:
        self._llm.sleep(level=2)

    def restore_weights(self) -> None:
        self._wake("weights")

    def restore_cache(self) -> None:
        self._wake("kv_cache")

    def _wake(self, tag: str) -> None:
        if self._llm.llm_engine.is_sleeping():
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
