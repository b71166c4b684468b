"""What an engine that generates asks of its device when it starts beside a trainer."""

from __future__ import annotations

from profiles.errors import InputError

GIB = 1 << 30
START_RESERVE_BYTES = 2 * GIB
"""What NCCL's buffers and the activations of an engine's first pass take besides weights and cache (assumed)."""


def memory_share(free_bytes: int, total_bytes: int, weights_bytes: int, cache_bytes: int, engine: str) -> float:
    """The share of a GPU that an engine is to take for what the plan gives this rank beside a trainer that lies there.

    Parameters
    ----------
    free_bytes, total_bytes
        Of the device, as its driver says once the trainer is loaded.
    weights_bytes, cache_bytes
        This rank's generation shard, and its KV cache by the plan; 0 leaves the engine what is free, less the reserve.
    engine
        Its name.

    Returns
    -------
    float
        In (0, 1), of all of the device: what vLLM calls ``gpu_memory_utilization``.

    Raises
    ------
    InputError
        Weights, cache and reserve are more than is free.
    """
    needed = weights_bytes + cache_bytes + START_RESERVE_BYTES
    if needed > free_bytes:
        raise InputError(
            f"{engine} needs {needed / GIB:.1f} GiB of its GPU to start ({weights_bytes / GIB:.1f} weights, "
            f"{cache_bytes / GIB:.1f} KV cache, {START_RESERVE_BYTES / GIB:.0f} reserve), {free_bytes / GIB:.1f} of "
            f"{total_bytes / GIB:.1f} are free beside the trainer: plan with a smaller KV cache, or offload the trainer"
        )
    asked = weights_bytes + cache_bytes if cache_bytes else free_bytes - START_RESERVE_BYTES
    return asked / total_bytes
