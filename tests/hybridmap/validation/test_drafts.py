"""Protects the acceptance that ``validate`` shows: of all measured iterations, beside the one that was priced."""

from dataclasses import replace

from hybridmap.validation.comparison import compare
from hybridmap.validation.drafts import Kept, kept_drafts
from hybridmap.validation.text import show_comparison
from simulator.plan.timeline import Counts
from simulator.play.simulate import simulate
from simulator.speculation import Speculation
from tests.builders import make_facts, make_plan, workload

FACTS = replace(
    make_facts("grpo", "qwen3.5-9b", device="h100-80gb-sxm", gpus_per_node=8, work=workload(64, 512, 1024)),
    speculation=Speculation((0.9, 0.8, 0.7)),
)
PLAN = make_plan(FACTS, (("actor",),), (8,), tp=2, slots=16).model_copy(update={"draft_tokens": 2})


def measured(steps, kept):
    """An iteration as predicted, with what its generation counted of drafts."""
    predicted = simulate(PLAN, FACTS)
    nothing = Counts(bytes_in=0, bytes_out=0, host_bytes=0, host_s=0.0, peak_memory_bytes=0)
    counted = nothing.model_copy(update={"draft_steps": steps, "drafts_kept": kept})
    spans = [s.model_copy(update={"counts": counted if s.stage == "generation" else nothing}) for s in predicted.spans]
    return predicted.model_copy(update={"spans": tuple(spans)})


def test_acceptance_is_of_all_iterations_beside_the_priced_one(capsys):
    iterations = [measured(10, (6, 2)), measured(30, (24, 10))]
    drafts = kept_drafts(PLAN, FACTS, iterations)
    assert drafts == (Kept(position=1, priced=0.9, measured=0.75), Kept(position=2, priced=0.8, measured=0.3))
    show_comparison(compare(simulate(PLAN, FACTS), 1.0, iterations, drafts=drafts))
    said = " ".join(capsys.readouterr().out.split())
    assert "drafts kept by position, measured: 0.75, 0.30, so 2.05 tokens a step" in said
    assert "drafts kept by position, priced: 0.90, 0.80, so 2.70 tokens a step" in said


def test_nothing_is_said_where_nobody_drafts_or_no_draft_was_checked():
    assert kept_drafts(PLAN.model_copy(update={"draft_tokens": 0}), FACTS, [measured(10, (6, 2))]) == ()
    assert kept_drafts(PLAN, FACTS, [measured(0, ())]) == ()
