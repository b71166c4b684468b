"""Protects the pictures of the concepts: well-formed, with every pool and GPU of the plan, blocks within the axis."""

import re
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.concept_pictures import WIDTH, layouts, placements
from simulator.plan.plan import Plan
from simulator.plan.timeline import Timeline

SCREENS = Path(__file__).parents[1] / "hybridmap" / "text" / "screens"
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
