"""Why a plan takes as long as it does, in sentences a person says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.text.notation import about, generation_text, gib, percent, scoring_text, training_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mapper.analysis.explain import Explanation, StageCause
    from mapper.analysis.memory_bottleneck import MemoryLimit
    from mapper.analysis.thresholds import Flip, Scan
    from mapper.problem import Placement
    from mapper.result import RunnerUp
    from simulator.facts import Facts

NAMES = {
    "compute": "arithmetic",
    "memory": "memory bandwidth",
    "nvlink": "NVLink",
    "network": "the network between nodes",
    "host": "host time",
}
LEAST_SHARE = 0.005
WORTH_S = 0.05


def answer_line(answer: Explanation) -> str:
    """Which stage takes most of the iteration, and what bounds it."""
    largest = max(answer.stages, key=lambda stage: stage.seconds)
    whole = answer.timeline.iteration_s
    return (
        f"of about {about(whole)} s, {_name(largest.stage)} takes {about(largest.seconds)} s "
        f"({100 * largest.seconds / whole:.0f} %), most of it {NAMES[largest.bottleneck]}"
    )


def time_lines(answer: Explanation) -> list[str]:
    """What each stage waits for, and what a resource twice as fast would be worth."""
    lines = [_stage_line(stage) for stage in answer.stages if stage.seconds >= WORTH_S]
    saved = {f: answer.timeline.iteration_s - s for f, s in answer.twice_as_fast.items()}
    worth = sorted((f for f in saved if saved[f] >= WORTH_S), key=lambda f: -saved[f])
    if worth:
        parts = ", ".join(f"{saved[f]:,.1f} s with {NAMES[f]}" for f in worth)
        lines.append(f"twice the speed would save {parts}")
    return lines


def _stage_line(stage: StageCause) -> str:
    large = sorted((f for f in stage.shares if stage.shares[f] >= LEAST_SHARE), key=lambda f: -stage.shares[f])
    parts = [f"{100 * stage.shares[f]:.0f} % {NAMES[f]}" for f in large]
    fixed = 1.0 - sum(stage.shares.values())
    if fixed >= LEAST_SHARE:
        parts.append(f"{100 * fixed:.0f} % kernel launches and the rest")
    return f"{_name(stage.stage)} takes {stage.seconds:,.1f} s: {', '.join(parts)}"


def _name(stage: str) -> str:
    return stage.replace("_", " ")


def memory_lines(limit: MemoryLimit, iteration_s: float) -> list[str]:
    """What fills a pool, and what more memory would buy."""
    largest = max(limit.classes, key=lambda name: limit.classes[name])
    usable = limit.usable_bytes or limit.capacity_bytes
    line = (
        f"pool {limit.pool} holds {gib(limit.used_bytes)} of {gib(usable)} GiB in {limit.call}; the largest part is "
        f"{largest}, {gib(limit.classes[largest])} GiB"
    )
    if limit.better is None:
        return [f"{line}; more memory would make no role faster"]
    entry = limit.better.entry
    parts = {
        "train": training_text(entry.training),
        "generate": generation_text(entry.generation),
        "score": scoring_text(entry.inference),
    }
    layouts = " and ".join(f"{name} with {text}" for name, text in parts.items() if text != "-")
    saves = iteration_s - limit.better.iteration_s
    return [
        line,
        f"with {gib(limit.better.short_bytes)} GiB more per GPU, {entry.role} could {layouts}: {saves:,.2f} s faster",
    ]


def idle_lines(answer: Explanation) -> list[str]:
    """Which pools wait, how long and for what; waits under a hundredth of the iteration go."""
    whole = answer.timeline.iteration_s
    return [
        f"pool {idle.pool} waits {idle.seconds:,.1f} s ({100 * idle.seconds / whole:.0f} %) for {idle.waits_for}"
        for idle in answer.idle
        if idle.seconds >= 0.01 * whole
    ] or ["no pool waits for more than a hundredth of the iteration"]


def threshold_lines(answer: Explanation, facts: Facts, rivals: Sequence[RunnerUp]) -> list[str]:
    """At which change another placement wins, and which changes never make it."""
    scan = answer.scan
    if scan is None:
        return []
    first = min(rivals, key=lambda r: r.iteration_s)
    slower = first.iteration_s / answer.timeline.iteration_s - 1
    lines = [f"the runner-up, {first.placement}, takes {percent(slower)} longer"]
    for i, flip in enumerate(scan.flips):
        sure = "; a search of everything agrees" if i == 0 and answer.confirmed else ""
        unsure = "; a search of everything finds no change yet" if i == 0 and answer.confirmed is False else ""
        lines.append(f"{_flip_text(flip, facts)}{sure}{unsure}")
    return [*lines, *_untouched(scan)]


def _flip_text(flip: Flip, facts: Facts) -> str:
    return f"with {_change(flip, facts)}, {_placement(flip.rival)} wins"


def _change(flip: Flip, facts: Facts) -> str:
    """``7 nodes or more``, ``a network of 39 Gbit/s a node or less``: the nearest value that was seen to win."""
    more = flip.wins > 1
    beyond = "or more" if more else "or less"
    counts = {
        "nodes": (facts.group.nodes, "nodes"),
        "prompts": (facts.workload.prompts, "prompts"),
        "response": (facts.workload.response.mean, "tokens in a mean response"),
    }
    if flip.dimension in counts:
        now, unit = counts[flip.dimension]
        return f"{now * flip.wins:,.0f} {unit} {beyond} (now {now:,.0f})"
    if flip.dimension == "network":
        now = facts.group.inter_node_bytes_per_s * 8e-9
        return f"a network of {now * flip.wins:,.0f} Gbit/s a node {beyond} (now {now:,.0f})"
    return f"{NAMES[flip.dimension]} {flip.wins:.3g} times as fast {beyond}"


def _untouched(scan: Scan) -> Iterator[str]:
    if scan.steady:
        yield f"eight times more or less of {_list(scan.steady)} changes nothing in who wins"
    if scan.skipped:
        yield f"time was up before all of {_list(scan.skipped)} was tried (--time-limit)"


def _list(dimensions: Sequence[str]) -> str:
    names = {**NAMES, "response": "response length"}
    told = [names.get(dimension, dimension) for dimension in dimensions]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} or {told[-1]}"


def _placement(rival: Placement) -> str:
    from mapper.problem import sets_of
    from simulator.plan.plan import placement_name

    name = placement_name(sets_of(rival))
    if len({group.device_type for group in rival}) == 1:
        return name
    return f"{name} on {', '.join(group.device_type for group in rival)}"
