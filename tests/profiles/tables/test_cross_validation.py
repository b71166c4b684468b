"""Protects the statement of how wrong lookups are: a line has no error, a known bend has the error it must have."""

import numpy as np
import pytest

from profiles.lookup.grid import build_grid
from profiles.store import device_names, load_device
from profiles.tables.cross_validation import left_out_errors, summary, table_errors


def test_a_power_law_is_interpolated_without_error() -> None:
    m, n = (x.reshape(-1) for x in np.meshgrid([1.0, 2.0, 8.0, 16.0], [4.0, 16.0, 32.0]))
    errors = left_out_errors(build_grid((m, n), m**0.3 * n**-0.5))
    assert [len(e) for e in errors] == [6, 4]
    assert max(e.max() for e in errors) < 1e-12


def test_a_bump_is_off_by_its_height() -> None:
    (error,) = left_out_errors(build_grid(([1.0, 2.0, 4.0],), [1.0, 1.25, 1.0]))
    assert error == pytest.approx([0.2])  # 1 instead of 1.25


def test_points_at_the_edge_and_lone_points_are_not_judged() -> None:
    assert summary(left_out_errors(build_grid(([1.0, 2.0],), [1.0, 3.0]))) is None


SOON = ("a100-80gb-sxm", "b200-sxm")
"""Two generations. Tables change only where they are imported anew; the others belong to `make check-all`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOON else pytest.mark.long) for name in device_names()]
)
def test_gemm_and_attention_of_every_shipped_device_meet_five_percent(name: str) -> None:
    errors = table_errors(load_device(name))
    assert set(errors) >= {"gemm", "attention_prefill", "attention_decode", "collective", "moe"}
    for table in ("gemm", "attention_prefill", "attention_decode"):
        assert errors[table].median <= 0.05 and errors[table].points > 1000
