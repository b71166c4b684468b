"""Pictures of ``docs/concepts.md`` about what an answer is: plan and timeline, the dataflow, evidence, the proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.concept_drawing import INK, SOFT, WIDTH, box, legend, line, picture, words
from hybridmap.report.colors import EVIDENCE, MARK, STAGES, role_color
from hybridmap.text.notation import about, generation_text, scoring_text, training_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.plan.dataflow import Dataflow
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

LEFT, ROW = 150, 20
QUIET = f'style="fill:{SOFT}"'


def intention(plan: Plan, timeline: Timeline) -> str:
    """Plan above, timeline below: layouts by role, then what runs when."""
    body, y = (
        [words(14, 24, "plan", 'font-weight="600"'), words(LEFT, 24, "which GPUs, and how each role is split", QUIET)],
        46,
    )
    for entry in plan.roles:
        texts = (training_text(entry.training), generation_text(entry.generation), scoring_text(entry.inference))
        named = zip(("trains", "generates", "scores"), texts, strict=True)
        told = "; ".join(f"{verb} {text}" for verb, text in named if text != "-")
        body += [box(14, y - 11, 12, 12, role_color(entry.role)), words(32, y, f"{entry.role}"), words(LEFT, y, told)]
        y += ROW
    body += [
        words(14, y + 14, "timeline", 'font-weight="600"'),
        words(LEFT, y + 14, "what happens when, in seconds", QUIET),
    ]
    y += 26
    scale = (WIDTH - LEFT - 60) / timeline.iteration_s
    for role in dict.fromkeys(span.role for span in timeline.spans if span.duration_s > 0):
        body.append(words(32, y + 14, role))
        spans = [span for span in timeline.spans if span.role == role and span.duration_s > 0]
        body += [box(LEFT + s.start_s * scale, y, s.duration_s * scale, ROW - 4, STAGES[s.stage]) for s in spans]
        y += ROW
    body.append(words(LEFT + timeline.iteration_s * scale + 4, y - 6, f"{timeline.iteration_s:,.0f} s"))
    return picture(body, y + 10, "a plan as layouts of roles, and its timeline as spans in seconds")


def dataflow(flow: Dataflow) -> str:
    """Calls as boxes, a column each stage, arrows from what a call waits for."""
    stages = [stage for stage in STAGES if any(call.stage == stage for call in flow.calls)]
    place: dict[str, tuple[float, float]] = {}
    depth: dict[str, int] = {}
    for call in flow.calls:
        depth[call.key] = 1 + max((depth[key] for key in call.inputs), default=-1)
    step = (WIDTH - 28) / (1 + max(depth.values()))
    for level in range(1 + max(depth.values())):
        there = [call for call in flow.calls if depth[call.key] == level]
        for i, call in enumerate(there):
            place[call.key] = (14 + level * step, 50 + 46 * i + 23 * (_tallest(depth) - len(there)))
    width = step - 24
    body = legend([(stage, STAGES[stage]) for stage in stages], 14)
    for call in flow.calls:
        x, y = place[call.key]
        body += [
            line(place[key][0] + width, place[key][1] + 16, x, y + 16, f'stroke-opacity=".5" fill="{INK}"')
            for key in call.inputs
        ]
    for call in flow.calls:
        x, y = place[call.key]
        body += [
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="32" rx="4" fill="#ffffff" '
            f'stroke="{STAGES[call.stage]}" stroke-width="2"/>',
            words(x + width / 2, y + 14, call.api, 'text-anchor="middle" font-size="10"'),
            words(x + width / 2, y + 27, call.role, f'text-anchor="middle" font-size="9" {QUIET}'),
        ]
    return picture(body, 66 + 46 * _tallest(depth), "the calls of an iteration and what each waits for")


def _tallest(depth: dict[str, int]) -> int:
    return max(list(depth.values()).count(level) for level in depth.values())


def evidence(timeline: Timeline) -> str:
    """Seconds of each call on the critical path by what they rest on."""
    spans = [span for span in timeline.spans if span.critical and span.duration_s > 0.005 * timeline.iteration_s]
    kinds = [kind for kind in EVIDENCE if any(span.basis.get(kind, 0.0) > 0.005 for span in spans)]
    body, y = legend([(kind, EVIDENCE[kind]) for kind in kinds], LEFT), 42
    scale = (WIDTH - LEFT - 60) / max(span.duration_s for span in spans)
    for span in spans:
        x = float(LEFT)
        body.append(words(LEFT - 8, y + 13, span.call, 'text-anchor="end"'))
        for kind in kinds:
            width = span.basis.get(kind, 0.0) * span.duration_s * scale
            body += [box(x, y, width, ROW - 4, EVIDENCE[kind])] if width >= 1 else []
            x += width
        body.append(words(x + 5, y + 13, f"{about(span.duration_s)} s"))
        y += ROW
    return picture(body, y + 10, "seconds of each call by kind of evidence")


def proof(times: Sequence[tuple[str, float]], bound_s: float, interval: tuple[float, float]) -> str:
    """The plans on one axis of seconds: the bound that none beats, and where a run is nine times in ten."""
    scale = (WIDTH - LEFT - 70) / max(interval[1], *(seconds for _, seconds in times))
    end = 40 + 26 * len(times)
    bound = LEFT + bound_s * scale
    body = [
        line(bound, 32, bound, end, 'stroke-dasharray="4 3"'),
        words(bound, 24, f"no plan beats {bound_s:,.1f} s", 'text-anchor="middle"'),
    ]
    for i, (name, seconds) in enumerate(times):
        y, x = 52 + 26 * i, LEFT + seconds * scale
        body += [
            words(LEFT - 8, y + 4, name, 'text-anchor="end"'),
            line(LEFT, y, x, y, 'stroke-opacity=".2"'),
            f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{MARK if i == 0 else SOFT}"/>',
            words(x + 10, y + 4 if i else y - 6, f"{seconds:,.1f} s"),
        ]
    low, high = (LEFT + seconds * scale for seconds in interval)
    body += [
        line(low, end + 14, high, end + 14, 'stroke-width="3"'),
        words(LEFT - 8, end + 18, "a run, 9 in 10", 'text-anchor="end"'),
        words(high + 8, end + 18, f"{about(interval[0])} to {about(interval[1])} s"),
    ]
    return picture(body, end + 34, "plans against the proven bound, and the interval of a run")
