"""Protects the reading of a step by its stages: two that cancel make no good step."""

import pandas as pd
import pytest

from benchmarks.validation.stages import share_of_bad_steps, steps_by_stages


def frame(name, **errors):
    """A step of 100 s and its stages of 30 s each, predicted with the given errors."""
    rows = [(q, 100.0 if q == "step_time_s" else 30.0, error) for q, error in errors.items()]
    return pd.DataFrame(
        [
            {"table": "rl", "id": name, "quantity": q, "measured": m, "predicted": m * (1 + e), "relative_error": e}
            for q, m, e in rows
        ]
    )


def test_a_right_total_of_wrong_stages_is_not_good():
    cancels = frame("cancels", step_time_s=0.01, gen_time_s=0.5, train_time_s=-0.5)
    right = frame("right", step_time_s=-0.1, gen_time_s=0.1, logprob_time_s=-0.19)
    far = frame("far", step_time_s=0.3, train_time_s=0.1)
    lines = steps_by_stages(pd.concat([cancels, right, far], ignore_index=True))
    assert [(line["id"], line["good"]) for line in lines] == [("cancels", "no"), ("far", "no"), ("right", "yes")]
    assert lines[0]["worst stage"] in ("gen_time_s", "train_time_s")
    assert share_of_bad_steps(pd.concat([cancels, right], ignore_index=True)) == pytest.approx(0.5)


def test_a_short_refit_is_noise_and_a_step_alone_says_nothing():
    short = frame("short", step_time_s=0.0, gen_time_s=0.0, refit_time_s=0.9)
    short.loc[short["quantity"] == "refit_time_s", "measured"] = 2.0
    assert steps_by_stages(short)[0]["good"] == "yes"
    assert steps_by_stages(frame("alone", step_time_s=0.0)) == []
    assert share_of_bad_steps(frame("alone", step_time_s=0.0)) is None
