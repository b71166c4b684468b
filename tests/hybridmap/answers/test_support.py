"""Protects the support matrix: it says what prices rest on, and a cell without a price says why."""

import json
import re
from pathlib import Path

import pytest

from hybridmap.answers.support import MODELS, PRECISIONS, cell_of, newest_engines, support_of
from profiles.errors import UnknownNameError
from profiles.store import load_device


def cells(device: str, *engines: str) -> dict[tuple[str, str], float | None]:
    return {(cell.kind, cell.precision): cell.measured for cell in support_of(device, engines)}


def test_what_was_measured_is_measured() -> None:
    found = cells("h100-80gb-sxm", "vllm@0.32")
    assert len(found) == len(MODELS) * len(PRECISIONS)
    assert all(share is None or 0.0 <= share <= 1.0 for share in found.values())
    assert min(found["experts", "bf16"], found["latent, experts", "fp8_block"]) > 0.9  # type: ignore[type-var]


def test_what_has_no_price_says_why() -> None:
    cell = cell_of(load_device("a100-80gb-sxm"), "vllm@0.32", "dense", "fp32")
    assert cell.measured is None
    assert "a100-80gb-sxm" in cell.reason
    assert "fp32" in cell.reason


def test_weights_in_a_format_that_the_device_does_not_compute_in_are_by_rule() -> None:
    found = cells("a100-80gb-sxm", "vllm@0.32")
    assert None not in found.values()
    assert found["dense", "fp8"] < found["dense", "bf16"]  # type: ignore[operator]


def test_a_derived_device_measured_nothing() -> None:
    assert set(cells("h20-96gb-sxm", "vllm@0.32").values()) <= {0.0, None}


def test_every_engine_with_tables_is_there(run) -> None:
    assert [name.split("@")[0] for name in newest_engines()] == ["vllm", "sglang", "tensorrt-llm"]
    found = json.loads(run("support", "l40s", "--engine", "sglang@0.5", "--json").stdout)
    assert {cell["engine"] for cell in found["cells"]} == {"sglang@0.5"}


PAGE = (Path(__file__).parents[3] / "docs" / "support.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^## (\S+)\n\n```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
SOON = ("h100-80gb-sxm", "b200-sxm", "gb200")
"""The pages of these are compared in continuous integration, the others' in ``make check-all``."""


@pytest.mark.parametrize("device", [pytest.param(d, marks=[pytest.mark.long] * (d not in SOON)) for d in SHOWN])
def test_the_page_shows_what_the_command_prints(device: str, run) -> None:
    assert run("support", device).stdout.rstrip() == SHOWN[device].rstrip(), "docs/support.md"


def test_the_page_has_many_devices() -> None:
    assert len(SHOWN) >= 9 and set(SOON) < set(SHOWN)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        support_of("h9000")


def test_a_device_may_be_called_as_people_do(run) -> None:
    found = json.loads(run("support", "NVIDIA H100 80GB HBM3", "--engine", "vllm@0.32", "--json").stdout)
    assert found["device"] == "h100-80gb-sxm"
