"""Protects the calibration layer: factors come from the file alone, and what is wrong with them is named."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from profiles.calibration import UNCALIBRATED, load_calibration
from profiles.errors import FileFormatError
from simulator.cost.pricing import role_costs
from simulator.cost.role_layouts import RoleLayouts
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import make_facts

ONE = {
    "call": "update_critic",
    "factor": 1.5,
    "measured_s": 3.0,
    "predicted_s": 2.0,
    "iterations": 10,
    "spread": 0.1,
    "error_before": -0.3,
    "error_after": 0.0,
}
FILE = {"device": "d", "job": "j", "command": "c", "date": "2026-01-01", "corrections": [ONE]}


def write(folder: Path, **changes: object) -> Path:
    (folder / "calibration.yaml").write_text(yaml.safe_dump({**FILE, **changes}))
    return folder


def test_no_file_is_no_calibration(tmp_path: Path) -> None:
    assert load_calibration(tmp_path) is UNCALIBRATED


def test_a_factor_scales_its_call_and_no_other(tmp_path: Path) -> None:
    facts = make_facts()
    changed = replace(facts, calibration=load_calibration(write(tmp_path)))
    layout = Layouts.of([ParallelLayout(dp=8)])
    layouts = RoleLayouts(training=layout, inference=layout)
    before, after = (role_costs(f, "critic", layouts) for f in (facts, changed))
    assert after["update_critic"].time.s == pytest.approx(1.5 * before["update_critic"].time.s)
    assert after["compute_values"].time.s == before["compute_values"].time.s
    assert changed.facts_hash != facts.facts_hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corrections": [{**ONE, "factor": -1}]}, r"corrections\.0\.factor"),
        ({"colour": 1}, "colour"),
        ({"provenance": "guessed"}, "provenance"),
    ],
)
def test_a_wrong_layer_is_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(FileFormatError, match=rf"calibration\.yaml: {message}"):
        load_calibration(write(tmp_path, **changes))
