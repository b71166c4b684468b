"""Protects what a validation says: errors have the right sign, spreads the right width."""

from pathlib import Path

import pytest

from hybridmap.validation.comparison import TRIVIAL_S, Timing, compare, memory_amounts
from hybridmap.validation.lanes import lanes, write_lanes
from hybridmap.validation.text import show_comparison
from hybridmap.validation.transfers import predicted_bytes, transfer_amounts, weights_amounts
from profiles.workload import LengthDistribution, Workload
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan
from simulator.plan.timeline import PoolMemory, Span, Timeline


def timeline(source: str, generation_s: float, training_s: float, gap_s: float = 0.0) -> Timeline:
    spans = (
        span("generate_sequences", "actor", "generation", 0.0, generation_s),
        span("update_actor", "actor", "training", generation_s + gap_s, generation_s + gap_s + training_s),
    )
    memory = PoolMemory(used_bytes=100 if source == "simulated" else 80, capacity_bytes=1000, peak_call="x", classes={})
    return Timeline(
        source=source,
        iteration_s=generation_s + gap_s + training_s,  # type: ignore[arg-type]
        stages={"generation": generation_s, "training": training_s},
        spans=spans,
        memory={"A": memory},
        basis={"measured": 1.0},
        tokens=1.0,
        num_gpus=1,
    )


def span(call: str, role: str, stage: str, start_s: float, end_s: float) -> Span:
    return Span(
        call=call,
        api=call,
        role=role,
        pool="A",
        stage=stage,
        start_s=start_s,
        end_s=end_s,  # type: ignore[arg-type]
        compute_s=end_s - start_s,
        comm_s=0.0,
        basis={"measured": 1.0},
    )


MEASURED = [timeline("measured", g, 2.0, 0.5) for g in (0.8, 1.0, 1.0, 1.2, 9.0)]


def test_errors_are_prediction_over_median_less_one() -> None:
    found = compare(timeline("simulated", 1.1, 1.0), 2.5, MEASURED)
    by_name = {t.name: t for t in (*found.stages, found.iteration)}
    assert by_name["generation"].error == pytest.approx(0.1)  # the 9 s are an outlier, not the truth
    assert by_name["training"].error == pytest.approx(-0.5)
    assert by_name["other"].predicted_s == pytest.approx(0.4) and by_name["other"].measured_s == pytest.approx(0.5)
    assert by_name["iteration"].error == pytest.approx(2.5 / 3.5 - 1)
    assert found.worst(("generation", "training")) == pytest.approx(0.5)
    assert by_name["generation"].spread == pytest.approx(0.1)


def test_a_run_of_other_lengths_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A user's prompts are shorter than workload.prompt_length: what is off then is the work, and not the prices."""
    plan = timeline("simulated", 1.1, 1.0)
    show_comparison(compare(plan, 2.5, MEASURED))
    assert "tokens" not in capsys.readouterr().err
    found = compare(plan.model_copy(update={"tokens": 4.0}), 2.5, MEASURED)
    assert (found.predicted_tokens, found.measured_tokens, found.is_same_work) == (4.0, 1.0, False)
    show_comparison(found)
    said = capsys.readouterr().err
    assert "1 tokens an iteration, the prediction is of 4 (-75 %)" in said
    assert "workload.prompt_length" in said


def test_next_to_nothing_has_no_error() -> None:
    tiny = Timing(level="call", name="x", predicted_s=0, measured_s=TRIVIAL_S / 2, low_s=0, high_s=1)
    assert tiny.error is None


def test_memory_is_paired_by_pool() -> None:
    (amount,) = memory_amounts(timeline("simulated", 1, 1), MEASURED[0])
    assert (amount.name, amount.predicted_bytes, amount.measured_bytes) == ("A", 100, 80)


def test_bytes_follow_the_columns_that_a_call_reads() -> None:
    work = Workload(10, 2, 7, LengthDistribution.fixed(3))
    assert predicted_bytes(("prompts", "prompt_mask"), work) == 20 * (8 * 7 + 7)
    assert predicted_bytes(("responses", "values"), work) == 20 * (8 * 3 + 4 * 3)
    assert predicted_bytes(("answers",), work) is None
    (amount,) = transfer_amounts({"a": ("uid",), "b": ("answers",)}, {"a": 320, "b": 1}, work, {"a": 2})
    assert (amount.predicted_bytes, amount.measured_bytes) == (320, 320)


def test_the_plot_has_a_lane_for_each_side_of_a_pool(tmp_path: Path) -> None:
    figure = lanes(timeline("simulated", 1, 1), MEASURED[0])
    assert {bar.y[0] for bar in figure.data} == {"A predicted", "A measured"}
    assert sum(bar.showlegend for bar in figure.data) == 2  # a colour for each stage, once
    assert write_lanes(timeline("simulated", 1, 1), MEASURED[0], tmp_path / "t.html")
    assert "generate_sequences" in (tmp_path / "t.html").read_text()


def actor_plan(training: ParallelLayout, tp: int, dp: int, generation_pool: str | None = None) -> Plan:
    engine = GenerationLayout(tp=tp, dp=dp, max_num_seqs=8, kv_cache_bytes=0)
    ranks = training.tp * training.dp
    entry = RolePlan(role="actor", pool="A", training=training, generation=engine, generation_pool=generation_pool)
    pools = [Pool(name="A", device="here", first_gpu=0, num_gpus=ranks, roles=("actor",))]
    if generation_pool:
        pools.append(Pool(name="B", device="here", first_gpu=ranks, num_gpus=tp * dp, roles=()))
    return Plan(algorithm="grpo", placement="x", pools=tuple(pools), roles=(entry,))


def test_weights_are_those_of_table_2_for_all_ranks() -> None:
    nested = actor_plan(ParallelLayout(tp=4, dp=2), tp=2, dp=4)
    (amount,) = weights_amounts(nested, 800.0, {"transition": 1610})
    assert (amount.kind, amount.predicted_bytes, amount.measured_bytes) == ("weights", 8 * 200, 1610)
    apart = actor_plan(ParallelLayout(dp=2), tp=1, dp=3, generation_pool="B")
    assert weights_amounts(apart, 800.0, {"transition": 2400})[0].predicted_bytes == 3 * 800


def test_where_no_weights_move_or_no_formula_holds_there_is_no_line() -> None:
    same = actor_plan(ParallelLayout(dp=2), tp=1, dp=2)
    assert weights_amounts(same, 800.0, {"transition": 0}) == []
    assert weights_amounts(same, 800.0, {"transition": 5})[0].predicted_bytes == 0, "what should not move is shown"
    sharded = actor_plan(ParallelLayout(dp=2, zero_stage=3), tp=1, dp=2)
    wider = actor_plan(ParallelLayout(dp=2), tp=2, dp=1)
    assert weights_amounts(sharded, 800.0, {"transition": 5}) == weights_amounts(wider, 800.0, {"transition": 5}) == []
