"""Lengths of responses in a job: one for all, log-normal, or a histogram."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from hybridmap.job.leaves import EXPECTED, Expected, Finite, Name, Positive, Section, Tokens
from profiles.workload import DEFAULT_LOGNORMAL_SIGMA

KINDS = FIXED, LOGNORMAL, HISTOGRAM = ("fixed", "lognormal", "histogram")
"""Kinds of response length. Pydantic names them in the places that it reports; they mean nothing to a user there."""


class LognormalSection(Section, title="Log-normal lengths"):
    """Log-normal response lengths, clipped at ``max``."""

    distribution: Literal["lognormal"]
    mean: Positive = Field(description="Mean length after clipping, in tokens.", examples=[2500])
    max: Tokens = Field(description="The limit at which generation stops, in tokens.", examples=[8192])
    p99: Positive | None = Field(
        default=None,
        description="99th percentile before clipping, in tokens; without it the standard deviation of the log is "
        f"{DEFAULT_LOGNORMAL_SIGMA}.",
    )


class Histogram(Section):
    """Columns of a histogram, as ``plan.json`` keeps them."""

    lengths: list[Annotated[int, Field(strict=True)]] = Field(description="Lengths in tokens.")
    counts: list[Finite] = Field(description="How many responses had them.")


class HistogramSection(Section, title="Measured lengths"):
    """Measured response lengths, from a CSV file."""

    histogram: Annotated[Name | Histogram, Expected("the path of a CSV file with columns length and count")] = Field(
        description="A CSV file with the columns length (tokens) and count.", examples=["lengths.csv"]
    )


def _response_tag(value: Any) -> str | None:
    if isinstance(value, Section):
        return HISTOGRAM if isinstance(value, HistogramSection) else LOGNORMAL
    if not isinstance(value, dict):
        return FIXED if type(value) is int else None
    return HISTOGRAM if "histogram" in value else LOGNORMAL


ResponseLength = Annotated[
    Annotated[Tokens, Tag(FIXED)]
    | Annotated[LognormalSection, Tag(LOGNORMAL)]
    | Annotated[HistogramSection, Tag(HISTOGRAM)],
    Discriminator(
        _response_tag,
        custom_error_type=EXPECTED,
        custom_error_message=(
            "a whole number of tokens, {distribution: lognormal, mean: .., max: ..} or {histogram: file.csv}"
        ),
    ),
]
