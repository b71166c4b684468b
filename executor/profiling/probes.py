"""Which models and batches the engine is probed with: few, but different in everything that a constant hangs on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from executor.profiling.engine_step import Probe
from profiles.models.probe_models import ours

if TYPE_CHECKING:
    from executor.profiling.request import Request

Work = tuple[int, int, int, int, int]
"""Samples, prompt, response, micro-batch, mini-batches."""

SMALL_WORK: tuple[Work, ...] = (
    (32, 8, 4, 32, 1),
    (256, 5, 2, 128, 2),
    (64, 24, 8, 16, 1),
    (96, 6, 5, 48, 2),
    (160, 5, 1, 80, 1),
    (16, 12, 12, 16, 1),
    (192, 3, 2, 32, 3),
    (48, 16, 16, 24, 2),
)
LARGE_WORK: tuple[Work, ...] = (
    (16, 128, 16, 8, 1),
    (32, 256, 8, 4, 2),
    (64, 64, 32, 16, 1),
    (8, 512, 16, 4, 1),
    (128, 128, 4, 32, 2),
)


def probes_for(request: Request) -> list[Probe]:
    """Probes of the given models, then of ours; interleaved, so that a short budget sees some of each.

    Where no run behind a controller is measured (``has_neighbours``), some probes wait between their calls instead.
    """
    work = SMALL_WORK if request.device == "cpu" else LARGE_WORK
    configs = [*request.configs, *(ours() if request.device == "cpu" else ())]
    probes = [Probe(config, *one) for one in work for config in configs]
    waited = [replace(probe, idle_ms=IDLE_MS) for probe in probes[: 2 * len(configs)] if not request.has_neighbours]
    return [*probes[: 2 * len(configs)], *waited, *probes[2 * len(configs) :]]


IDLE_MS = 10
"""What passes between two calls of a rank behind a controller: two dispatches on Ray."""


def parallel_probes(request: Request) -> list[Probe]:
    """Runs of two ranks: prompts of 4 tokens and one response token, as the made-up task has them."""
    configs = [*request.configs, *ours()]
    work = ((192, 32, 2),) if request.quick else ((192, 32, 2), (64, 16, 1), (384, 48, 2), (96, 8, 3))
    return [
        Probe(configs[i % len(configs)], samples, 4, 1, micro, minibatches)
        for i, (samples, micro, minibatches) in enumerate(work)
    ]


def host_contention_probes(request: Request) -> list[Probe]:
    """Runs of two pools: prompts and responses as the made-up task has them; a full profile takes each model."""
    configs = [*request.configs, *ours()]
    return [Probe(config, 192, 4, 3, 48, 2) for config in (configs[:1] if request.quick else configs)]
