"""Published rows that can be predicted, for what a calibration on one of them is worth for the others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.validation import rl, training
from benchmarks.validation.families import family_of, release_of
from benchmarks.validation.names import (
    NotPredicted,
    number,
    published_device,
    published_model,
    published_models,
    text_of,
)
from hybridmap.runlogs.records import BOTH_LOG_PROBS, STEP
from profiles.errors import HybridmapError
from simulator.play.simulate import build_timeline, price_calls

if TYPE_CHECKING:
    import pandas as pd

    from simulator.facts import Facts
    from simulator.plan.plan import Plan

STAGES = {
    "gen_time_s": "generate_sequences",
    "logprob_time_s": BOTH_LOG_PROBS,
    "old_logprob_time_s": "compute_log_prob",
    "ref_logprob_time_s": "compute_ref_log_prob",
    "train_time_s": "update_actor",
    "refit_time_s": "transition",
    "step_time_s": STEP,
}
COMMIT = re.compile(r",?\s*\b[A-Za-z]+ [0-9a-f]{8}\b")
"""``bridge 372b8f03``: a day of a development version."""


@dataclass(frozen=True)
class Known:
    """A row that can be predicted: its family, how much it publishes, the measured seconds, and what predicts them."""

    name: str
    family: str
    stages: int
    measured_s: float
    given: Any


def rl_rows(table: pd.DataFrame) -> list[Known]:
    """Rows with a step time, and the facts and plan of each."""
    found = []
    for cells in table.to_dict(orient="records"):
        measured = number(cells.get("step_time_s"))
        try:
            if measured is None or measured <= 0 or text_of(cells.get("row_kind")) == "refit_only":
                continue
            facts, plan = rl.run_of(cells)
            iteration_s(facts, plan)  # a row without a price is left out, as one that cannot be read
            model = published_models(text_of(cells.get("model")))["actor"].name
            device = published_device(text_of(cells.get("gpu_kind")))
        except (HybridmapError, NotPredicted, ValueError, KeyError):
            continue
        num = sum(number(cells.get(stage)) is not None for stage in STAGES)
        release = COMMIT.sub(" ", release_of("rl", cells))
        family = family_of(model, device, release)
        found.append(Known(text_of(cells.get("id")), family, num, measured, (cells, facts, plan)))
    return found


def iteration_s(facts: Facts, plan: Plan) -> float:
    """Predicted seconds of a step."""
    return build_timeline(plan, facts, price_calls(plan, facts)).iteration_s


def training_rows(table: pd.DataFrame) -> list[Known]:
    """Rows with a time or a rate, and the step of each; the time that a rate stands for is compared."""
    found = []
    for cells in table.to_dict(orient="records"):
        try:
            device = published_device(text_of(cells.get("gpu_kind")))
            shape = published_model(text_of(cells.get("model")))
            step = training.step_of(cells, device, shape)
            measured = training.measured_step_s(cells, step)
            training.step_seconds(step)
        except (HybridmapError, NotPredicted, ValueError, KeyError):
            continue
        if measured is None or measured <= 0:
            continue
        family = family_of(shape.name, device, release_of("training", cells))
        family += " | lora" * ("lora" in text_of(cells.get("task")).lower())
        found.append(Known(text_of(cells.get("id")), family, 1, measured, step))
    return found
