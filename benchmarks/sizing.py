"""How many GPUs: ten models on five GPUs, GRPO at 8k and 32k, as a page (``make sizing``; some minutes).

Every row is the mapper's plan of one job on 128 GPUs or fewer, as ``hybridmap frontier`` finds it, with the interval
that the errors against published runs give. Nothing here is measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.job.load import job_from_mapping
from hybridmap.text.notation import about
from hybridmap.text.plan import interval_s
from hybridmap.version import __version__
from mapper.analysis.frontier import frontier
from profiles.errors import HybridmapError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mapper.analysis.frontier import FrontierPoint

MODELS = (
    "qwen2.5-1.5b",
    "qwen3-4b",
    "qwen2.5-7b",
    "qwen3-8b",
    "llama-3.1-8b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen3-30b-a3b",
    "llama-3.1-70b",
    "qwen3-235b-a22b",
)
DEVICES = ("a100-80gb-sxm", "h100-80gb-sxm", "h200-sxm", "b200-sxm", "gb200")
SIZES = (8, 16, 32, 64, 128)
RETRY = 4
"""How much longer a frontier may take whose fewest GPUs are not proven."""

LENGTHS = {"8k": (8192, 2500), "32k": (32768, 9000)}
"""Longest and mean response, tokens."""


@dataclass(frozen=True)
class Row:
    """One plan: the fastest on at most ``budget`` GPUs, seconds and tokens per second."""

    model: str
    device: str
    length: str
    budget: int
    num_gpus: int
    iteration_s: float
    low_s: float
    high_s: float
    tokens_per_s_per_gpu: float
    placement: str
    proven: bool


def job_of(model: str, device: str, length: str, nodes: int, gpus_per_node: int) -> dict[str, Any]:
    """GRPO with a reference, 128 prompts of 16 samples, one step of the optimizer; whole nodes."""
    longest, mean = LENGTHS[length]
    return {
        "algorithm": "grpo",
        "models": {"actor": model, "reference": model},
        "workload": {
            "prompts": 128,
            "samples_per_prompt": 16,
            "prompt_length": 1024,
            "response_length": {"distribution": "lognormal", "mean": mean, "max": longest},
            "minibatches": 1,
        },
        "cluster": [{"device": device, "nodes": nodes, "gpus_per_node": gpus_per_node}],
        "schedule": "sync",
    }


def rows_of(model: str, device: str, length: str, limit_s: float) -> list[Row]:
    """The fewest GPUs that hold the job, and the fastest plan on each of ``SIZES``; none where 128 do not hold it."""
    per_node = 4 if device.startswith("gb") else 8
    job = job_from_mapping(job_of(model, device, length, SIZES[-1] // per_node, per_node), "sizing", Path())
    try:
        points = frontier(replace(job.request(), time_limit_s=limit_s))
        if not points[0].proven:  # the time went before the small budgets were looked at
            points = frontier(replace(job.request(), time_limit_s=RETRY * limit_s))
    except HybridmapError:
        return []
    budgets = sorted({points[0].num_gpus, *(size for size in SIZES if size >= points[0].num_gpus)})
    return [_row(model, device, length, budget, _at(points, budget)) for budget in budgets]


def _at(points: Sequence[FrontierPoint], budget: int) -> FrontierPoint:
    return [point for point in points if point.num_gpus <= budget][-1]


def _row(model: str, device: str, length: str, budget: int, point: FrontierPoint) -> Row:
    low, high = interval_s(point.timeline)
    per_gpu = point.timeline.tokens_per_s / point.num_gpus
    proven = point.proven or point.gap <= 1e-4
    numbers = (point.num_gpus, point.iteration_s, low, high, per_gpu)
    return Row(model, device, length, budget, *numbers, point.plan.placement, proven)


def page(rows: Iterable[Row], day: datetime.date) -> str:
    """The page: a table for each length of the fewest GPUs, then one for each model."""
    rows = list(rows)
    return (
        "\n".join([*_head(day), *_smallest(rows), *(line for model in MODELS for line in _model(rows, model))]) + "\n"
    )


def _head(day: datetime.date) -> list[str]:
    return [
        "# How many GPUs: ten models, five GPUs",
        "",
        f"Made by `make sizing` on {day.isoformat()} with hybridmap {__version__}; predictions, none of it measured.",
        "",
        "One job: synchronous GRPO with a reference, 128 prompts of 16 samples, prompts of 1,024 tokens, bf16, one "
        "step of the optimizer. At 8k responses have 2,500 tokens on average and 8,192 at most, at 32k 9,000 and "
        "32,768. Brackets hold the 90 % interval, from errors against published runs ([accuracy](accuracy.md)). The "
        "cost is in GPU-hours for 1,000 iterations: times your price of a GPU-hour. A star: the best that was "
        "found, not proven to be the best.",
        "",
    ]


def _smallest(rows: list[Row]) -> list[str]:
    out = []
    for length in LENGTHS:
        out += [f"## Fewest GPUs that hold the job, {length}", "", f"| model | {' | '.join(DEVICES)} |"]
        out += [f"|---|{'---|' * len(DEVICES)}"]
        for model in MODELS:
            cells = []
            for device in DEVICES:
                found = [r for r in rows if (r.model, r.device, r.length) == (model, device, length)]
                star = "" if not found or found[0].proven else "\\*"
                cells.append(f"{found[0].num_gpus}{star}" if found else "over 128")
            out.append(f"| {model} | {' | '.join(cells)} |")
        out.append("")
    return out


def _model(rows: list[Row], model: str) -> list[str]:
    out = [f"## {model}", ""]
    for length in LENGTHS:
        out += [f"**{length}**: seconds of an iteration (90 %), tokens/s per GPU, GPU-hours for 1,000 iterations", ""]
        out += [f"| GPU | {' | '.join(f'{size} GPUs' for size in SIZES)} |", f"|---|{'---|' * len(SIZES)}"]
        for device in DEVICES:
            there = {r.budget: r for r in rows if (r.model, r.device, r.length) == (model, device, length)}
            out.append(f"| {device} | {' | '.join(_cell(there.get(size)) for size in SIZES)} |")
        out.append("")
    return out


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    fewer = "" if row.num_gpus == row.budget else f", on {row.num_gpus}"
    star = "" if row.proven else "\\*"
    hours = row.iteration_s * row.num_gpus / 3.6
    return (
        f"{about(row.iteration_s)} s{star} ({about(row.low_s)} to {about(row.high_s)}){fewer}; "
        f"{row.tokens_per_s_per_gpu:,.0f}; {hours:,.0f}"
    )


def main() -> None:
    """Search every row, keep what was searched in a file, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs/sizing.md"))
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for each frontier")
    parser.add_argument("--models", nargs="*", default=MODELS)
    given = parser.parse_args()
    rows = []
    for model in given.models:
        for device in DEVICES:
            for length in LENGTHS:
                found = rows_of(model, device, length, given.limit)
                rows += found
                print(f"{model} {device} {length}: {len(found)} rows", flush=True)
    given.docs.write_text(page(rows, datetime.datetime.now(tz=datetime.UTC).date()), encoding="utf-8")
    kept = json.dumps([asdict(row) for row in rows], indent=0)
    given.docs.with_suffix(".json").write_text(kept + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
