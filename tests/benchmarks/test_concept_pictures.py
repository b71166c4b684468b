"""Protects the pictures of the concepts: well-formed, with every pool and GPU of the plan, blocks within the axis."""

import re
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.concept_answers import dataflow, evidence, intention, proof
from benchmarks.concept_drawing import WIDTH
from benchmarks.concept_pictures import layouts, placements
from simulator.plan.dataflow import build_dataflow
from simulator.plan.plan import Plan
from simulator.plan.timeline import Timeline

SCREENS = Path(__file__).parents[1] / "hybridmap" / "text" / "screens"
DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def texts_of(svg):
    return [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_placements_name_each_with_its_seconds():
    timeline = Timeline.model_validate_json((SCREENS / "timeline.json").read_text())
    svg = placements([("colocate", timeline), ("split", timeline)])
    assert texts_of(svg).count(f"{timeline.iteration_s:,.0f} s") == 2
    boxes = ElementTree.fromstring(svg).findall(f"{SVG}rect")[1:]
    assert max(float(box.get("x")) + float(box.get("width")) for box in boxes) <= WIDTH
    assert len(boxes) > 2 * len(timeline.memory)


def test_layouts_have_every_gpu_twice_and_shards_as_many_as_the_degrees():
    plan = Plan.model_validate_json((SCREENS / "plan.json").read_text())
    told = texts_of(layouts(plan))
    training, generation = plan.role("actor").training, plan.role("actor").generation
    assert all(told.count(str(gpu)) == 2 for gpu in range(training.num_gpus))
    shards = [text for text in told if re.fullmatch(r"p\d t\d", text)]
    half = training.num_gpus
    assert len(set(shards[:half])) == training.tp * training.pp
    assert len(set(shards[half:])) == generation.tp * generation.pp


def read(record, name):
    return record.model_validate_json((SCREENS / name).read_text())


def test_a_plan_has_a_row_each_role_and_its_timeline_ends_with_the_iteration():
    plan, timeline = read(Plan, "plan.json"), read(Timeline, "timeline.json")
    told = texts_of(intention(plan, timeline))
    assert [role.role for role in plan.roles] == told[2 : 2 + 2 * len(plan.roles) : 2]
    assert f"{timeline.iteration_s:,.0f} s" in told


def test_every_call_of_the_dataflow_is_a_box_and_every_input_a_line():
    flow = build_dataflow("ppo", ("actor", "critic", "reference", "reward"))
    root = ElementTree.fromstring(dataflow(flow))
    assert [text for text in texts_of(dataflow(flow)) if "_" in text] == [c.api for c in flow.calls if "_" in c.api]
    assert len(root.findall(f"{SVG}path")) == sum(len(call.inputs) for call in flow.calls)


def test_evidence_of_a_call_is_as_long_as_the_call():
    timeline = read(Timeline, "timeline.json")
    boxes = ElementTree.fromstring(evidence(timeline)).findall(f"{SVG}rect")[1:]
    rows = {}
    for each in boxes:
        rows.setdefault(each.get("y"), []).append(float(each.get("width")))
    longest = max(span.duration_s for span in timeline.spans if span.critical)
    assert max(sum(widths) for y, widths in rows.items() if y != "14.0") <= WIDTH
    assert f"{longest:,.0f} s" in texts_of(evidence(timeline))


def test_the_proof_has_the_bound_every_plan_and_the_interval():
    told = texts_of(proof([("colocate", 134.3), ("split", 182.0)], 134.3, (94.0, 192.4)))
    assert {"no plan beats 134.3 s", "colocate", "182.0 s", "94 to 192 s"} <= set(told)


def test_every_concept_has_a_picture_that_is_there():
    concepts = (DOCS / "concepts.md").read_text()
    shown = re.findall(r"\(pictures/(\w+)\.svg\)", concepts)
    assert sorted(shown) == sorted(path.stem for path in (DOCS / "pictures").glob("*.svg"))
    for part in concepts.split("\n\n**")[1:]:
        assert "pictures/" in part, part[:40]
