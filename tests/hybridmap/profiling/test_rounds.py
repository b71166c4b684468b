"""Protects what a disturbed measurement may cost: it is made again, a few times at most, and the calmest round counts.

The measurements are made up, so nothing here depends on how fast or busy this machine is.
"""

import copy

import pytest

from hybridmap.profiling.engine_files import EngineFits
from hybridmap.profiling.engine_fit import Fit
from hybridmap.profiling.quality import FIT_ERROR, Wanted, doubts
from hybridmap.profiling.rounds import ROUNDS, measured_again, repeat_disturbed, settled, to_repeat
from profiles.tables.write import KEYS
from tests.hybridmap.made_up_profile import HOST, operators, row

GOOD = EngineFits(Fit(HOST["training"], 3, {"update_actor": 0.05}), Fit(HOST["generation"], 3, {}))
ONE_RANK = Wanted(ray=False, ranks=False, neighbours=False)


@pytest.fixture
def rows():
    calls = [row(SHAPE | {"call": "update_actor", "samples": n}, 1e-2) for n in (8, 16, 32)]
    return copy.deepcopy(operators()) | {"engine_step": calls}


SHAPE = dict.fromkeys(KEYS["engine_step"], 1)


def apart(each):
    return {**each, "low_s": 0.2 * each["latency_s"], "high_s": 1.9 * each["latency_s"]}


def late_never():
    return False


class Machine:
    """Measures rows again; ``calm_after``: the round from which nothing else has its cores."""

    def __init__(self, rows, calm_after):
        self.rows, self.calm_after, self.rounds = rows, calm_after, []

    def state(self):
        return settled(self.rows), GOOD

    def measure(self, wanted, number):
        self.rounds.append({table: len(found) for table, found in wanted.items()})
        for table, found in wanted.items():
            for each in found:
                calm = each | {"low_s": each["latency_s"], "high_s": each["latency_s"], "cpu_share": 1.0}
                made = calm if number >= self.calm_after else each
                self.rows[table].append({**made, "round": number})


def disturbed_once(rows):
    """Every second row of copies known to +- 85 % only, one of GEMM too: that table is known well enough."""
    rows["copy"] = [apart(each) if i % 3 else each for i, each in enumerate(rows["copy"])]
    rows["gemm"][0] = apart(rows["gemm"][0])
    return rows


def test_a_quiet_profile_is_measured_once(rows):
    machine = Machine(rows, 1)
    repeat_disturbed(machine.state, machine.measure, late_never)
    assert machine.rounds == [] and measured_again(machine.rows) == {}


def test_what_was_disturbed_once_is_measured_again_and_no_doubt_is_left(rows):
    machine = Machine(disturbed_once(rows), 1)
    wide = sum(each["high_s"] > 1.5 * each["latency_s"] for each in machine.rows["copy"])
    assert any("table copy lie apart" in text for text in doubts(settled(machine.rows), GOOD, ONE_RANK))
    repeat_disturbed(machine.state, machine.measure, late_never)
    assert machine.rounds == [{"copy": wide}], "rows that are known well, and tables that are, stay as they are"
    assert doubts(settled(machine.rows), GOOD, ONE_RANK) == ()
    assert measured_again(machine.rows) == {"1": {"copy": wide}}


def test_what_stays_disturbed_is_a_doubt_as_before(rows):
    machine = Machine(disturbed_once(rows), ROUNDS + 1)
    before = doubts(settled(machine.rows), GOOD, ONE_RANK)
    repeat_disturbed(machine.state, machine.measure, late_never)
    assert len(machine.rounds) == ROUNDS
    assert doubts(settled(machine.rows), GOOD, ONE_RANK) == before != ()


def test_rounds_end_with_their_time_and_go_on_in_number_where_a_journal_has_some(rows):
    machine = Machine(disturbed_once(rows), 1)
    repeat_disturbed(machine.state, machine.measure, lambda: True)
    assert machine.rounds == []
    repeat_disturbed(machine.state, machine.measure, late_never, ("1", "2"))
    assert set(measured_again(machine.rows)) == {"3"}


def test_the_calmest_round_counts_and_not_the_fastest():
    key = {"kind": "host_to_device", "num_bytes": 4096}
    starved, wide = row(key, 1e-6, cpu_share=0.5), apart(row(key, 2e-6, cpu_share=1.0))
    calm, slower = row(key, 3e-6, cpu_share=0.99), row(key, 4e-6, cpu_share=1.0)
    failure = {**key, "latency_s": None, "repeats": 0, "outliers": 0, "error": "RuntimeError"}
    assert settled({"copy": [starved, wide, slower, calm, failure]}) == {"copy": [calm]}
    assert settled({"copy": [failure, starved, wide]}) == {"copy": [wide]}
    assert settled({"copy": [failure, starved]}) == {"copy": [starved]}
    assert settled({"copy": [failure]}) == {"copy": [failure]}


def test_rows_that_had_no_core_and_sizes_that_took_longer_than_larger_ones_are_wanted(rows):
    for i, each in enumerate(rows["gemm"]):
        each["cpu_share"] = 0.5 if i % 2 else 1.0
    rows["copy"][3]["latency_s"] *= 9
    wanted = to_repeat(rows, GOOD)
    assert wanted["copy"] == [rows["copy"][3]]
    assert wanted["gemm"] == rows["gemm"][1::2]


def test_calls_that_a_fit_predicts_badly_are_wanted_and_those_beside_them_are_not(rows):
    calls = rows["engine_step"]
    errors = tuple(zip(calls, (0.5, 0.3, 0.01), strict=True))
    bad = Fit(HOST["training"], 3, {"update_actor": 0.3}, errors)
    fair = Fit(HOST["training"], 3, {"update_actor": FIT_ERROR}, errors)
    assert to_repeat(rows, EngineFits(bad, GOOD.generation)) == {"engine_step": calls[:2]}
    assert to_repeat(rows, EngineFits(fair, GOOD.generation)) == {}
    assert to_repeat(rows, None) == {}
