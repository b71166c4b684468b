"""Protects every parser from what others write: what broke one once, and a few hundred new inputs."""

import shutil
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import given, settings

from benchmarks.fuzz import campaign as campaigns
from benchmarks.fuzz.__main__ import main, shares
from benchmarks.fuzz.campaign import COMMANDS, campaign, input_of
from benchmarks.fuzz.commands import run_command
from benchmarks.fuzz.outcome import LIMIT_S, outcome_of
from benchmarks.fuzz.seeds import good_inputs
from benchmarks.fuzz.targets import TARGETS, Target
from benchmarks.fuzz.workplace import jobs, prepare
from profiles.errors import InputError
from tests.draws import draws
from tests.work import HANGS_S

CASES = sorted((Path(__file__).parents[1] / "fuzz_cases").iterdir())
HERE = [name for name in TARGETS if name not in ("prompts", "journal", "weights")]
"""Targets that import no torch."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    prepare(folder)
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_broke_once_breaks_no_more(case, place):
    (file,) = case.iterdir()
    if case.name.startswith(COMMANDS):
        for name, good in good_inputs().items():
            (place / name).write_bytes(good)
        outcome = outcome_of(lambda folder: run_command(file.read_text().splitlines(), folder), place, HANGS_S)
    else:
        target = next(t for t in TARGETS.values() if case.name.startswith(f"{t.name}-") and t.file_name == file.name)
        outcome = outcome_of(target.read, Path(shutil.copy(file, place)), limit_s=HANGS_S)
    assert not outcome.is_find, f"{outcome.where}\n{outcome.detail}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HERE)
def test_new_inputs_are_read_or_refused(name, place):
    target, refused = TARGETS[name], 0
    for index in range(20):
        path = place / target.file_name
        path.write_bytes(target.make(Random(f"test:{name}:{index}")))
        outcome = outcome_of(target.read, path, limit_s=HANGS_S)
        assert not outcome.is_find, f"number {index}: {outcome.where}\n{outcome.detail}"
        refused += outcome.kind == "refused"
    assert refused  # else nothing was changed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_an_unchanged_file_is_accepted(name, place):
    """A fuzzer that hands over files nobody could read finds nothing."""
    good = {**good_inputs(), "job.yaml": jobs()[0]}
    target = TARGETS[name]
    if target.file_name in good:
        path = place / target.file_name
        path.write_bytes(good[target.file_name])
        outcome = outcome_of(target.read, path, limit_s=HANGS_S)
        assert outcome.kind == "accepted", outcome.detail
    assert input_of(name, 3, 0) == input_of(name, 3, 0)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3), max_leaves=8
)


@settings(max_examples=draws(240))
@given(
    key=st.sampled_from(
        [
            "algorithm",
            "models",
            "workload",
            "cluster",
            "engines",
            "objective",
            "pin",
            "schedule",
            "search",
            "implementation",
            "run",
        ]
    ),
    value=DOCUMENTS,
)
def test_any_value_at_any_key_of_a_job(key, value):
    from hybridmap.job.load import job_from_mapping

    raw = {**yaml.safe_load(jobs()[0]), key: value}
    try:
        job_from_mapping(raw, "job", Path())
    except InputError as error:
        assert str(error).startswith("job: ") or "job has " in str(error) or "job " in str(error)


def finder(read, make=lambda random: b"x", limit_s=LIMIT_S):
    return {"job": Target("job", "job.yaml", make, read, limit_s)}


def test_half_of_the_files_are_jobs_that_make_sense():
    assert shares(200, ["job", "grown-job", "plan"]) == {"job": 50, "grown-job": 100, "plan": 50}
    assert shares(100, ["grown-job"]) == {"grown-job": 100}
    assert shares(100, ["job", "plan", "device"]) == {"job": 34, "plan": 34, "device": 34}


def test_a_find_is_found(monkeypatch, tmp_path, capsys):
    def broken(path):
        raise KeyError(path.name)

    monkeypatch.setattr("benchmarks.fuzz.campaign.TARGETS", finder(broken))
    assert main(["--count", "3", "--target", "job", "--finds", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert (tmp_path / "job-0" / "job.yaml").read_bytes() == b"x"
    assert "KeyError" in (tmp_path / "job-0" / "about.txt").read_text()
    assert "3 crash" in capsys.readouterr().out
    assert "job,0,0,3,0,1," in next(tmp_path.glob("*.csv")).read_text()


def test_so_is_one_that_takes_too_long_or_ends_the_process(monkeypatch, tmp_path):
    import os
    import time

    def endless(path):
        while True:
            time.sleep(0.01)

    path = tmp_path / "file"
    path.write_bytes(b"")
    assert outcome_of(endless, path, limit_s=0.2).kind == "slow"
    monkeypatch.setattr("benchmarks.fuzz.campaign.TARGETS", finder(lambda path: os._exit(3)))
    tally = campaign("job", range(2), 0)
    assert tally.counts == {"crash": 2}
    assert [find.data for find in tally.finds.values()] == [b"x"]


def test_one_that_hangs_where_no_alarm_reaches_is_ended(monkeypatch):
    import signal
    import time

    def deaf(path):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(600)

    monkeypatch.setattr("benchmarks.fuzz.campaign.TARGETS", finder(deaf, limit_s=0.1))
    monkeypatch.setattr(campaigns, "PATIENCE_S", 0.3)
    assert campaign("job", range(1), 0).counts == {"slow": 1}


@pytest.mark.slow
def test_changed_command_lines_end_with_0_or_2(monkeypatch):
    monkeypatch.setattr(campaigns, "COMMAND_LIMIT_S", HANGS_S)
    tally = campaign(COMMANDS, range(25), 3)
    assert not tally.finds, [find.outcome for find in tally.finds.values()]
    assert tally.counts["accepted"] == 25
