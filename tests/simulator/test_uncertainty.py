"""Protects the interval: it holds the prediction, is that of the plan's cluster, and says only what was checked."""

import math
from pathlib import Path

import pytest

from profiles.device_file import load_tables_of
from profiles.errors import FileFormatError
from profiles.records import Basis
from profiles.store import DATA, device_names
from simulator import uncertainty
from simulator.uncertainty import (
    UNTABLED,
    Calibration,
    ErrorRange,
    by_rule_share,
    cluster_of,
    device_family,
    interval,
    load_calibration,
    range_of,
)
from tests.builders import make_facts


@pytest.fixture
def calibration(monkeypatch):
    """A biased cluster and a wide one."""
    clusters = {
        "rl": ErrorRange(low=0.7, high=1.4, rows=30, families=12),
        "rl/moe": ErrorRange(low=1.05, high=1.30, rows=9, families=2),  # everything measured took longer than predicted
        "training": ErrorRange(low=0.5, high=2.0, rows=40, families=4),
    }
    found = Calibration(half_width={"measured": 0.05}, clusters=clusters)
    monkeypatch.setattr(uncertainty, "load_calibration", lambda: found)
    return found


def test_the_prediction_is_always_inside(calibration):
    assert interval("rl/moe") == (1.0, 1.30)


def test_a_cluster_without_rows_takes_the_longest_beginning_that_has_some(calibration):
    assert interval("rl/moe/sync/blackwell") == interval("rl/moe")
    assert interval("rl/dense/sync/hopper") == (0.7, 1.4)
    assert interval("never validated") == (0.5, 2.0), "the widest"


def test_the_cluster_of_a_plan():
    dense, mixture = make_facts(), make_facts("grpo", "qwen3-30b-a3b", device="b200-sxm")
    assert cluster_of(dense, "sync") == "rl/dense/sync/ampere"
    assert cluster_of(mixture, "one-step-off") == cluster_of(mixture, "async") == "rl/moe/overlapped/blackwell"


@pytest.mark.parametrize(
    ("model", "share"),
    [
        ("qwen3-8b", 0.0),
        ("qwen3-next-80b-a3b-instruct", 0.0),  # delta nets have tables
        ("deepseek-v3.2", 0.0),  # so have its modules
        ("nvidia-nemotron-3-nano-30b-a3b-bf16", 23 / 52),  # layers that are one part each
        ("kimi-linear-48b-a3b-instruct", 20 / 54),
        ("minimax-m3", 57 / 120),
    ],
)
def test_what_no_table_holds_of_a_model(model, share):
    assert by_rule_share(make_facts("grpo", model, device="h200-sxm")) == pytest.approx(share)


def test_what_is_priced_by_rule_widens_an_interval():
    """All of it by the range of parts without tables on top, none of it not at all."""
    path = "rl/dense/sync/hopper"
    low, high = interval(path)
    none, half, whole = (interval(path, share) for share in (0.0, 0.5, 1.0))
    assert none == (low, high)
    assert whole[0] < half[0] < low and high < half[1] < whole[1]
    other = range_of("rl/dense/sync/other").high
    assert interval("rl/dense/sync/other", 0.5) == interval("rl/dense/sync/other"), "whose range is of rules alone"
    assert whole[1] == pytest.approx(math.exp(math.hypot(math.log(high), math.log(other))))


@pytest.mark.parametrize(
    ("device", "family"),
    [
        ("h200-sxm", "hopper"),
        ("h20-96gb-sxm", "hopper"),
        ("gb300", "blackwell"),
        ("a100-40gb-sxm", "ampere"),
        ("a30-24gb", "ampere"),
        ("rtx-a6000", "other"),
        ("a10-24gb", "other"),
        ("l40s", "pcie"),
        ("rtx-pro-6000", "pcie"),
        ("mi300x-192gb", "other"),
    ],
)
def test_families_of_devices(device, family):
    assert device_family(device) == family


def test_parts_with_tables_are_no_part_of_those_without():
    own = [name for name in device_names() if load_tables_of(DATA / name) is None]
    assert {"l40s", "b300-sxm"} <= set(own) and UNTABLED not in map(device_family, own)


def test_the_shipped_file_knows_every_kind_of_evidence():
    assert set(load_calibration().half_width) == {basis.name.lower() for basis in Basis}


def test_a_broken_file_is_named(tmp_path: Path):
    (tmp_path / "u.yaml").write_text("half_width: [1")
    with pytest.raises(FileFormatError, match=r"u\.yaml: line 2, column 1: "):
        load_calibration(tmp_path / "u.yaml")
