"""Whether a step is right for the right reasons: its total beside the stages that its row publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

STAGES = ("gen_time_s", "logprob_time_s", "critic_time_s", "train_time_s", "refit_time_s")
GOOD_STEP = 0.12
"""A step within this is good, if its stages are."""
GOOD_STAGE = 0.2
COLUMNS = ("id", "step", "worst stage", "error of it", "good")


def steps_by_stages(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Each predicted step that publishes stages, with the stage that is furthest off.

    Parameters
    ----------
    frame
        A report.

    Returns
    -------
    list[dict[str, Any]]
        ``id``, ``step`` (error), ``worst stage``, ``error of it``, and ``good``: both within their limits. The refit
        counts where it is a tenth of the step and more: a second of a minute is noise in it.
    """
    rows = frame[(frame["table"] == "rl") & frame["predicted"].notna()]
    found = []
    for name, part in rows.groupby("id", sort=True):
        step = part[part["quantity"] == "step_time_s"]
        stages = part[part["quantity"].isin(STAGES)]
        if step.empty:
            continue
        long = stages["measured"] > float(step["measured"].iloc[0]) / 10.0
        stages = stages[(stages["quantity"] != "refit_time_s") | long]
        if stages.empty:
            continue
        worst = stages.loc[stages["relative_error"].abs().idxmax()]
        of_step, of_stage = float(step["relative_error"].iloc[0]), float(worst["relative_error"])
        good = abs(of_step) <= GOOD_STEP and abs(of_stage) <= GOOD_STAGE
        line = {
            "id": name,
            "step": f"{of_step:+.1%}",
            "worst stage": worst["quantity"],
            "error of it": f"{of_stage:+.1%}",
        }
        found.append({**line, "good": "yes" if good else "no"})
    return found


def share_of_bad_steps(frame: pd.DataFrame) -> float | None:
    """Share of the steps with published stages that are not good, or ``None`` where there are no such steps."""
    lines = steps_by_stages(frame)
    return sum(line["good"] == "no" for line in lines) / len(lines) if lines else None
