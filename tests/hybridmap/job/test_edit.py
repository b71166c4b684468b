"""Protects settings by dotted path: commas inside brackets, lists, and that the raw job itself is never changed."""

import copy

import pytest

from hybridmap.job.edit import combinations, parse_setting, with_settings
from profiles.errors import InputError


def test_values_are_yaml_and_commas_in_brackets_stay():
    setting = parse_setting("workload.response_length={distribution: lognormal, mean: 10, max: 20},512")
    assert setting.values == ({"distribution": "lognormal", "mean": 10, "max": 20}, 512)
    assert parse_setting("a=1,2.5,x,true").values == (1, 2.5, "x", True)


def test_the_last_setting_changes_fastest():
    settings = [parse_setting("a=1,2"), parse_setting("b=3,4")]
    assert [tuple(c.values()) for c in combinations(settings, 4)] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    with pytest.raises(InputError, match="at most 3"):
        combinations(settings, 3)


def test_a_setting_reaches_into_lists_and_makes_missing_mappings():
    raw = {"cluster": [{"nodes": 1}]}
    before = copy.deepcopy(raw)
    out = with_settings(raw, {"cluster.0.nodes": 8, "implementation.loss_head": "fused"})
    assert out == {"cluster": [{"nodes": 8}], "implementation": {"loss_head": "fused"}}
    assert raw == before
