"""Protects the calibration layer's file: what is wrong with one is named, and what it says is all that is hashed."""

from pathlib import Path

import pytest
import yaml

from profiles.calibration import FACTORS, factors_of_calls, read_calibration
from profiles.errors import FileFormatError

ZERO = [0.0] * len(FACTORS)
UNIT = [[float(i == j) for j in range(len(FACTORS))] for i in range(len(FACTORS))]
FILE = {
    "device": "d",
    "training": "t",
    "generation": "g",
    "system": "verl",
    "source": "train.log",
    "date": "2026-01-01",
    "steps": 3,
    "log_factors": ZERO,
    "covariance": UNIT,
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "calibration.yaml"
    path.write_text(yaml.safe_dump({**FILE, **changes}))
    return path


def test_a_layer_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = read_calibration(write(tmp_path))
    assert read_calibration(write(tmp_path, **file.model_dump(mode="json"))) == file


def test_the_reference_scores_by_two_factors() -> None:
    factors = dict.fromkeys(FACTORS, 1.0) | {"scoring": 1.5, "reference": 2.0, "training": 3.0}
    found = factors_of_calls(factors)
    assert (found["compute_log_prob"], found["compute_ref_log_prob"]) == (1.5, 3.0)
    assert found["update_critic"] == 3.0
    assert found["transition"] == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_factors": [9.0, *ZERO[1:]]}, r"log_factors\.0"),
        ({"log_factors": ZERO[1:]}, "expected 7 log_factors"),
        ({"covariance": [*UNIT[1:], [0.0] * 7]}, "all variances positive"),
        ({"factors": ["training"]}, "factors are generation"),
        ({"colour": 1}, "colour"),
        ({"provenance": "guessed"}, "provenance"),
        ({"steps": 0}, "steps"),
        ({"schema_version": 1}, "schema_version"),
    ],
)
def test_a_wrong_layer_is_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(FileFormatError, match=rf"calibration\.yaml: .*{message}"):
        read_calibration(write(tmp_path, **changes))
