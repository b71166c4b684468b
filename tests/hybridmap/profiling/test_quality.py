"""Protects plans from profiles that predict little: what is missing or disturbed is found, marks the device card, and
ends plan, run and validate with one message unless it is forced. The journals are made up, so nothing depends on how
fast or busy this machine is.
"""

import copy
import json

import pytest

from hybridmap.job.local import on_this_machine
from hybridmap.job.problems import parse_job
from hybridmap.profiling.device_file import write_device_file
from hybridmap.profiling.engine_files import EngineFits
from hybridmap.profiling.engine_fit import Fit
from hybridmap.profiling.folder import write_profile
from hybridmap.profiling.quality import Wanted, doubts
from hybridmap.profiling.rates import bandwidth_bound, host_rate, memory_rate, rate_of, wire_rate
from profiles.device_file import load_doubts, load_spec
from profiles.errors import InputError
from tests.hybridmap.made_up_profile import (
    ABOUT,
    BYTES_PER_S,
    COPY_BYTES_PER_S,
    HOST,
    ROOT,
    WIRE_BYTES_PER_S,
    failed,
    journal,
    operators,
    row,
)

FITS = EngineFits(Fit(HOST["training"], 72, {"update_actor": 0.05}), Fit(HOST["generation"], 18, {}))
JOB = ROOT / "examples" / "run" / "remax-tiny.yaml"


@pytest.fixture
def rows():
    """All tables, those of the engine with whatever times: what they say is in the fits."""
    calls = [{"call": "update_actor", "samples": n} for n in (8, 16, 32)]
    more = {table: [row(call, 1e-2) for call in calls] for table in ("engine_step", "neighbour_step", "parallel_step")}
    return copy.deepcopy(operators() | more)


def changed(rows, table, **changes):
    """Each row of a table with changes: functions of the row, or values."""
    for each in rows[table]:
        each |= {name: value(each) if callable(value) else value for name, value in changes.items()}
    return rows


def half(row):
    return 0.5 * row["latency_s"]


def slow_once(row):
    return row["latency_s"] * (9 if row["num_bytes"] == 1 << 23 else 1)


def test_a_quiet_machine_gives_no_doubt(rows):
    assert doubts(rows, FITS, Wanted()) == ()


def test_rates_come_from_sizes_whose_time_is_bytes(rows):
    """Not from a size that fits in a cache, and not from one whose time is the call's."""
    copies = [
        row({"kind": "host_to_device", "num_bytes": n}, s) for n, s in ((4096, 1e-6), (1 << 22, 1e-4), (1 << 24, 4e-3))
    ]
    assert host_rate(copies) == (1 << 24) / 4e-3
    assert host_rate(copies[:1]) is host_rate([]) is None
    assert wire_rate(rows["collective"]) == pytest.approx(WIRE_BYTES_PER_S, rel=0.03)
    assert memory_rate(rows["memory_ops"]) == pytest.approx(BYTES_PER_S, rel=0.01)
    small = [each for each in rows["collective"] if each["num_bytes"] <= 256]
    assert wire_rate(small) is None  # 256 bytes in 0.2 ms are no rate of a link
    of_four = [{**each, "gpus": 4} for each in rows["collective"]]
    assert wire_rate(of_four) == pytest.approx(1.5 * wire_rate(rows["collective"]))
    alike = [row({"num_bytes": n}, 1e-3) for n in (16, 1 << 24)]
    assert bandwidth_bound(alike) == [] and rate_of(alike) is None


def test_a_card_has_no_rate_of_a_size_that_is_all_call(rows, tmp_path):
    """The host link at 215 kB/s: two collectives of 256 bytes are all that there was time for."""
    rows["collective"] = [each for each in rows["collective"] if each["num_bytes"] <= 256]
    write_device_file(tmp_path, ABOUT, rows, "cpu")
    spec = load_spec(tmp_path)
    assert spec.nvlink_bytes_per_s == spec.inter_node_bytes_per_s_per_node == spec.memory_bytes_per_s
    assert "not measured" in spec.sources["nvlink_bytes_per_s"]
    assert spec.pcie_bytes_per_s == pytest.approx(COPY_BYTES_PER_S, rel=0.01)


def without(rows, table, keep=lambda each: False):
    rows[table] = [each for each in rows[table] if keep(each)]
    return rows


MISSING = {
    "collectives of small sizes alone": (
        lambda rows: without(rows, "collective", lambda each: each["num_bytes"] <= 256),
        "incomplete: all_gather of 2 ranks in table collective has no size that is bound by bandwidth: 256 bytes take",
    ),
    "no collectives": (lambda rows: without(rows, "collective"), "incomplete: table collective has no row"),
    "no calls": (lambda rows: without(rows, "engine_step"), "incomplete: table engine_step has no row"),
    "no table": (lambda rows: {t: r for t, r in rows.items() if t != "gemm"}, "incomplete: table gemm has no row"),
    "dispatch of 0 s": (
        lambda rows: without(rows, "dispatch", lambda each: each["launcher"] == "local"),
        "incomplete: table dispatch has no row of launcher ray",
    ),
    "a failure": (
        lambda rows: rows | {"parallel_step": [failed({"call": "update_actor"}, "RayError: no space")]},
        "incomplete: table parallel_step has no row: RayError: no space",
    ),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_named(what, rows):
    change, told = MISSING[what]
    found = doubts(change(rows), FITS, Wanted())
    assert any(text.startswith(told) for text in found), found
    assert all(text.startswith("incomplete: ") for text in found)


def test_what_a_machine_cannot_have_is_not_missing(rows):
    """One rank alone, and no Ray."""
    for table in ("collective", "parallel_step", "neighbour_step"):
        without(rows, table)
    without(rows, "dispatch", lambda each: each["launcher"] == "local")
    assert doubts(rows, FITS, Wanted(ray=False, ranks=False, neighbours=False)) == ()
    assert len(doubts(rows, FITS, Wanted())) == 4


DISTURBED = {
    "spread": (
        lambda rows: changed(rows, "collective", low_s=half, high_s=lambda r: 1.4 * r["latency_s"]),
        "repeats of table collective lie apart: its medians are known to +- 45 %, not to 20 %",
    ),
    "busy cores": (
        lambda rows: changed(rows, "gemm", cpu_share=0.52),
        "other work had the cores: a quarter of the rows was measured with 52 % of a core or less",
    ),
    "slow link": (
        lambda rows: changed(rows, "collective", latency_s=lambda r: 1e-3 + r["num_bytes"] / 4e5),
        "collectives at 199,995 B/s; no machine is below 10,000,000",
    ),
    "slow memory": (
        lambda rows: changed(rows, "memory_ops", latency_s=lambda r: r["num_bytes"] / 1e8),
        "memory at 100,000,000 B/s; no machine is below 500,000,000",
    ),
    "slow arithmetic": (
        lambda rows: changed(rows, "gemm", latency_s=lambda r: 1e-3 + 2.0 * r["m"] * r["n"] * r["k"] / 1e8),
        "GEMM at ",
    ),
    "more in less time": (
        lambda rows: changed(rows, "copy", latency_s=slow_once),
        "host_to_device in table copy: 8,388,608 bytes took 4.5 times as long as 16,777,216",
    ),
}


@pytest.mark.parametrize("what", DISTURBED)
def test_what_no_quiet_machine_shows_is_named(what, rows):
    change, told = DISTURBED[what]
    rows = change(rows)
    for each in (each for found in rows.values() for each in found) if what != "spread" else ():
        each |= {"low_s": each["latency_s"], "high_s": each["latency_s"]}
    (found,) = doubts(rows, FITS, Wanted())
    assert found.startswith(f"disturbed: {told}"), found


def test_cores_that_change_their_speed_do_not_make_a_profile_worthless(rows):
    """What calls take is counted in steps beside them; a table of prices that repeats as badly is refused above."""
    apart = {"latency_s": 12.5e-3, "low_s": 10.5e-3, "high_s": 17.0e-3, "error": ""}
    assert doubts(dict(rows) | {"core_pace": [{"cores": 1, "repeats": 9} | apart]}, FITS, Wanted()) == ()


@pytest.mark.parametrize("speed", [0.2, 1.0, 50.0])
def test_no_doubt_depends_on_how_fast_a_machine_is(speed, rows):
    """All times of one machine over those of another; rates that no machine is below are far away."""
    for found in rows.values():
        for each in found:
            each |= {name: each[name] / speed for name in ("latency_s", "low_s", "high_s")}
    assert doubts(rows, FITS, Wanted()) == ()


def test_constants_at_their_bound_and_a_fit_that_predicts_nothing_are_named(rows):
    """Some costs are fitted to 0 on any machine; a pass without any is none."""
    one = HOST["training"] | {"forward_s_per_pass": 0.0, "call_s": 0.0}
    assert doubts(rows, EngineFits(Fit(one, 72, {}), FITS.generation), Wanted()) == ()
    none = dict.fromkeys(HOST["generation"], 0.0) | {"element_wise_ratio": 5.0}
    found = doubts(rows, EngineFits(Fit(one, 72, {"update_actor": 0.4}), Fit(none, 18, {})), Wanted())
    assert found == (
        "disturbed: host costs of training predict update_actor to 40 % only, where it was left out",
        "disturbed: host costs of generation are all fitted to 0, and every pass runs Python",
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A journal of a whole, quiet machine whose parts agree with one another."""
    return journal(tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def quiet(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quiet")
    assert write_profile(folder, whole, ABOUT, "cpu").doubts == ()
    return folder


@pytest.fixture(scope="module")
def doubtful(whole, tmp_path_factory):
    """The same without collectives that are bound by bandwidth, and other work on the cores."""
    folder = tmp_path_factory.mktemp("doubtful")
    busy = {table: [{**each, "cpu_share": 0.5} for each in found] for table, found in whole.items()}
    busy["collective"] = [each for each in busy["collective"] if each["num_bytes"] <= 256]
    assert len(write_profile(folder, busy, ABOUT, "cpu").doubts) == 5
    return folder


@pytest.mark.slow
def test_the_card_says_so_and_plans_are_refused(run, quiet, doubtful, tmp_path):
    """One message with what is wrong and the next step, and nothing written; forced, it is a plan like any other."""
    assert load_doubts(quiet) == ()
    assert len(load_doubts(doubtful)) == 5
    planned = run("plan", JOB, "--profile", quiet, "--out", tmp_path / "quiet", "--json")
    assert planned.exit_code == 0, planned.output
    for command in (("plan", JOB), ("run", JOB), ("validate", JOB)):
        refused = run(*command, "--profile", doubtful, "--out", tmp_path / "out")
        assert (refused.exit_code, refused.stdout) == (2, "")
        (line,) = refused.stderr.splitlines()
        for part in (
            f"Error: {doubtful}",
            "256 bytes",
            "50 % of a core",
            "--force-profile",
            "hybridmap profile --quick",
        ):
            assert part in line
    assert not (tmp_path / "out").exists()
    forced = run("plan", JOB, "--profile", doubtful, "--force-profile", "--out", tmp_path / "out", "--json")
    assert forced.exit_code == 0, forced.output
    assert json.loads(forced.stdout)["iteration_s"] > 0
    assert "50 % of a core" in forced.stderr
    assert "50 % of a core" in run("devices", "show", doubtful).stderr
    assert not run("devices", "show", quiet).stderr


def test_a_folder_that_was_not_written_to_its_end_is_incomplete(whole, tmp_path, monkeypatch):
    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridmap.profiling.folder.write_engine_files", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_profile(tmp_path, whole, ABOUT, "cpu")
    assert load_doubts(tmp_path) == ("incomplete: the folder was not written to its end",)


def test_a_card_that_says_nothing_is_taken(tmp_path, quiet, small_job):
    """Cards of the catalogue, and those that were written by hand."""
    job = parse_job(small_job, "job", tmp_path)
    card = quiet / "device.yaml"
    written = card.read_text()
    try:
        card.write_text(written.replace("doubts: []\n", ""))
        assert on_this_machine(job, quiet).cluster
        card.write_text(written.replace("doubts: []\n", "doubts: ['disturbed: x']\n"))
        with pytest.raises(InputError, match="disturbed: x"):
            on_this_machine(job, quiet)
    finally:
        card.write_text(written)
