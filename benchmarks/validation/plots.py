"""The parity plot: predicted over measured, as a PNG for pages and as an HTML page to hover over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmarks.validation.report import is_rate

if TYPE_CHECKING:
    from pathlib import Path

COLOURS = {"rl": "#d62728", "training": "#1f77b4", "generation": "#2ca02c", "paper": "#9467bd"}
BAND = 1.2
"""Lines at this factor above and below parity."""


def write_plots(frame: pd.DataFrame, folder: Path, name: str = "parity") -> list[str]:
    """Write ``name.png`` and ``name.html``; returns what could not be written and why.

    The plots need ``matplotlib`` and ``plotly``, which the ``dev`` extra installs and planning does not need.
    """
    points = points_of(frame)
    problems = []
    for kind, write in (("png", write_png), ("html", write_html)):
        try:
            write(points, folder / f"{name}.{kind}")
        except ImportError as error:
            problems.append(f"{name}.{kind} not written: {error}; install the dev extra")
    return problems


def write_png(points: pd.DataFrame, path: Path) -> None:
    """One panel for times and one for rates, both logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window system is asked for
    for index, (title, part) in enumerate(_panels(points)):
        axes = figure.add_subplot(1, 2, index + 1)
        for table, fit, group in _groups(part):
            label = f"{table}{', fitted' if fit else ''} ({len(group)})"
            face = "none" if fit else COLOURS[table]
            axes.scatter(group["x"], group["y"], s=14, facecolors=face, edgecolors=COLOURS[table], label=label)
        low, high = _range(part)
        for factor, style in ((1.0, "-"), (BAND, ":"), (1 / BAND, ":")):
            axes.plot([low, high], [low * factor, high * factor], style, color="grey", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel="measured", ylabel="predicted", title=title)
        if not part.empty:
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def write_html(points: pd.DataFrame, path: Path) -> None:
    """Both panels with the row's id, quantity and error under the pointer; the page needs no network."""
    from plotly.graph_objects import Scatter  # type: ignore[import-untyped, unused-ignore]
    from plotly.subplots import make_subplots  # type: ignore[import-untyped, unused-ignore]

    panels = _panels(points)
    figure = make_subplots(rows=1, cols=2, subplot_titles=[title for title, _ in panels])
    for column, (_, part) in enumerate(panels, start=1):
        for table, fit, group in _groups(part):
            marker = {"color": COLOURS[table], "symbol": "circle-open" if fit else "circle"}
            figure.add_trace(
                Scatter(
                    x=group["x"].tolist(),
                    y=group["y"].tolist(),
                    text=group["text"].tolist(),
                    mode="markers",
                    marker=marker,
                    name=f"{table}{', fitted' if fit else ''}",
                ),
                row=1,
                col=column,
            )
        low, high = _range(part)
        line = {"color": "grey", "width": 1}
        figure.add_trace(
            Scatter(x=[low, high], y=[low, high], mode="lines", line=line, showlegend=False), row=1, col=column
        )
    figure.update_xaxes(type="log", title_text="measured")
    figure.update_yaxes(type="log", title_text="predicted")
    figure.update_layout(template="plotly_white", height=650)
    figure.write_html(str(path), include_plotlyjs=True)


def points_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that can be drawn, with coordinates and a text for each."""
    kept = frame[frame["relative_error"].notna() & (frame["measured"] > 0) & (frame["predicted"] > 0)]
    lines = zip(kept["id"], kept["quantity"], kept["device"], kept["relative_error"], strict=True)
    text = pd.Series([f"{i}<br>{q}<br>{d}<br>{error:+.1%}" for i, q, d, error in lines], kept.index, dtype=object)
    # Milliseconds and seconds share an axis.
    scale = np.where([q.endswith("_ms") for q in kept["quantity"]], 1e-3, 1.0)
    return kept.assign(x=kept["measured"] * scale, y=kept["predicted"] * scale, text=text)


def _panels(points: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    rate = np.asarray([is_rate(q) for q in points["quantity"]], dtype=bool)
    return [("times (s), memory (GiB)", points[~rate]), ("rates (tokens/s, TFLOP/s, MFU)", points[rate])]


def _groups(part: pd.DataFrame) -> list[tuple[str, bool, pd.DataFrame]]:
    return [(str(t), bool(f), group) for (t, f), group in part.groupby(["table", "fit"])]


def _range(part: pd.DataFrame) -> tuple[float, float]:
    if part.empty:
        return 0.1, 10.0
    values = np.concatenate([part["x"], part["y"]])
    return float(values.min()) / 1.5, float(values.max()) * 1.5
