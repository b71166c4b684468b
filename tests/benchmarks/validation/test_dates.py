"""Protects when a row was measured: its engine's release and verl's default of eager steps hang on it."""

import pytest

from benchmarks.validation.dates import month_of, month_or_typical
from benchmarks.validation.rl_engines import generation_engine
from benchmarks.validation.rl_work import given_facts
from tests.builders import RL_CELLS


@pytest.mark.parametrize(
    ("cells", "month"),
    [
        ({"measured_date": "2026-03-14", "system": "verl v0.4"}, "2026-03"),
        ({"source_ref": "yushengsu-thu/verl_training_log GRPO deepseek7b", "system": "verl"}, "2025-04"),
        ({"system": "verl v0.4.1"}, "2025-06"),
        ({"system": "verl 0.7, fully_async_policy"}, "2026-01"),
        ({"system": "NeMo-RL v0.6.0"}, "2026-05"),
        ({"system": "verl v0.1"}, ""),
        ({"system": "verl"}, ""),
        ({"system": "SkyRL v0.3"}, ""),
    ],
)
def test_the_month_of_a_row(cells, month):
    assert month_of(cells) == month


def test_an_undated_row_of_verl_is_of_the_middle_of_its_public_runs():
    assert month_or_typical({"system": "verl"}) == "2025-09"
    assert month_or_typical({"system": "SkyRL"}) == ""


@pytest.mark.parametrize(
    ("system", "engine"),
    [("verl", "vllm@0.12"), ("verl v0.4.0", "vllm@0.12"), ("verl v0.9.0", "vllm@0.32"), ("SkyRL", "vllm@0.32")],
)
def test_an_unnamed_release_of_an_engine_is_that_of_the_month(system, engine):
    """A log of vLLM 0.6.3 was priced with the host's work hidden, as vLLM does since 0.14."""
    assert generation_engine({"system": system, "gen_backend": "vLLM"}) == engine


def test_early_releases_of_verl_launch_decode_steps_eagerly():
    eager = {
        v: not given_facts(RL_CELLS | {"system": f"verl {v}"}, []).generation.cuda_graphs for v in ("v0.4.0", "v0.6.0")
    }
    assert eager == {"v0.4.0": True, "v0.6.0": False}
