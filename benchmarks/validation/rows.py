"""One line of the report: a published quantity, what the model says of it, or why it says nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Table = Literal["rl", "training", "generation", "paper"]
ModelKind = Literal["dense", "moe", ""]

COLUMNS = (
    "table",
    "figure",
    "id",
    "system",
    "placement",
    "schedule",
    "model_kind",
    "level",
    "device",
    "quantity",
    "measured",
    "predicted",
    "low",
    "high",
    "relative_error",
    "naive",
    "fit",
    "family",
    "by_rule",
    "reason",
)


@dataclass(frozen=True)
class Row:
    """A published quantity and its prediction.

    Parameters
    ----------
    table, figure
        Kind of the table, and the figure of the paper (``fig9``) where there is one.
    id
        Key of the published row.
    system, placement, schedule, model_kind, level, device
        What to group errors by; ``level`` is the source's completeness A to D, ``device`` our profile or the
        published part where we have none. Empty where it does not apply.
    quantity
        The published column that is predicted, e.g. ``step_time_s``.
    measured, predicted
        In the unit of the column; ``predicted`` is ``None`` where nothing is predicted.
    low, high
        Range that holds the measured value nine times in ten (``simulator.uncertainty``); ``None`` where nothing is
        predicted or the quantity is no time and no rate.
    naive
        What anybody would say without us: 6 N T at 40 % of the peak, decode bound by bandwidth (``naive``).
    family
        Model, device and engine release; see ``families``.
    by_rule
        Share of the model whose kernels no table of the device holds (``simulator.uncertainty.by_rule_share``).
    fit
        Whether a constant of the product was fitted on this row (``fit_rows.yaml`` says so, nothing else does).
    reason
        Why nothing is predicted, or what had to be assumed; empty otherwise.
    """

    table: Table
    id: str
    quantity: str
    measured: float
    predicted: float | None = None
    reason: str = ""
    figure: str = ""
    system: str = ""
    placement: str = ""
    schedule: str = ""
    model_kind: ModelKind = ""
    level: str = ""
    device: str = ""
    fit: bool = False
    low: float | None = None
    high: float | None = None
    naive: float | None = None
    family: str = ""
    by_rule: float = 0.0

    @property
    def relative_error(self) -> float | None:
        """Predicted / measured - 1; ``None`` without a prediction."""
        return None if self.predicted is None else self.predicted / self.measured - 1.0

    def with_prediction(self, predicted: float, reason: str = "", naive: float | None = None) -> Row:
        """The row with a prediction, what it assumed, and what would be said without us."""
        return replace(self, predicted=predicted, reason=reason, naive=naive)

    def without(self, reason: str) -> Row:
        """The row with the reason why it has no prediction."""
        return replace(self, predicted=None, reason=reason)
