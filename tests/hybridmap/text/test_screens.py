"""Protects what a terminal of 80 or 120 columns shows: within its width, words whole, the answer in the first line.

The screens in ``screens/`` are of records that stand there too, so that no price moves them; ``REWRITE_SCREENS=1``
writes them anew.
"""

import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridmap.answers.comparison import Row
from hybridmap.answers.fit import Fit
from hybridmap.answers.what_if import WhatIfFile
from hybridmap.commands.compare import _answer as compare_answer
from hybridmap.commands.compare import _show_layouts as show_layouts
from hybridmap.commands.compare import _show_times as show_times
from hybridmap.commands.explain import _show as show_explanation
from hybridmap.commands.fit import _show as show_fit
from hybridmap.commands.frontier import _show as show_frontier
from hybridmap.commands.import_text import show_steps
from hybridmap.commands.robust import statistics
from hybridmap.commands.what_if import _show as show_what_if
from hybridmap.console import say
from hybridmap.exports.advice import Advice, Step
from hybridmap.job.load import load_job
from hybridmap.table import Table, table_lines, wrapped
from hybridmap.text import advice as advice_text
from hybridmap.text import frontier as frontier_text
from hybridmap.text import robust as robust_text
from hybridmap.text.plan import answer_line, show_plan
from mapper.analysis.explain import Explanation, Idle, StageCause
from mapper.analysis.findings import Finding
from mapper.analysis.fit import Remedy
from mapper.analysis.frontier import FrontierPoint
from mapper.analysis.memory_bottleneck import Better, MemoryLimit
from mapper.analysis.regret import Contender, Draw, FamilyEffect, Robustness
from mapper.analysis.thresholds import Flip, Scan
from mapper.result import RunnerUp
from mapper.search.place import placement_of
from profiles.errors import InfeasibleError
from simulator.plan.plan import Plan
from simulator.plan.timeline import Timeline

SCREENS = Path(__file__).parent / "screens"
EXAMPLES = Path(__file__).parents[3] / "examples"
WIDTHS = (80, 120)


def plan_screen():
    plan = Plan.model_validate_json((SCREENS / "plan.json").read_text())
    timeline = Timeline.model_validate_json((SCREENS / "timeline.json").read_text())
    print(answer_line(timeline) + "\n")
    show_plan(plan, timeline)


def what_if_screen():
    show_what_if(WhatIfFile.model_validate_json((SCREENS / "what-if.json").read_text()))


def records():
    plan = Plan.model_validate_json((SCREENS / "plan.json").read_text())
    return plan, Timeline.model_validate_json((SCREENS / "timeline.json").read_text())


def robust_screen():
    """By hand: one draw in which another plan wins, one family that moves the time, one that does not."""
    plan, timeline = records()
    won = Draw({"compute": 1.1}, 130.0, 134.27, plan.placement, True, False)
    same = Draw({"network": 1.2}, 134.27, 134.27, plan.placement, True, True)
    effects = (FamilyEffect("compute", 0.08, won, same, 0.088), FamilyEffect("network", 0.25, same, same, 0.0))
    contender = Contender(plan, 1, 0, 0.01, 0.033)
    chosen = SimpleNamespace(plan=plan, iteration_s=timeline.iteration_s)
    answer = Robustness(chosen, {}, 0, 2, (won, same), effects, (), (contender,), 1.0)
    say(robust_text.answer_line(answer) + "\n")
    say("\n".join(robust_text.regret_lines(answer, statistics(answer))) + "\n")
    robust_text.show_families(answer)
    say("\n".join(robust_text.measure_lines(answer)))


def frontier_screen():
    """Two points, the smaller twice as slow and not proven."""
    plan, timeline = records()
    half = plan.model_copy(update={"pools": tuple(p.model_copy(update={"num_gpus": 8}) for p in plan.pools)})
    slow = timeline.model_copy(update={"iteration_s": 260.0})
    points = (
        FrontierPoint(8, 15, half, slow, 260.0, 250.0, 250.0, 10 / 260, False, None),
        FrontierPoint(16, 16, plan, timeline, 134.27, 134.27, 134.27, 0.0, True, None),
    )
    say(frontier_text.answer_line(points) + "\n")
    show_frontier(points)
    say("\n".join(frontier_text.plot_lines(points, WIDTHS[0])))
    say("\n".join(frontier_text.proof_lines(points)))


def import_screen():
    """A run whose engines could be smaller, which asks for offloading first."""
    _, timeline = records()
    offload = ("actor_rollout_ref.actor.fsdp_config.param_offload", False, True)
    rollout = "actor_rollout_ref.rollout"
    engines = ((f"{rollout}.tensor_model_parallel_size", 4, 1), (f"{rollout}.max_num_seqs", 1024, 320))
    steps = (Step("offload", (offload,), 135.0, 135.0), Step("rollout engines", engines, None, 120.4))
    advice = Advice(None, (offload, *engines), steps, 120.4)
    say("\n".join(advice_text.answer_lines(timeline, advice, "verl")) + "\n")
    show_steps(advice, "you run at 134.27 s an iteration")


def compare_screen():
    """The plan beside one that is a fifth slower, and a placement that does not fit."""
    plan, timeline = records()
    slow = timeline.model_copy(update={"iteration_s": 1.2 * timeline.iteration_s})
    other = plan.model_copy(update={"placement": "standalone"})
    rows = [
        Row("standalone", SimpleNamespace(plan=other, timeline=slow, iteration_s=slow.iteration_s), None, ()),
        Row("split", None, InfeasibleError("critic needs 2 GPUs more"), ()),
        Row("best", SimpleNamespace(plan=plan, timeline=timeline, iteration_s=timeline.iteration_s), None, ()),
    ]
    say(compare_answer(rows) + "\n")
    show_times(rows)
    say()
    show_layouts(rows)


def fit_screen():
    """Memory is counted anew: of the job that the plan is of, with half its GPUs as the fewest."""
    plan, timeline = records()
    job = load_job(EXAMPLES / "ppo-7b-16xa100.yaml")
    half = plan.model_copy(update={"pools": tuple(p.model_copy(update={"num_gpus": 8}) for p in plan.pools)})
    fewest = SimpleNamespace(plan=half, status="optimal", iteration_s=2 * timeline.iteration_s)
    show_fit(Fit(plan, True, "the fastest plan", None, (), fewest, 8), job.facts())


def too_large_screen():
    """Twice the actor's micro-batch is too much: what would help, and what is not enough."""
    plan, timeline = records()
    actor = plan.role("actor")
    twice = actor.model_copy(update={"training": actor.training.model_copy(update={"micro_batch": 32})})
    plan = plan.model_copy(update={"roles": (twice, *plan.roles[1:])})
    facts = load_job(EXAMPLES / "ppo-7b-16xa100.yaml").facts()
    helps = Remedy("the optimizer of actor and critic in host memory", plan, facts, 0.0, 1.3 * timeline.iteration_s)
    short = Remedy("a micro-batch of 8 samples in actor", plan, facts, 3 * 2.0**30, None)
    show_fit(Fit(plan, False, "the plan that needs least", 90 * 2.0**30, (helps, short), None, 24), facts)


def explain_screen():
    """Two stages of one cause and of several, a pool that memory holds back, one that waits, every kind of change."""
    plan, timeline = records()
    stages = (
        StageCause("training", 54.2, {"compute": 0.57, "memory": 0.04, "nvlink": 0.12, "network": 0.0, "host": 0.21}),
        StageCause("generation", 61.0, {"compute": 0.01, "memory": 0.9, "nvlink": 0.05, "network": 0.0, "host": 0.04}),
        StageCause("transition", 0.01, {"nvlink": 1.0}),
    )
    better = Better(plan.role("actor"), 2.5 * 2.0**30, timeline.iteration_s - 7.25)
    classes = {"weights": 30 * 2**30, "optimizer": 25 * 2**30, "KV cache": 12 * 2**30}
    limits = (MemoryLimit("A", 67 * 2**30, 80 * 2**30, 76 * 2**30, "update_actor", classes, better),)
    rival = placement_of(plan.model_copy(update={"placement": "colocate"}))
    flips = (Flip("nodes", 2.0, 3.5, rival), Flip("network", 0.5, 0.39, rival), Flip("memory", 1.2, 1.5, rival))
    faster = {"compute": 110.0, "memory": 104.0, "nvlink": 128.0, "network": timeline.iteration_s, "host": 126.0}
    found = Finding("placement", "split is 7.9 s slower: its GPUs work 57 % of the iteration, against 91 %", {})
    scan = Scan(flips, ("prompts", "host"), ("response",))
    idle = (Idle("A", 0.1 * timeline.iteration_s, "compute_reward"),)
    answer = Explanation(timeline, stages, faster, limits, idle, scan, True, (found,), 4.2)
    rivals = [RunnerUp("split", 1.06 * timeline.iteration_s, plan)]
    show_explanation(answer, load_job(EXAMPLES / "ppo-7b-16xa100.yaml").facts(), plan, rivals, [])


SHOWN = (
    plan_screen,
    what_if_screen,
    robust_screen,
    frontier_screen,
    import_screen,
    compare_screen,
    fit_screen,
    too_large_screen,
    explain_screen,
)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("screen", SHOWN)
def test_a_screen(screen, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    for module in ("plan", "frontier", "advice"):
        monkeypatch.setattr(f"hybridmap.text.{module}.interval_s", lambda timeline: (100.0, 260.5), raising=False)
    screen()
    printed = capsys.readouterr().out
    path = SCREENS / f"{screen.__name__.removesuffix('_screen').replace('_', '-')}-{columns}.txt"
    if os.environ.get("REWRITE_SCREENS"):
        path.write_text(printed)
    assert printed == path.read_text()
    assert max(map(len, printed.splitlines())) <= columns


ANSWERS = {
    "plan JOB.yaml --top 3": "about ",
    "simulate OUT/plan.json": "about ",
    "fit JOB.yaml": "fits: ",
    "what-if JOB.yaml --set workload.response_length=128": (
        "workload.response_length=128 has ",
        "the job as given has ",
    ),
    "explain --plan OUT/plan.json --time-limit 1": "of about ",
    "robust JOB.yaml --draws 1": "the plan holds: ",
    "frontier JOB.yaml": "from ",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", ANSWERS)
def test_every_command_answers_first_and_keeps_to_80_columns(line, planned, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "JOB.yaml").symlink_to(planned.job)
    (tmp_path / "OUT").symlink_to(planned.out)
    result = run(*shlex.split(line), columns=80)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith(ANSWERS[line])
    assert [each for each in lines if len(each) > 80] == []
    assert "0.0 s |" not in result.stdout


def cells(*rows):
    return Table(("stage", "seconds", "why"), frozenset({"seconds"}), frozenset({"why"}), list(rows))


ROW = ("generation", "48.0", "decode steps wait for memory bandwidth, as each reads every weight once")


def test_a_table_that_fits_is_aligned_and_one_that_does_not_is_stacked():
    assert [len(line) <= 60 for line in table_lines(cells(ROW), 60)] == [True] * len(table_lines(cells(ROW), 60))
    assert table_lines(cells(ROW), 60)[0].split() == ["stage", "seconds", "why"]
    assert table_lines(cells(ROW), 40) == [
        "stage generation",
        "  seconds 48.0",
        "  why decode steps wait for memory",
        "    bandwidth, as each reads every",
        "    weight once",
    ]


def test_rows_of_several_keys_stack_below_what_they_share_with_a_line_for_each_cell():
    rows = [("A", "actor", "t1 p1 d16 z3", "t4 d4"), ("", "reference", "-", "t1 p1 d16"), ("B", "reward", "", "")]
    table = Table(("pool", "role", "training", "other"), rows=rows, keys=2)
    assert table_lines(table, 36) == [
        "pool A",
        "  actor       training  t1 p1 d16 z3",
        "              other     t4 d4",
        "  reference   other     t1 p1 d16",
        "pool B",
        "  reward                -",
    ]
    assert table_lines(table, 80)[0].split() == ["pool", "role", "training", "other"]


@pytest.mark.parametrize("what", ["models", "devices"])
def test_catalogues_are_tables_at_80_columns(what, run):
    lines = run(what, "list", columns=80).stdout.splitlines()
    assert set(lines[1]) == {"─"}
    assert max(map(len, lines)) <= 80


def test_a_column_that_says_nothing_is_left_out():
    assert "seconds" not in "\n".join(table_lines(cells(("generation", "", "because")), 80))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_word_breaks_at_any_width(width):
    text = f"{ROW[2]}; {'with a-very-long-name_that_is_one_word ' * 4}and t2 -> 1 in 16 x h100-80gb-sxm at 4.7 s"
    lines = wrapped(f"because     {text}", width)
    assert " ".join(" ".join(lines).split()) == f"because {text}"
    assert all(line.startswith(" " * 12) for line in lines[1:])
    assert not any(line.endswith((" 4.7", "->", " x", " t2")) for line in lines)


def test_a_command_to_type_stays_on_one_line():
    line = "next        hybridmap plan " + "a-long-folder/" * 10 + "job.yaml --out " + "b" * 60
    assert wrapped(line, 80) == [line]


def test_too_few_cells_are_refused():
    with pytest.raises(ValueError, match="2 cells for 3 columns"):
        cells().add_row("a", "b")


def test_a_second_group_below_a_key_says_the_key_again():
    """Where a table is too wide, no block stands without what it belongs to."""
    rows = [["standalone", "GPUs 0-7", "actor", "t2 p1 d4"], ["", "GPUs 8-15", "reference", "t1 p1 d8"]]
    lines = table_lines(Table(("placement", "", "role", "training"), frozenset(), frozenset(), rows, keys=3), 30)
    assert [line for line in lines if not line.startswith(" ")] == [
        "placement standalone   GPUs 0-7",
        "placement standalone   GPUs 8-15",
    ]
