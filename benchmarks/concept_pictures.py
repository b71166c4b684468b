"""The pictures of ``docs/concepts.md``: plans of an example, found and priced now, as SVG files.

python -m benchmarks.concept_pictures [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hybridmap as hm
from benchmarks.concept_answers import dataflow, evidence, intention, proof
from benchmarks.concept_drawing import INK, SOFT, WIDTH, box, legend, picture, words
from hybridmap.report.colors import ROLES, STAGES
from hybridmap.text.plan import interval_s
from simulator.plan.dataflow import build_dataflow
from simulator.plan.groups import Degrees, generation_coordinates, generation_replica, training_coordinates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "ppo-7b-16xa100.yaml"
PLACEMENTS = ("colocate", "split", "standalone")
SHOWN = ("generation", "transition", "preparation", "training", "other")


def placements(found: Sequence[tuple[str, Timeline]]) -> str:
    """One iteration of each placement: a row for each pool, a block for each call, on one axis of seconds."""
    left, row, y, body = 190, 20, 44, []
    scale = (WIDTH - left - 70) / max(timeline.iteration_s for _, timeline in found)
    body += legend([(stage, STAGES[stage]) for stage in SHOWN], left)
    for name, timeline in found:
        pools = sorted({span.pool for span in timeline.spans if span.pool in timeline.memory})
        body.append(words(14, y + 14, name, 'font-weight="600"'))
        end = y + (row + 4) * len(pools)
        for i, pool in enumerate(pools):
            spans = [span for span in timeline.spans if span.pool == pool and span.duration_s > 0]
            roles = ", ".join(dict.fromkeys(span.role for span in spans))
            top = y + (row + 4) * i
            short = roles if len(roles) < 20 else f"{len(roles.split(','))} roles"
            body.append(words(left - 8, top + 14, short, f'text-anchor="end" style="fill:{SOFT}"'))
            body += [box(left + s.start_s * scale, top, s.duration_s * scale - 1, row, STAGES[s.stage]) for s in spans]
        at = left + timeline.iteration_s * scale
        body.append(f'<path d="M{at:.1f} {y - 3}V{end}" stroke="{INK}"/>')
        body.append(words(at + 5, y + 14, f"{timeline.iteration_s:,.0f} s"))
        y = end + 16
    return picture(
        body, y, "one iteration of three placements: pools work at the same time, roles of a pool take turns"
    )


def layouts(plan: Plan) -> str:
    """The actor's GPUs twice: as training splits the model, and as engines do; a column each GPU."""
    entry = plan.role("actor")
    training, generation = entry.training, entry.generation
    assert training is not None, "the actor trains"
    assert generation is not None, "the actor generates"
    degrees = Degrees(training.pp, training.tp, training.dp, generation.pp, generation.tp)
    left, size, y, body = 120, 36, 30, []
    for name, what in (
        ("training", f"tensor {training.tp} x data {training.dp}: each colour is one copy of the model"),
        ("generation", f"tensor {generation.tp} x pipeline {generation.pp}: each colour is one engine"),
    ):
        body += [words(14, y + 22, name, 'font-weight="600"'), words(left, y - 8, what)]
        for gpu in range(degrees.num_ranks):
            if name == "training":
                t, p, copy = training_coordinates(gpu, degrees)
            else:
                (t, p, *_), copy = generation_coordinates(gpu, degrees), generation_replica(gpu, degrees)
            x, color = left + gpu * (size + 3), list(ROLES.values())[copy % len(ROLES)]
            body += [
                f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="4" fill="{color}" fill-opacity=".35" '
                f'stroke="{color}"/>',
                words(x + size / 2, y + 15, f"{gpu}", 'text-anchor="middle" font-weight="600"'),
                words(x + size / 2, y + 29, f"p{p} t{t}", 'text-anchor="middle" font-size="10"'),
            ]
        y += size + 40
    return picture(body, y - 20, "the actor's GPUs: which part of the model each holds in training and in generation")


def main(folder: Path) -> None:
    """Plan the example with each placement, and write the pictures."""
    job = hm.load_job(EXAMPLE)
    found = [(name, hm.plan(job, placement=name, runners_up=False)) for name in PLACEMENTS]
    best = found[0][1]
    roles = tuple(entry.role for entry in best.plan.roles)
    times = [(name, result.iteration_s) for name, result in found]
    drawn = {
        "intention": intention(best.plan, best.timeline),
        "dataflow": dataflow(build_dataflow(best.plan.algorithm, roles)),
        "placements": placements([(name, result.timeline) for name, result in found]),
        "layouts": layouts(best.plan),
        "evidence": evidence(best.timeline),
        "proof": proof(times, best.bound_s, interval_s(best.timeline)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")
