"""Protects the price of transfers in the search: it is the simulator's, and the least over a range bounds the range."""

from dataclasses import replace

import numpy as np
import pytest

from mapper.candidates.weight_sync import WeightSync
from mapper.execution_mode import GENERATOR, ExecutionMode
from mapper.problem import make_problem
from profiles.hardware import ClusterGroup
from profiles.store import load_device
from simulator.facts import DeviceGroup, Facts
from tests.builders import make_facts
from tests.mapper.tables import role_table

A100, H100 = "a100-80gb-sxm", "h100-80gb-sxm"


@pytest.fixture(params=["vllm@0.3.1", "vllm@0.32"])
def mixed(request: pytest.FixtureRequest) -> Facts:
    device = load_device(H100)
    other = DeviceGroup(ClusterGroup.of(device.spec, 2), device)
    return replace(make_facts("grpo", nodes=3, generation=request.param), others=(other,))


def test_the_least_over_a_range_bounds_every_number_of_senders_in_it(mixed: Facts) -> None:
    table = role_table(make_problem(mixed, mode=ExecutionMode(dedicated_rollout=True)), GENERATOR)
    sync, senders = WeightSync(mixed, 1e-4), np.asarray([2, 4, 6, 8, 12, 16, 24])
    for device_type in mixed.device_types:
        least = sync.least(table, device_type, senders)
        every = np.stack([sync.ticks(table, device_type, int(n)) for n in senders])
        assert np.array_equal(least, every.min(axis=0))
