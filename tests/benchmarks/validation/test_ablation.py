"""Protects the ablation: a constant left out reaches the price, and nothing of it stays behind."""

from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.validation import ablation, accuracy, paper_job
from benchmarks.validation.devices import device_profile
from benchmarks.validation.fit import FitConstant, fit_constants
from benchmarks.validation.overrides import current_value, overridden
from benchmarks.validation.paper_plans import transition_s
from benchmarks.validation.report import frame_of
from benchmarks.validation.rows import Row
from profiles.engine_facts import engine_constants, load_generation_engine
from profiles.lookup.pricing import memory_bound
from profiles.store import load_device
from tests.benchmarks.validation.conftest import PUBLISHED


def constant_of(name: str, file: str) -> FitConstant:
    (found,) = (c for c in fit_constants() if c.constant == name and file in c.file)
    return found


def transition() -> float:
    return transition_s("hybridflow", "ppo", "7B", 8)


def test_an_engine_fact_reaches_the_price_and_is_undone() -> None:
    constant = constant_of("transition_fixed_s", "vllm@0.3.1")
    before, facts = transition(), load_generation_engine("vllm@0.3.1")
    with overridden({constant: constant.neutral}):
        assert transition() == pytest.approx(before - facts.transition_fixed_s)
        assert load_generation_engine("vllm@0.3.1").facts_hash != facts.facts_hash
        assert load_generation_engine("nemo-generate@0.2").transition_fixed_s == 0  # a file of `also`
        assert load_generation_engine("vllm@0.32").transition_fixed_s > 0  # another constant of that name
    assert (transition(), load_generation_engine("vllm@0.3.1")) == (before, facts)


@pytest.mark.parametrize("constant", fit_constants(), ids=lambda c: f"{c.file}:{c.constant}")
def test_every_constant_can_be_left_out_and_comes_back_after_an_exception(constant: FitConstant) -> None:
    before = current_value(constant)
    with pytest.raises(ZeroDivisionError), overridden({constant: constant.neutral}):
        assert current_value(constant) == constant.neutral
        raise ZeroDivisionError
    assert current_value(constant) == before


def test_a_device_rate_reaches_derived_parts_and_is_undone() -> None:
    constant = constant_of("sustained_flop_per_s.bf16", "h100")
    before = device_profile("h800-80gb-sxm").spec
    with overridden({constant: constant.neutral}):
        assert load_device("h100-80gb-sxm").spec.sustained("bf16") == constant.neutral
        assert device_profile("h800-80gb-sxm").spec.sustained("bf16") == constant.neutral
    assert device_profile("h800-80gb-sxm").spec == before
    assert before.sustained("bf16") < 989e12


def test_a_python_constant_reaches_the_price() -> None:
    spec = load_device("h100-80gb-sxm").spec
    before = float(memory_bound(spec, 0, 1).s)
    with overridden({constant_of("GRAPH_LAUNCH_S", "pricing.py"): 0.0}):
        assert float(memory_bound(spec, 0, 1).s) == 0.0
    assert float(memory_bound(spec, 0, 1).s) == before > 0.0
    with overridden({constant_of("ENGINE_PROMPT_TOKENS", "paper_job.py"): 7}):
        assert paper_job.paper_facts("ppo", "7B", 8).workload.prompt_tokens == 7


def test_an_effect_is_measured_on_the_constants_rows_and_leaves_predictions_as_they_were(tmp_path) -> None:
    text = "algorithm,model,num_gpus,system,transition_s\nppo,7B,8,hybridflow,2.5\nppo,7B,8,openrlhf,4\n"
    (tmp_path / "paper_fig14_transition.csv").write_text(text)
    constant = constant_of("transition_fixed_s", "vllm@0.3.1")
    frame = ablation.predicted(tmp_path)
    found = ablation.effect(constant, frame, tmp_path)
    pd.testing.assert_frame_equal(ablation.predicted(tmp_path), frame)
    assert (found["rows"], found["moved"], found["other_rows"], found["lost"]) == (1, 1, 0, 0)
    with overridden({constant: constant.neutral}):
        assert found["mean_without"] == pytest.approx(abs(transition() / 2.5 - 1), abs=1e-4)
    assert found["mean_with"] == pytest.approx(abs(transition() / 2.5 - 1), abs=1e-4)
    assert set(found) == set(ablation.COLUMNS)


def test_every_row_is_own_or_unfitted_in_the_same_table_or_left_alone() -> None:
    base = Row("training", "prime-11", "step_time_s", 1.0, 1.0, system="prime-rl trainer", fit=True)
    rows = {
        "own": base,
        "other": replace(base, id="a", system="Prime-RL 2", fit=False),
        "rest": replace(base, id="b", system="torchtitan", fit=False),
        "fitted by another": replace(base, id="c"),
        "another quantity of the own row": replace(base, quantity="throughput", table="generation", fit=False),
        "another table": replace(base, id="d", table="rl", fit=False),
    }
    found = ablation.groups(frame_of(rows.values()), constant_of("step_fixed_s", "fsdp@2.13"))
    assert list(found) == ["own", "other", "rest", "", "", ""]


def test_only_the_rows_that_are_needed_are_predicted_again() -> None:
    wanted = pd.DataFrame({"table": ["generation"], "figure": [""], "id": ["trt010-02-4"]})
    assert set(ablation.predicted(PUBLISHED, wanted)["id"]) == {"trt010-02-4"}


@pytest.mark.parametrize("constant", fit_constants(), ids=lambda c: f"{c.file}:{c.constant}")
def test_the_neutral_value_is_of_the_right_kind_and_another_one(constant: FitConstant) -> None:
    value = current_value(constant)
    assert isinstance(constant.neutral, tuple) == isinstance(value, tuple)
    assert constant.neutral != value
    engines = [file.rsplit("/", 1)[1].removesuffix(".yaml") for file in constant.files if "/engines/" in file]
    with overridden({constant: constant.neutral}):
        assert all(engine_constants(name)[constant.constant].value == constant.neutral for name in engines)


def test_the_table_has_every_constant_and_no_other() -> None:
    found = ablation.read_ablation()
    assert list(found.columns) == list(ablation.COLUMNS)
    assert sorted(zip(found["file"], found["constant"], found["neutral"], strict=True)) == sorted(
        (c.file, c.constant, ablation.text_of_value(c.neutral)) for c in fit_constants()
    )


def test_the_page_says_what_is_missing_or_old() -> None:
    found = ablation.read_ablation()
    text = accuracy.without_text(found)
    assert "run `make ablation`" in accuracy.without_text(found.iloc[1:])
    assert all(f"`{c.constant}`" in text for c in fit_constants())
    assert "errors are those of 123" in accuracy.without_text(found.assign(value="123"))


def test_the_page_names_the_constants_that_could_go() -> None:
    found = ablation.read_ablation().head(1).assign(mean_with=0.1, mean_without=0.104, lost=0, moved=0, rows=3)
    same = {f"{group}_median_{side}": 0.2 for group in ("other", "rest") for side in ("with", "without")}
    assert "which prices none of its fitted rows" in accuracy.without_text(found.assign(**same))
    for change in ({"mean_without": 0.106}, {"rest_median_without": 0.3}, {"lost": 1}):
        assert "raises no mean" not in accuracy.without_text(found.assign(**{**same, **change}))
