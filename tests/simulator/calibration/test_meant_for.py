"""Protects what a calibration is taken for: the device and the engines that it was learned with, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.calibration import FACTORS, CalibrationFile
from simulator.calibration.factors import layer_of
from simulator.calibration.meant_for import layer_for
from simulator.facts import DeviceGroup
from tests.builders import make_facts

MODELS = {"actor": "llama-2-7b", "reference": "llama-2-7b"}
KNOWN = 0.0001


@pytest.fixture
def facts():
    return make_facts("grpo", roles=MODELS)


@pytest.fixture
def learned(facts):
    """Everything is twice what was priced, and surely so."""
    return CalibrationFile(
        device=facts.group.device,
        training=facts.training.name,
        generation=facts.generation.name,
        system="verl",
        source="a.log",
        date="2026-11-24",
        steps=20,
        log_factors=(np.log(2.0),) * len(FACTORS),
        covariance=tuple(map(tuple, (KNOWN * np.eye(len(FACTORS))).tolist())),
        seconds_per_sample={"compute_advantage": 0.1, "update_actor": 0.1},
    )


def test_a_job_on_the_machines_of_the_log_takes_all_of_it(facts, learned):
    assert layer_for([learned], facts) == layer_of([learned])
    newer = learned.model_copy(update={"training": learned.training.partition("@")[0] + "@0.0"})
    assert layer_for([newer], facts).learned == layer_of([newer]).learned  # a release is the same engine


def test_another_trainer_keeps_what_generation_is_known_by(facts, learned):
    layer = layer_for([learned.model_copy(update={"training": "deepspeed@0.9"})], facts)
    assert layer.learned == ("generation", "generation_host")
    assert layer.factors["generate_sequences"] == pytest.approx(2.0)
    assert layer.factors["update_actor"] == pytest.approx(1.0)
    assert layer.seconds_per_sample == {"compute_advantage": 0.1}
    assert layer.covariance == ()  # its interval is that of published runs
    assert "verl on" in layer.source and "deepspeed@0.9" in layer.source


def test_another_device_is_told_nothing(facts, learned):
    layer = layer_for([learned.model_copy(update={"device": "mi300x-192gb"})], facts)
    assert layer.learned == () and layer.seconds_per_sample == {}
    assert set(layer.factors.values()) == {1.0} and set(layer.host.values()) == {1.0}


def test_a_layer_beside_one_of_another_machine_still_shrinks_the_interval(facts, learned):
    elsewhere = learned.model_copy(update={"device": "mi300x-192gb"})
    layer = layer_for([learned, elsewhere], facts)
    assert layer.learned == FACTORS and layer.covariance and not layer.apart
    assert layer.factors["update_actor"] == pytest.approx(2.0, rel=0.02)


def test_a_mixed_cluster_takes_what_either_of_its_devices_said(facts, learned):
    other = replace(facts.group, device="h100-80gb-sxm")
    mixed = replace(facts, others=(DeviceGroup(other, facts.device),))
    assert layer_for([learned.model_copy(update={"device": "h100-80gb-sxm"})], mixed).learned == FACTORS
