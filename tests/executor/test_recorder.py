"""Protects measured timelines: spans as ranks saw them, stage times that add up, files that are whole or absent."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.recorder import MetricsLog, timeline_of
from executor.records import CallRecord, Drafted
from simulator.plan.dataflow import build_dataflow
from simulator.plan.timeline import Counts, Timeline

FLOW = build_dataflow("ppo", ("actor", "critic", "reference", "reward"))


def record(number, key, pool, rank, start_s, end_s, comm_s=0.0, peak=100):
    call = FLOW.calls[FLOW.index(key)]
    return CallRecord(number, key, call.api, call.role, pool, rank, 1000 + start_s, 1000 + end_s, comm_s, 1, 2, peak, 4)


RECORDS = [
    record(0, "transition", "A", 0, 0.0, 1.0),
    record(1, "generate_sequences", "A", 0, 1.0, 3.0),
    record(1, "generate_sequences", "A", 1, 1.5, 4.0, comm_s=0.5, peak=300),
    record(2, "compute_values", "B", 0, 4.5, 5.5),
    record(3, "compute_ref_log_prob", "A", 0, 4.0, 7.0),
    record(4, "update_critic", "B", 0, 7.0, 8.0),
    record(5, "update_actor", "A", 0, 7.0, 9.0),
]


def test_a_call_on_several_ranks_is_one_span_from_first_start_to_last_end():
    timeline = timeline_of(RECORDS, FLOW, 1000.0, 1010.0, tokens=50, num_gpus=3)
    generate = timeline.spans[1]
    assert (generate.start_s, generate.end_s, generate.comm_s, generate.compute_s) == (1.0, 4.0, 0.5, 2.0)
    assert (generate.pool, generate.role, generate.stage) == ("A", "actor", "generation")
    assert generate.counts == Counts(bytes_in=2, bytes_out=4, host_bytes=0, host_s=0.0, peak_memory_bytes=300)
    assert timeline.source == "measured"
    assert timeline.tokens_per_s == 5.0
    assert timeline.memory["A"].used_bytes == 300
    assert timeline.memory["A"].peak_call == "generate_sequences"


def test_drafts_of_a_call_are_those_of_all_its_ranks():
    drafted = [replace(RECORDS[1], drafted=Drafted(4, (3, 1))), replace(RECORDS[2], drafted=Drafted(6, (6, 2)))]
    timeline = timeline_of([RECORDS[0], *drafted], FLOW, 1000.0, 1010.0, tokens=50, num_gpus=3)
    (transition, generate) = (span.counts for span in timeline.spans)
    assert (generate.draft_steps, generate.drafts_kept) == (10, (9, 3))
    assert (transition.draft_steps, transition.drafts_kept) == (0, ())


def test_with_a_span_per_rank_pools_name_it():
    timeline = timeline_of(RECORDS, FLOW, 1000.0, 1010.0, tokens=50, num_gpus=3, per_rank=True)
    assert [(s.pool, s.start_s, s.end_s) for s in timeline.spans if s.api == "generate_sequences"] == [
        ("A/0", 1.0, 3.0),
        ("A/1", 1.5, 4.0),
    ]


def test_stage_times_follow_the_critical_path_and_add_up():
    timeline = timeline_of(RECORDS, FLOW, 1000.0, 1010.0, tokens=50, num_gpus=3)
    assert timeline.stages == {"transition": 1.0, "generation": 2.5, "preparation": 3.0, "training": 2.0, "other": 1.5}
    assert [s.call for s in timeline.spans if s.critical] == [
        "transition",
        "generate_sequences",
        "compute_ref_log_prob",
        "update_actor",
    ]


def test_a_rank_goes_on_to_its_next_call_while_another_is_late():
    """Two ranks score twice; the second is late, and its calls are the path: none of their time is between calls."""
    records = [
        record(1, "generate_sequences", "A", 0, 0.0, 1.0),
        record(1, "generate_sequences", "A", 1, 0.0, 1.0),
        record(2, "compute_values", "A", 0, 2.0, 3.0),
        record(2, "compute_values", "A", 1, 2.5, 4.0),
        record(3, "compute_ref_log_prob", "A", 0, 3.5, 4.5),
        record(3, "compute_ref_log_prob", "A", 1, 4.0, 5.5),
        record(4, "compute_advantage", "controller", 0, 5.5, 6.0),
        record(5, "update_critic", "A", 0, 6.5, 7.0),
        record(5, "update_critic", "A", 1, 6.5, 7.0),
    ]
    timeline = timeline_of(records, FLOW, 1000.0, 1007.0, tokens=1, num_gpus=2)
    assert timeline.stages == {"generation": 1.0, "preparation": 3.0, "training": 0.5, "other": 2.5}
    assert timeline.between_s == 2.0, "a rank that starts late does nothing before"
    assert all(span.critical for span in timeline.spans)
    assert [(s.call, s.duration_s, s.rank_s) for s in timeline.spans] == [
        ("generate_sequences", 1.0, 1.0),
        ("compute_values", 2.0, 1.5),
        ("compute_ref_log_prob", 2.0, 1.5),
        ("compute_advantage", 0.5, 0.5),
        ("update_critic", 0.5, 0.5),
    ]


def test_one_process_makes_all_calls_in_turn():
    """A function's scores on the controller's pool come after the reference's, which were no part of the path."""
    records = [
        record(1, "generate_sequences", "A", 0, 0.0, 1.0),
        record(2, "compute_ref_log_prob", "A", 0, 1.0, 3.0),
        record(3, "compute_reward", "controller", 0, 3.0, 3.5),
        record(4, "update_actor", "A", 0, 4.0, 5.0),
    ]
    timeline = timeline_of(records, FLOW, 1000.0, 1005.0, tokens=1, num_gpus=1, in_turn=True)
    assert timeline.stages == {"generation": 1.0, "preparation": 2.5, "training": 1.0, "other": 0.5}
    assert all(span.critical for span in timeline.spans)
    beside = timeline_of(records, FLOW, 1000.0, 1005.0, tokens=1, num_gpus=1)
    assert beside.stages["other"] > 0.5


def test_a_call_of_another_pool_that_only_began_earlier_is_not_what_one_waited_for():
    generate = record(1, "generate_sequences", "A", 0, 0.0, 1.0)
    score, value = record(2, "compute_reward", "B", 0, 1.0, 1.5), record(3, "compute_values", "C", 0, 2.0, 4.0)
    timeline = timeline_of([generate, score, value], FLOW, 1000.0, 1004.0, tokens=50, num_gpus=3)
    assert timeline.stages == {"generation": 1.0, "preparation": 2.0, "other": 1.0}
    on_its_pool = record(3, "compute_values", "B", 0, 2.0, 4.0)
    timeline = timeline_of([generate, score, on_its_pool], FLOW, 1000.0, 1004.0, tokens=50, num_gpus=2)
    assert timeline.stages == {"generation": 1.0, "preparation": 2.5, "other": 0.5}


@given(st.lists(st.tuples(st.sampled_from(FLOW.calls), st.floats(0, 9), st.floats(0, 5)), max_size=12))
def test_stage_times_add_up_whatever_ran(calls):
    records = [record(i, call.key, "A", 0, start, start + length) for i, (call, start, length) in enumerate(calls)]
    timeline = timeline_of(records, FLOW, 1000.0, 1015.0, tokens=1, num_gpus=1)
    assert sum(timeline.stages.values()) == pytest.approx(15.0, abs=1e-6)
    assert Timeline.model_validate_json(timeline.model_dump_json()) == timeline


def test_calls_beside_the_dataflow_are_left_out():
    other = CallRecord(9, "summarise", "summarise", "controller", "controller", 0, 1001, 1002, 0, 0, 0, 0, 0, 0)
    assert timeline_of([other], FLOW, 1000.0, 1010.0, tokens=1, num_gpus=1).spans == ()


@pytest.mark.filterwarnings("ignore")
def test_metrics_are_a_line_an_iteration(tmp_path):
    log = MetricsLog(tmp_path)
    log.write(0, {"reward": 0.5})
    log.write(1, {"reward": 0.75})
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"iteration": 0, "reward": 0.5}, {"iteration": 1, "reward": 0.75}]
