"""Protects the separation of fitted and unfitted rows: no constant may rest on a row that the reports call unseen."""

import re
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.validation.fit import fit_constants, is_fit
from profiles.engine_facts import engine_constants, engine_names
from profiles.store import device_names, load_device
from tests.benchmarks.validation.conftest import PUBLISHED

ROOT = Path(__file__).parents[3]


def listed():
    return {(file, constant.constant) for constant in fit_constants() for file in constant.files}


def engine_fits():
    names = [*engine_names("training"), *engine_names("generation")]
    facts = {(f"profiles/engines/{n}.yaml", key): fact for n in names for key, fact in engine_constants(n).items()}
    return {key for key, fact in facts.items() if fact.fit_rows}


def device_fits():
    return {
        (f"profiles/data/{name}/device.yaml", field)
        for name in device_names()
        for field, source in load_device(name).spec.sources.items()
        if source.lower().startswith(("fit on", "fitted on"))
    }


def test_every_fitted_fact_is_listed_and_no_other():
    by_file = {key for key in listed() if key[0].endswith(".yaml")}
    assert engine_fits() - by_file == set(), "facts with fit_rows that fit_rows.yaml does not list"
    assert device_fits() - by_file == set(), "device facts fitted on rows that fit_rows.yaml does not list"
    assert by_file - engine_fits() - device_fits() == set(), "fit_rows.yaml lists facts that are not fitted"


NOT_PUBLISHED = re.compile(
    r"\b(assumed|carried over|not measured|not needed:|for another engine|between the two system cards)\b"
    r"|^(fit(ted)? on|same fit|chosen on|not fitted|the [A-Z]+[0-9]+'s|of [a-z-]+@)\b"
)
"""How a source says that nobody published the value for this engine or part."""


def constants():
    """Every shipped constant: file, name, basis, source."""
    for name in (*engine_names("training"), *engine_names("generation")):
        for key, fact in engine_constants(name).items():
            yield f"profiles/engines/{name}.yaml", key, fact.basis, fact.source
    for name in device_names():
        spec = load_device(name).spec
        for field, source in spec.sources.items():
            yield f"profiles/data/{name}/device.yaml", field, spec.bases[field].name.lower(), source


def test_no_constant_is_called_published_whose_source_says_otherwise():
    wrong = [(f, k, s) for f, k, b, s in constants() if b in ("published", "measured") and NOT_PUBLISHED.search(s)]
    assert wrong == []


def test_a_constant_that_was_fitted_says_so_and_one_carried_over_is_no_stronger():
    basis = {(file, key): kind for file, key, kind, _ in constants()}
    for constant in fit_constants():
        if constant.file.endswith(".yaml"):
            assert basis[constant.file, constant.constant] == "fitted", (constant.file, constant.constant)
            for file in constant.also:
                assert basis[file, constant.constant] in ("fitted", "assumed"), (file, constant.constant)


def test_every_fitted_constant_is_listed():
    fitted = {(file, key) for file, key, kind, _ in constants() if kind == "fitted"}
    assert fitted - listed() == set()


def test_a_constant_is_listed_once():
    entries = [(file, constant.constant) for constant in fit_constants() for file in constant.files]
    assert len(entries) == len(set(entries))


@pytest.mark.parametrize("constant", fit_constants(), ids=lambda c: f"{Path(c.file).stem}:{c.constant}")
def test_the_constant_and_its_rows_exist(constant):
    assert all(constant.constant.split(".")[0] in (ROOT / file).read_text() for file in constant.files)
    for rows in constant.rows:
        if rows.table != "paper" and rows.ids != ("*",):
            file = {"rl": "rl_steps"}.get(rows.table, rows.table)
            ids = pd.read_csv(PUBLISHED / f"{file}.csv")["id"]
            assert any(rows.covers(rows.table, "", row_id, q.strip("*")) for row_id in ids for q in rows.quantities)


def test_patterns():
    assert is_fit("training", "", "mbcard-42-qwen3-8b-pretrain-H100-16", "step_time_s")
    assert not is_fit("training", "", "mbcard-43-qwen3-8b-sft-H100-4", "step_time_s")
    assert is_fit("rl", "", "verl-log-eos-q7b-trtllm", "refit_time_s")
    assert not is_fit("rl", "", "verl-log-eos-q7b-trtllm", "step_time_s")
    assert not is_fit("generation", "", "mbcard-42-qwen3-8b-pretrain-H100-16", "step_time_s")
