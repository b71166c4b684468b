"""Protects the report's content: valid charts, escaped text, one file without network, numbers of the plan file."""

import base64
import json
import re
import zlib
from dataclasses import replace

import pytest

from hybridmap.files.plan import read_plan_file
from hybridmap.files.timeline import read_timeline
from hybridmap.job.load import job_from_document
from hybridmap.report import colors
from hybridmap.report.cluster_svg import cluster_svg
from hybridmap.report.content import content_of
from hybridmap.report.elements import script_json
from hybridmap.report.html import page
from hybridmap.text.notation import about
from hybridmap.text.plan import interval_s
from hybridmap.validation.lanes import lanes
from tests.hybridmap.exports.plans import plan_file


@pytest.fixture(scope="module")
def content(planned):
    file = read_plan_file(planned.plan)
    return content_of(file, job_from_document(file.job))


@pytest.fixture(scope="module")
def html(content):
    return page(content)


def charts_of(html):
    return json.loads(unpacked(re.search(r'id="charts" data-bytes="(\d+)">([^<]*)</script>', html)))


def test_every_chart_is_a_valid_plotly_figure(html):
    from plotly.graph_objects import Figure

    charts = charts_of(html)
    figures = [*charts["fixed"].values(), *(f for plan in charts["byPlan"].values() for f in plan.values())]
    assert len(figures) >= 5
    for figure in figures:
        Figure(figure)  # raises for a property that Plotly does not know


def test_the_gantt_chart_is_the_timeline(content, html):
    bars = charts_of(html)["byPlan"]["best"]["gantt"]["data"]
    drawn = sorted(
        (base, round(length, 9)) for trace in bars for base, length in zip(trace["base"], trace["x"], strict=True)
    )
    whole = content.best.timeline.iteration_s  # rows that hold next to nothing are left out
    spans = [s for s in content.best.timeline.spans if s.duration_s > 1e-3 * whole]
    drawn = [(base, length) for base, length in drawn if length > 1e-3 * whole]
    assert drawn == sorted((s.start_s, round(s.duration_s, 9)) for s in spans)


def test_memory_over_the_iteration_peaks_at_what_is_used(content, html):
    """Each instant's bars are what roles keep and what the call that runs needs; their highest is the pool's peak."""
    charts = charts_of(html)["byPlan"]["best"]
    for i, pool in enumerate(content.best.plan.pools):
        peak = content.best.timeline.memory[pool.name]
        data = charts[f"memory-best-{i}"]["data"]
        bars = [trace for trace in data if trace["type"] == "bar"]
        totals = [sum(heights) for heights in zip(*(trace["y"] for trace in bars), strict=True)]
        assert max(totals) == pytest.approx(peak.used_bytes / 2**30, rel=1e-6)
        assert sum(bars[0]["width"]) == pytest.approx(content.best.timeline.iteration_s)
        lines = {trace["name"].split(":")[0]: trace["y"][0] for trace in data if trace["type"] == "scatter"}
        assert lines["a process sees"] == pytest.approx(peak.capacity_bytes / 2**30)
        assert lines["a plan may use"] == pytest.approx(peak.usable_bytes / 2**30)


def test_a_colour_has_one_meaning():
    hues = [*colors.STAGES.values(), *colors.ROLES.values(), *colors.EVIDENCE.values(), *colors.POOLS]
    hues += [colors.FASTER, colors.SLOWER, colors.LINE, colors.MARK]
    assert len(set(hues)) == len(hues)


def test_a_page_is_small_and_carries_the_whole_library(html):
    from plotly.offline import get_plotlyjs

    assert len(html.encode()) <= 2_000_000
    packed = re.search(r'id="library" data-bytes="(\d+)">([^<]*)</script>', html)
    assert unpacked(packed) == get_plotlyjs()


def unpacked(found):
    deflated = base64.b85decode(found[2].replace(",", "<"))[: int(found[1])]
    return zlib.decompress(deflated).decode()


def test_the_clusters_of_other_plans_are_packed_beside_the_library(html, content):
    drawings = json.loads(unpacked(re.search(r'id="drawings" data-bytes="(\d+)">([^<]*)</script>', html)))
    others = content.shown[1:]
    assert others
    assert drawings == {each.key: cluster_svg(each.plan, each.facts) for each in others}
    assert re.findall(r'data-drawing="([^"]+)"', html) == list(drawings)
    assert html.count('class="cluster"') == 1


def test_thousands_of_nodes_are_drawn_as_few_squares_that_name_them(content):
    facts, plan = content.facts, content.best.plan
    whole = replace(facts, group=replace(facts.group, nodes=2048))
    pool = plan.pools[0].model_copy(update={"num_gpus": 2048 * facts.group.gpus_per_node})
    drawing = cluster_svg(plan.model_copy(update={"pools": (pool,)}), whole)
    assert drawing.count("<svg") == 128
    assert "nodes 2032 to 2047, pool A" in drawing


def test_groups_are_those_that_are_priced(content):
    """Every group of an axis has its size, and together they are the pool's GPUs once each."""
    from hybridmap.report.groups import _engines, _training

    for entry in content.best.plan.roles:
        pool = content.best.plan.pool_of(entry.role)
        for _, groups in _training(entry):
            assert sorted(rank for group in groups for rank in group) == list(range(pool.num_gpus))
        if entry.generation is not None:
            engines = _engines(entry, content.best.plan.generation_pool_of(entry.role))
            assert len(engines) == entry.generation.dp
            assert {len(engine) for engine in engines} == {entry.generation.tp * entry.generation.pp}


def test_two_plans_stand_side_by_side(run, planned, tmp_path):
    """The other plan may be of another job; each is priced as its own job says."""
    split = run("plan", planned.job, "--placement", "colocate", "--out", tmp_path)
    assert split.exit_code == 0
    page_at = tmp_path / "both.html"
    told = run("report", planned.plan, tmp_path / "plan.json", "--frontier-limit", "0", "-o", page_at)
    assert told.exit_code == 0, told.output
    text = page_at.read_text()
    seconds = json.loads((tmp_path / "timeline.json").read_text())["iteration_s"]
    assert f'data-label="other">{seconds:,.2f} s<' in text
    assert f'data-label="best">{planned.answer["iteration_s"]:,.2f} s<' in text


def test_it_asks_for_nothing(html):
    without_library = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!#|data:)', without_library)
    assert "default-src 'none'" in html


def test_names_are_escaped(planned):
    """A model's name comes from a file that anybody may have written."""
    nasty = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
    raw = json.loads(planned.plan.read_text())
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
        "head_dim": 64,
        "max_position_embeddings": 131072,
    }
    for role in raw["job"]["models"].values():
        role["shape"] = {"config": config, "name": nasty}
    job = job_from_document(raw["job"])
    file = read_plan_file(planned.plan).model_copy(update={"job": dict(job.document)})
    text = page(content_of(file, job))
    assert nasty not in text
    assert "<img src=x" not in text
    assert script_json({"a": "</script>"}) == '{"a":"\\u003c/script\\u003e"}'


def strings_in(document):
    """Every text of a document, keys too."""
    if isinstance(document, str):
        yield document
    for inner in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from strings_in(inner)


NASTY = '<script>alert(1)</script><a href="https://example.com">b</a>'


def test_names_of_pools_and_calls_are_escaped_in_charts_and_drawings(planned, tmp_path):
    """Plotly reads some HTML in labels, links among it; a plan and a timeline may come from anybody."""
    raw = json.loads(planned.plan.read_text().replace('"A"', json.dumps(NASTY)))
    assert raw["plan"]["pools"][0]["name"] == NASTY
    (tmp_path / "nasty.json").write_text(json.dumps(raw))
    file = read_plan_file(tmp_path / "nasty.json")
    timeline = json.loads((planned.out / "timeline.json").read_text())
    for span in timeline["spans"]:
        span |= {"call": NASTY, "role": NASTY, "pool": NASTY, "basis": {NASTY: 1.0}}
    del timeline["digest"]
    (tmp_path / "nasty-timeline.json").write_text(json.dumps(timeline))
    measured = read_timeline(tmp_path / "nasty-timeline.json")
    text = page(content_of(file, job_from_document(file.job), measured=measured))
    assert "<script>alert" not in text
    assert "<a href" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL).replace('<a class="skip"', "")
    assert not [each for each in strings_in(charts_of(text)) if "<a" in each or "<script" in each]
    both = lanes(measured, measured).to_plotly_json()
    assert not [each for each in strings_in(json.loads(json.dumps(both, default=list))) if "<a" in each]


def test_placeholders_in_names_stay_as_they_are(content):
    text = page(content)
    assert "@@" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_runners_up_have_their_reason(planned):
    file = plan_file("split")
    content = content_of(file, job_from_document(file.job))
    assert len(content.shown) == 1  # this file was made without
    content = content_of(read_plan_file(planned.plan), job_from_document(read_plan_file(planned.plan).job))
    assert len(content.shown) == 1 + len(planned.answer["runners_up"])
    assert all(re.match(r"[+-][\d.]+ %: ", each.why) for each in content.shown[1:])


def test_a_plan_with_edited_times_is_priced_again_and_proves_nothing(planned, content):
    file = read_plan_file(planned.plan)
    edited = file.model_copy(update={"iteration_s": file.iteration_s / 2, "bound_s": file.bound_s / 2})
    text = page(content_of(edited, job_from_document(file.job)))
    assert "The plan file was edited after it was written: it says" in text and "no longer" in text
    assert f"bound {edited.bound_s:,.2f} s" not in text and "was edited" not in page(content)


def test_the_interval_has_the_digits_that_the_first_line_has(content):
    low, high = interval_s(content.best.timeline)
    assert low < 9.95  # above it whole seconds are its digits
    assert f"90 %: {about(low)} to {about(high)} s" in page(content)


def test_sensitivity_is_the_plan_priced_again(content):
    now = content.best.timeline.iteration_s
    assert content.sensitivity
    for each in content.sensitivity:
        assert each.faster_s <= now <= each.slower_s
    widths = [each.slower_s - each.faster_s for each in content.sensitivity]
    assert widths == sorted(widths, reverse=True)


def test_the_command_takes_what_others_wrote(run, planned, tmp_path):
    run("what-if", planned.job, "--set", "workload.response_length=128,512", "--out", tmp_path)
    run("frontier", planned.job, "--out", tmp_path)
    result = run(
        "report",
        planned.plan,
        "--what-if",
        tmp_path / "what-if.json",
        "--frontier",
        tmp_path / "frontier.json",
        "--measured",
        planned.out / "timeline.json",
        "-o",
        tmp_path / "r.html",
        "--json",
    )
    assert result.exit_code == 0, result.output
    charts = charts_of((tmp_path / "r.html").read_text())
    assert {"what-if", "frontier"} <= set(charts["fixed"])
    rows = {row for trace in charts["byPlan"]["best"]["gantt"]["data"] for row in trace["y"]}
    assert {"A actor predicted", "A actor measured"} <= rows


def test_a_job_that_allows_several_schedules_has_a_frontier_in_the_plans(run, small_job, write_job, tmp_path):
    small_job |= {"algorithm": "grpo", "schedule": "any"}
    small_job["models"] = {role: small_job["models"][role] for role in ("actor", "reference")}
    assert run("plan", write_job(small_job), "--out", tmp_path).exit_code == 0
    result = run("report", tmp_path / "plan.json", "--frontier-limit", 600, "-o", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    assert "More or fewer GPUs" in (tmp_path / "report.html").read_text()


def test_another_jobs_files_are_refused(run, planned, small_job, write_job, tmp_path):
    small_job["workload"]["prompts"] = 32
    run("frontier", write_job(small_job), "--out", tmp_path)
    result = run("report", planned.plan, "--frontier", tmp_path / "frontier.json", "-o", tmp_path / "r.html")
    assert result.exit_code == 2
    assert "workload.prompts: 32" in result.stderr
    assert not (tmp_path / "r.html").exists()
