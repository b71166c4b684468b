"""What a step of an engine costs that Ray's compiled graph starts, by where its workers are.

vLLM's Ray executor before 0.21 builds this graph: one input for all workers, the result of each an output, the first
one read (``v1/executor/ray_executor.py``). Workers compute nothing here, so what remains is the graph's own time;
nodes are raylets of one machine. Run it on a quiet machine with a core for each worker:
``python -m benchmarks.compiled_graph``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from typing import Any

SEQUENCES = 64


def main() -> None:
    """Print the shortest and the median step for some nodes and workers of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    from benchmarks.compiled_graph import step_times  # by its own name, under which workers find it, too

    for nodes, workers in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 2), (2, 8)):
        with multiprocessing.get_context("spawn").Pool(1) as alone:  # a process can be in one cluster
            taken = sorted(alone.apply(step_times, (nodes, workers, steps)))
        shortest, median = taken[0] * 1e3, taken[len(taken) // 2] * 1e3
        print(f"{nodes} nodes of {workers} workers: {shortest:.2f} ms at least, {median:.2f} ms in the middle")


def step_times(nodes: int, workers: int, steps: int) -> list[float]:
    """Seconds of each step of a graph over ``nodes`` raylets with ``workers`` each."""
    os.environ.setdefault("RAY_CGRAPH_get_timeout", "300")
    import ray
    from ray.cluster_utils import Cluster
    from ray.dag import InputNode, MultiOutputNode

    size = {"num_cpus": 64, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "resources": {"n0": 64}})
    for node in range(1, nodes):
        cluster.add_node(**size, resources={f"n{node}": 64})
    ray.init(address=cluster.address, logging_level="ERROR")
    try:
        actor = ray.remote(num_cpus=0.1)(_Worker)
        placed = [actor.options(resources={f"n{n}": 0.1}).remote() for n in range(nodes) for _ in range(workers)]
        with InputNode() as scheduled:
            graph = MultiOutputNode([worker.step.bind(scheduled) for worker in placed])
        compiled = graph.experimental_compile()
        found = [_step_s(compiled) for _ in range(20 + steps)][20:]
        compiled.teardown()
    finally:
        ray.shutdown()
        cluster.shutdown()
    return found


def _step_s(compiled: Any) -> float:
    start = time.perf_counter()
    compiled.execute((_scheduled(), None))[0].get()
    return time.perf_counter() - start


def _requests() -> list[str]:
    return [f"{i:04d}-0123456789ab" for i in range(SEQUENCES)]


def _scheduled() -> tuple[Any, ...]:
    """The fields of vLLM's ``SchedulerOutput`` in a step of decoding, as plain values."""
    names, counts = _requests(), list(range(SEQUENCES))
    cached = (names, set(), [], {}, [([7],)] * SEQUENCES, counts, counts)
    return [], cached, dict.fromkeys(names, 1), SEQUENCES, {}, {}, set(), []


class _Worker:
    """A worker without a model: the fields of vLLM's ``ModelRunnerOutput`` with a log-prob for each sequence."""

    def step(self, _scheduled: object) -> tuple[Any, ...]:
        import numpy as np

        names = _requests()
        drawn = np.zeros((SEQUENCES, 1), np.int32), np.zeros((SEQUENCES, 1), np.float32), np.zeros(SEQUENCES, np.int32)
        numbers = {name: i for i, name in enumerate(names)}
        return names, numbers, [[i] for i in range(SEQUENCES)], drawn, dict.fromkeys(names), None, None


if __name__ == "__main__":
    main()
