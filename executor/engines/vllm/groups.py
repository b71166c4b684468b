"""vLLM's process groups on ranks that are not consecutive: strided generation groups of the hybrid engine."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def ranks_in_order(order: Sequence[int], rank: int) -> Iterator[None]:
    """While vLLM makes its groups, its ``i``-th rank is ``order[i]``; this process is ``rank``.

    Groups get no message queue: every rank schedules for itself here, and a process that is killed would leave the
    queue's shared memory behind.
    """
    from vllm.distributed import parallel_state

    theirs = parallel_state.init_model_parallel_group

    def permuted(group_ranks: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("use_message_queue_broadcaster", None)
        return theirs([[order[i] for i in group] for group in group_ranks], *args, **kwargs)

    given = {
        "RANK": str(list(order).index(rank)),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(order)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",  # the processes have met already; nobody listens there
    }
    with patch.object(parallel_state, "init_model_parallel_group", permuted), patch.dict(os.environ, given):
        yield
