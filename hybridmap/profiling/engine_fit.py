"""Host costs of the torch-native engine, from calls that were timed whole.

A call is priced by the simulator from the measured tables with all host costs at zero; what is left is shared out among
them. Prices are linear in these constants on a CPU (launching adds to the work), so each constant's column is the
price with it at one less the price without it, and the fit is a non-negative least squares of relative errors,
reweighted towards absolute ones so that a disturbed timing does not pull. On a GPU launching is a floor under the work
and the same constants are found by a bounded non-linear fit that starts there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import least_squares, nnls

from hybridmap.profiling.probe_prices import ROLE_OF, price_of, probe_facts
from profiles.models.probe_models import is_ours

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profiles.device import DeviceProfile
    from profiles.engine_facts import GenerationEngine, TrainingEngine
    from profiles.records import Floats

    Row = Mapping[str, Any]

TRAINING_CONSTANTS = (
    "element_wise_ratio",
    "forward_s_per_layer",
    "forward_s_per_layer_sequence",
    "forward_s_per_pass",
    "call_s",
    "backward_s_per_layer",
    "backward_s_per_layer_sequence",
    "backward_s_per_pass",
    "step_fixed_s",
)
GENERATION_CONSTANTS = (
    "attention_ratio",
    "element_wise_ratio",
    "launch_s_per_layer",
    "prefill_launch_s_per_layer",
    "host_s_per_step",
    "host_s_per_sequence",
    "call_s",
)
SCALE = {"element_wise_ratio": 1.0, "attention_ratio": 1.0}
"""Size of a constant in the non-linear fit; seconds are of the order of 100 us."""
MOST_RATIO = 2.0
"""On a GPU: tables hold the same kernels, so what looks like more work is launching, and does not grow with work."""
REWEIGHTINGS = 8
OTHERS_WEIGHT = 1.0 / 3.0
"""Of rows of models that are there to tell constants apart, beside those that the profile is for."""
SMALLEST_RESIDUAL = 0.01


@dataclass(frozen=True)
class Fit:
    """Constants, and what they are off by on calls that were left out of the fit: medians by call, and of each row."""

    constants: dict[str, float]
    rows: int
    left_out: dict[str, float]
    row_errors: tuple[tuple[Row, float], ...] = ()


@dataclass(frozen=True)
class Engines:
    """Both engines that a call may be priced with, and the device."""

    device: DeviceProfile
    training: TrainingEngine
    generation: GenerationEngine

    def price(self, row: Row, kind: str, constants: Mapping[str, float]) -> float:
        """Price of a row with constants of the ``training`` or the ``generation`` engine replaced."""
        changes: dict[str, Any] = dict(constants)
        training = replace(self.training, **changes) if kind == "training" else self.training
        generation = replace(self.generation, **changes) if kind == "generation" else self.generation
        return price_of(row, probe_facts(row, self.device, training, generation))

    def price_on(self, row: Row, ranks: int) -> float:
        """Price of a row on ``ranks`` data-parallel ranks that wait for a controller between calls."""
        training = replace(self.training, call_s=self.training.call_s + self.training.wake_s)
        generation = replace(self.generation, call_s=self.generation.call_s + self.generation.wake_s)
        return price_of(row, probe_facts(row, self.device, training, generation, ranks), ranks)


def fit_constants(rows: Sequence[Row], engines: Engines, kind: str) -> Fit:
    """Fit the constants of one kind of engine on its rows; ``kind`` is ``training`` or ``generation``."""
    names = TRAINING_CONSTANTS if kind == "training" else GENERATION_CONSTANTS
    mine = [
        row for row in rows if not row["idle_ms"] and (row["call"] == "generate_sequences") == (kind == "generation")
    ]
    if not mine:
        return Fit(dict.fromkeys(names, 0.0), 0, {})
    columns, base, measured = _columns(mine, engines, kind, names)
    importance = np.asarray([OTHERS_WEIGHT if is_ours(row) else 1.0 for row in mine])
    found = _solved(columns, base, measured, importance)
    errors = _left_out(mine, columns, base, measured, importance)
    if engines.device.spec.kind == "gpu":
        found = _bounded(mine, engines, kind, names, found, measured)
    return Fit(dict(zip(names, found.tolist(), strict=True)), len(mine), _medians(errors), errors)


def _columns(rows: Sequence[Row], engines: Engines, kind: str, names: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """What one of each constant adds to each row, ``[rows, constants]``; prices without any; measured times."""
    none = dict.fromkeys(names, 0.0)
    base = np.asarray([engines.price(row, kind, none) for row in rows])
    columns = [
        [engines.price(row, kind, {**none, name: 1.0}) - start for row, start in zip(rows, base, strict=True)]
        for name in names
    ]
    return np.asarray(columns).T, base, np.asarray([float(row["latency_s"]) for row in rows])


def _solved(columns: Floats, base: Floats, measured: Floats, importance: Floats) -> Floats:
    weight = np.ones(len(measured))
    found = np.zeros(columns.shape[1])
    for _ in range(REWEIGHTINGS):
        scale = np.sqrt(weight * importance) / measured
        found, _ = nnls(columns * scale[:, None], (measured - base) * scale)
        residual = np.abs((columns @ found + base) / measured - 1.0)
        weight = 1.0 / np.maximum(residual, SMALLEST_RESIDUAL)
    return np.asarray(found, dtype=np.float64)


def _left_out(
    rows: Sequence[Row], columns: Floats, base: Floats, measured: Floats, importance: Floats
) -> tuple[tuple[Row, float], ...]:
    """Absolute error of each row, its probe predicted by a fit on all others; nothing where there are no others."""
    probes = [tuple((k, v) for k, v in sorted(row.items()) if k in PROBE_KEYS) for row in rows]
    errors: list[tuple[Row, float]] = []
    for probe in dict.fromkeys(probes):
        out = np.asarray([p == probe for p in probes])
        if out.all():
            return ()
        found = _solved(columns[~out], base[~out], measured[~out], importance[~out])
        predicted = columns[out] @ found + base[out]
        for i, p, m in zip(np.flatnonzero(out), predicted, measured[out], strict=True):
            errors.append((rows[int(i)], float(abs(p / m - 1.0))))
    return tuple(errors)


def _medians(errors: Sequence[tuple[Row, float]]) -> dict[str, float]:
    by_call: dict[str, list[float]] = {}
    for row, error in errors:
        by_call.setdefault(str(row["call"]), []).append(error)
    return {call: float(np.median(found)) for call, found in by_call.items()}


def fit_wake(rows: Sequence[Row], engines: Engines, kind: str) -> float | None:
    """Seconds that a call takes longer on a rank that waits for its controller, from calls of a run without neighbours.

    ``None`` without such rows.
    """
    priced = [r for r in rows if not r["neighbours"] and r["call"] in ROLE_OF]
    mine = [r for r in priced if (r["call"] == "generate_sequences") == (kind == "generation")]
    rest = [float(row["latency_s"]) - engines.price(row, kind, {}) for row in mine]
    return max(float(np.median(rest)), 0.0) if rest else None


@dataclass(frozen=True)
class Together:
    """Seconds that a call takes longer for each further rank, by engine, and that ranks wait at a meeting."""

    generation_rank_s: float
    training_rank_s: float
    meeting_s: float


def fit_together(rows: Sequence[Row], engines: Engines, alone: Sequence[Row] = ()) -> Together:
    """What further ranks add to calls, and their meetings; nothing else is fitted here.

    Generation and scoring have no collective between data-parallel ranks: what they take longer than a rank's share is
    what further ranks add. Generation's is its own, since it follows the hand-over of weights. What an update takes
    longer beyond scoring's is waiting, shared out over the meetings of its steps. Where the same call was measured on
    one rank (``alone``, of table ``neighbour_step``), its share is of that time, so that an error of its price is not
    put down to ranks.
    """
    late = [
        (row["call"], _beyond_share(row, engines, alone) / (row["ranks"] - 1)) for row in rows if not is_update(row)
    ]
    generating = [s for call, s in late if call == "generate_sequences"]
    scoring = [s for call, s in late if call != "generate_sequences"]
    rank_s = max(float(np.median(scoring or generating)), 0.0) if scoring or generating else 0.0
    meetings = [
        (_beyond_share(row, engines, alone) - rank_s * (row["ranks"] - 1))
        / (row["minibatches"] * engines.training.meetings_per_step)
        for row in rows
        if is_update(row)
    ]
    return Together(
        generation_rank_s=max(float(np.median(generating)), 0.0) if generating else rank_s,
        training_rank_s=rank_s,
        meeting_s=max(float(np.median(meetings)), 0.0) if meetings else 0.0,
    )


def _beyond_share(row: Row, engines: Engines, alone: Sequence[Row]) -> float:
    """Seconds that a call of several ranks takes beyond its price there, scaled as one rank's time is to its price."""
    names = {*PROBE_KEYS, "call", "dtype"}
    same = [r for r in alone if not r["neighbours"] and all(r[name] == row[name] for name in names)]
    scale = float(np.median([float(r["latency_s"]) / engines.price_on(r, 1) for r in same])) if same else 1.0
    return float(row["latency_s"]) - scale * engines.price_on(row, row["ranks"])


def is_update(row: Row) -> bool:
    """Whether the row's call trains, so that data-parallel ranks meet in it."""
    return str(row["call"]).startswith("update_")


PROBE_KEYS = frozenset({"hidden", "layers", "samples", "prompt", "response", "micro_batch", "minibatches"})


def _bounded(
    rows: Sequence[Row], engines: Engines, kind: str, names: Sequence[str], start: Floats, measured: Floats
) -> Floats:
    scale = np.asarray([SCALE.get(name, 1e-4) for name in names])

    def residual(x: Floats) -> Floats:
        constants = dict(zip(names, (x * scale).tolist(), strict=True))
        return np.asarray([engines.price(row, kind, constants) for row in rows]) / measured - 1.0

    most = np.asarray([MOST_RATIO if name in SCALE else np.inf for name in names])
    start = np.where(np.isfinite(most), 1.0, start / scale)  # where nothing depends on a ratio it stays one
    result = least_squares(residual, start, bounds=(0.0, most), loss="soft_l1", f_scale=0.1, max_nfev=30)
    return np.asarray(result.x * scale, dtype=np.float64)
