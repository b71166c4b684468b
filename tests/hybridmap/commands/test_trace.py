"""Protects the trace: valid trace events, every span in it once, predicted and measured as two processes."""

import json

import pytest

from hybridmap.files.timeline import read_timeline
from hybridmap.files.trace import trace_document

PHASES = {
    "M": set(),
    "X": {"ts", "dur", "cat"},
    "C": {"ts"},
    "s": {"ts", "id"},
    "t": {"ts", "id"},
    "f": {"ts", "id", "bp"},
}


@pytest.fixture
def measured(planned, tmp_path):
    """The prediction, told as a run that took a tenth longer."""
    content = json.loads((planned.out / "timeline.json").read_text())
    content["source"] = "measured"
    content["iteration_s"] *= 1.1
    del content["digest"]
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(content))
    return path


def written(run, *args):
    result = run("trace", *args)
    assert result.exit_code == 0, result.output
    return result


def test_every_event_has_what_its_phase_needs(run, planned, tmp_path):
    written(run, planned.plan, "--out", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    for event in events:
        assert PHASES[event["ph"]] | {"name", "pid"} <= set(event)
        assert all(event.get(key, 0) >= 0 for key in ("ts", "dur"))


def test_the_spans_are_the_timelines(run, planned, tmp_path):
    written(run, planned.out / "timeline.json", "--out", tmp_path / "t.json")
    spans = read_timeline(planned.out / "timeline.json").spans
    complete = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in complete] == [span.call for span in spans]
    for event, span in zip(complete, spans, strict=True):
        assert event["ts"] == pytest.approx(span.start_s * 1e6)
        assert event["dur"] == pytest.approx(span.duration_s * 1e6)


def test_predicted_and_measured_are_two_processes(run, planned, measured, tmp_path):
    answer = json.loads(
        written(run, planned.plan, "--measured", measured, "--out", tmp_path / "t.json", "--json").stdout
    )
    assert answer["iteration_s"]["measured"] == pytest.approx(1.1 * answer["iteration_s"]["predicted"])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [e["args"]["name"].split(":")[0] for e in events if e["name"] == "process_name"]
    assert names == ["predicted", "measured"]
    assert {e["pid"] for e in events if e["ph"] == "X"} == {1, 2}


def test_a_plan_names_the_gpus_of_its_pools(run, planned, tmp_path):
    written(run, planned.plan, "--out", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    threads = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert any(name.startswith("pool A, GPUs 0-") for name in threads)


def test_the_critical_path_is_one_chain(planned):
    timeline = read_timeline(planned.out / "timeline.json")
    flow = [e["ph"] for e in trace_document({"predicted": timeline})["traceEvents"] if e.get("cat") == "critical"]
    path = [span for span in timeline.spans if span.critical and span.duration_s > 0]
    assert flow == ["s", *["t"] * (len(path) - 2), "f"]


def test_what_is_no_timeline_is_refused(run, planned, tmp_path):
    result = run("trace", planned.plan, "--measured", planned.plan, "--out", tmp_path / "t.json")
    assert result.exit_code == 2
    assert "not a timeline" in result.stderr
    assert not (tmp_path / "t.json").exists()
