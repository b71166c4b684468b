"""Protects the Python API: it gives what the commands give, as DataFrames and records, and costs nothing to import."""

import json
import pkgutil
import subprocess
import sys

import pandas as pd
import pytest

import hybridmap as hm
from profiles.errors import InputError, UnknownNameError
from tests.hybridmap.exports.plans import GRPO


@pytest.fixture(scope="module")
def job(planned):
    return hm.load_job(planned.job)


@pytest.fixture(scope="module")
def result(job):
    return hm.plan(job)


def test_importing_it_costs_nothing():
    heavy = {"numpy", "pandas", "scipy", "ortools", "pydantic", "plotly", "typer", "torch", "ray"}
    code = f"import sys, hybridmap; print(sorted({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_no_name_hides_a_module():
    """A function named like a module of the package would vanish when that module is imported."""
    modules = {module.name for module in pkgutil.iter_modules(hm.__path__)}
    assert not modules & set(hm.__all__)
    assert all(callable(getattr(hm, name)) for name in hm.__all__ if name != "__version__")


def test_plan_is_what_the_command_finds(result, planned):
    assert result.plan.model_dump(mode="json") == planned.answer["plan"]


def test_errors_are_the_packages_own():
    with pytest.raises(hm.UnknownNameError):
        hm.make_job({**GRPO, "models": {"actor": "qwen9"}}).facts()
    assert issubclass(hm.InfeasibleError, hm.InputError) and issubclass(hm.InputError, hm.HybridmapError)


def test_a_result_as_a_frame(result):
    frame = result.to_pandas()
    assert frame.iloc[0]["which"] == "best" and frame.iloc[0]["slower"] == 0
    assert set(frame[frame["which"] == "runner-up"]["placement"]) == {r.placement for r in result.runners_up}
    assert (frame["iteration_s"] >= result.bound_s).all()


def test_plots_are_figures(job, result):
    rows = {row for trace in hm.plot_timeline(result.timeline).data for row in trace.y}
    assert any(row.endswith("actor") for row in rows)
    heights = [trace.y for trace in hm.plot_memory(job, result.plan).data if trace.type == "bar"]
    peak = result.timeline.memory[result.plan.pools[0].name].used_bytes / 2**30
    assert max(map(sum, zip(*heights, strict=True))) == pytest.approx(peak)


def test_a_timeline_as_a_frame(result):
    frame = result.timeline.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["call"]) == [span.call for span in result.timeline.spans]
    assert frame["end_s"].max() == result.timeline.iteration_s
    assert frame.filter(like="basis_").sum(axis=1).between(0.999, 1.001).all()


def test_a_plan_as_a_frame(result):
    frame = result.plan.to_pandas()
    training = frame[frame["stage"] == "training"].set_index("role")
    assert training.loc["actor", "tp"] == result.plan.role("actor").training.tp
    assert set(training.index) == {"actor", "critic"}


def test_memory_adds_up_to_the_peak(job, result):
    frame = hm.memory(result.plan, job)
    for pool in result.plan.pools:
        peak = result.timeline.memory[pool.name]
        here = frame[(frame["pool"] == pool.name) & frame["when"].isin(["always", peak.peak_call])]
        assert here["bytes"].sum() == pytest.approx(peak.used_bytes, abs=100)


def test_compare_has_a_row_per_placement(job, result):
    frame = hm.compare(job).set_index("placement")
    assert frame.loc["best found", "iteration_s"] == result.iteration_s
    assert set(frame.index) == {"colocate", "split", "standalone", "best found"}


def test_frontier_and_what_if_are_frames(job, planned):
    frame = hm.frontier(job)
    assert frame["num_gpus"].is_monotonic_increasing
    assert frame["iteration_s"].is_monotonic_decreasing
    cases = hm.what_if(planned.job, {"workload.minibatches": [1, 4]})
    assert list(cases["workload.minibatches"].iloc[1:]) == [1, 4]
    assert cases["iteration_s"].notna().all()


def test_fit_explain_and_robust(job, result):
    fit = hm.fit(job)
    assert fit.fits
    assert fit.plan == result.plan
    assert hm.fit(job, result.plan).fits
    assert hm.explain(job, result, time_limit_s=1.0).timeline.iteration_s == result.iteration_s
    assert len(hm.robust(job, draws=1, time_limit_s=1e-9).draws) == 1  # one by one families are the matter of others


def test_files_round_trip(job, result, tmp_path):
    hm.write_plan(job, result, tmp_path)
    file, again = hm.read_plan(tmp_path / "plan.json")
    assert file.plan == result.plan
    assert again == job
    assert hm.simulate(file.plan, again).iteration_s == result.iteration_s
    assert hm.write_report(job, result, tmp_path / "r.html").stat().st_size > 1e6
    assert json.dumps(hm.trace({"predicted": result.timeline}, result.plan))


def test_export_and_import(tmp_path):
    job = hm.make_job(GRPO)
    found = hm.plan(job, runners_up=False)
    export = hm.export(job, found.plan, "verl")
    (tmp_path / "run.sh").write_text(export.files[export.script])
    back = hm.import_verl(tmp_path / "run.sh", "h100-80gb-sxm", mean_response_length=300)
    assert back.plan.role("actor") == found.plan.role("actor")
    with pytest.raises(UnknownNameError, match="did you mean"):
        hm.export(job, found.plan, "verll")


def test_catalogues_are_frames():
    assert "qwen2.5-7b" in set(hm.models()["name"])
    assert (hm.devices()["memory_bytes"] > 2**35).all()


def test_errors_are_the_ones_of_the_commands(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        hm.load_job(tmp_path / "none.yaml")
