"""Protects README from errors that today's prices no longer have: its figures are those of docs/accuracy.json."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
QUANTITIES = {
    "RL steps": "rl/step_time_s",
    "training steps": "training/step_time_s",
    "time per output token": "generation/tpot_ms",
}


@pytest.mark.parametrize("words", QUANTITIES)
def test_readme_says_the_errors_of_today(words):
    readme = " ".join((ROOT / "README.md").read_text().split())
    errors = json.loads((ROOT / "docs" / "accuracy.json").read_text())
    said = re.search(rf"{words} (\d+) % and (\d+) %", readme)
    assert said is not None
    of_kinds = [errors[f"{QUANTITIES[words]}/{kind}"] for kind in ("dense", "moe")]
    assert [int(number) for number in said.groups()] == [round(100 * error) for error in of_kinds]
