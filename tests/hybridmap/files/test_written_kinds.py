"""Protects what files that we write say of themselves: a schema version, what they were computed from, what they said.

Logs that grow line by line (``metrics.jsonl``, ``failures.jsonl``, the profiler's journal) have neither, and files in
formats of others (weights, TensorBoard events, job.yaml, which a user owns) are not ours.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from executor.checkpoint.files import begin_unfinished, commit
from executor.checkpoint.manifest import Manifest, RoleFacts, read_checkpoint
from hybridmap.answers.what_if import WhatIfFile
from hybridmap.calibration.learn import learn
from hybridmap.commands.validate import _write as write_validation
from hybridmap.files.frontier import FrontierFile
from hybridmap.files.plan import read_plan_file, read_record
from hybridmap.files.timeline import read_timeline
from hybridmap.job.load import load_job
from hybridmap.profiling.device_file import write_device_file
from hybridmap.profiling.engine_files import write_engine_files
from hybridmap.runlogs.read import log_of
from hybridmap.validation.comparison import Comparison, compare
from hybridmap.validation.measured import Measured
from profiles.calibration import read_calibration, text_of
from profiles.errors import FileFormatError
from profiles.lookup.table import read_card
from profiles.store import DATA, load_device
from profiles.tables.write import write_table
from simulator.play.simulate import simulate
from tests.hybridmap.conftest import invoke
from tests.hybridmap.made_up_profile import ABOUT, operators

VERSION = re.compile(r"""schema(_version|-version| )["']?[:=]? ?"?[12]\b""")
HASH = re.compile(r"\b[0-9a-f]{64}\b")

KINDS = {
    "plan": ["out/plan.json", "out/timeline.json"],
    "frontier": ["frontier/frontier.json"],
    "what-if": ["what-if/what-if.json"],
    "report": ["report.html"],
    "trace": ["trace.json"],
    "export": ["launch/run_verl.sh", "launch/hybridmap_verl.py", "launch/NOTES.md"],
    "validate": [f"validate/{n}" for n in ("validation.json", "predicted.json", "measured.json", "timeline.html")],
    "calibrate": ["calibration.yaml"],
    "profile": ["profile/device.yaml", "profile/gemm.yaml", "profile/engines/*.yaml"],
    "checkpoint": ["checkpoints/iteration-00000003/manifest.json"],
}
"""What each command leaves behind; ``run`` writes timelines and checkpoints (``tests/executor/test_run.py``)."""

READ = {
    "out/plan.json": read_plan_file,
    "out/timeline.json": read_timeline,
    "validate/measured.json": read_timeline,
    "validate/validation.json": lambda path: read_record(path, Comparison),
    "frontier/frontier.json": lambda path: read_record(path, FrontierFile),
    "what-if/what-if.json": lambda path: read_record(path, WhatIfFile),
    "calibration.yaml": read_calibration,
    "profile/gemm.yaml": read_card,
    "checkpoints/iteration-00000003/manifest.json": lambda path: read_checkpoint(path.parent),
}
EDITED = {  # a time, and what is told where it was edited
    "out/timeline.json": ("iteration_s", "was edited after it was written"),
    "validate/measured.json": ("iteration_s", "was edited after it was written"),
    "validate/validation.json": ("iterations", "was edited after it was written"),
    "frontier/frontier.json": ("seed", "was edited after it was written"),
    "what-if/what-if.json": ("seed", "was edited after it was written"),
    "calibration.yaml": ("steps", "was edited after it was learned"),
    "checkpoints/iteration-00000003/manifest.json": ("batches_drawn", "digest"),
}


@pytest.fixture(scope="module")
def written(planned, tmp_path_factory):
    """A folder with every kind of file, made by the commands or by what they call."""
    folder = tmp_path_factory.mktemp("written")
    for args in (
        ("plan", planned.job, "--out", folder / "out"),
        ("frontier", planned.job, "--out", folder / "frontier"),
        ("what-if", planned.job, "--set", "workload.prompts=32", "--out", folder / "what-if"),
        ("report", planned.plan, "--frontier-limit", "0", "-o", folder / "report.html"),
        ("trace", planned.plan, "-o", folder / "trace.json"),
        ("export", planned.plan, "--to", "verl", "--out", folder / "launch"),
    ):
        done = invoke(*args)
        assert done.exit_code == 0, done.output
    _run_of(load_job(planned.job), read_plan_file(planned.plan).plan, folder)
    _profile(folder / "profile")
    (folder / "checkpoints").mkdir()
    roles = {"actor": RoleFacts(num_ranks=0, counters={}, files={})}
    saved = Manifest(iteration=3, next_call=1, controls={}, batches_drawn=3, identity={}, layout="", roles=roles)
    commit(begin_unfinished(folder / "checkpoints", 3, roles), saved)
    return folder


def _run_of(job, plan, folder):
    """What ``validate`` and ``calibrate`` write of a run that took what its plan was priced."""
    predicted = simulate(plan, job.facts())
    measured = predicted.model_copy(update={"source": "measured"})
    (folder / "validate").mkdir()
    found = compare(predicted, predicted.iteration_s, [measured])
    write_validation(folder / "validate", found, predicted, Measured((measured,), {}, {}, 0.0, 0.0, "a CPU"), "0" * 64)
    layer = learn(log_of([measured] * 3, "a run"), plan, job.facts()).file
    (folder / "calibration.yaml").write_text(text_of(layer))


def _profile(folder):
    rows = {name: found[-40:] for name, found in operators().items()}
    write_device_file(folder, ABOUT, rows, "cpu")
    for name, found in rows.items():
        write_table(folder, name, found, ABOUT)
    write_engine_files(folder, load_device(folder), {})


@pytest.mark.parametrize("command", KINDS)
def test_every_file_has_a_schema_version_and_a_digest_of_its_inputs(written, command):
    for pattern in KINDS[command]:
        paths = sorted(written.glob(pattern))
        assert paths, pattern
        for path in paths:
            text = path.read_text()
            assert VERSION.search(text), path.name
            assert HASH.search(text), path.name


def test_no_file_is_left_out(written):
    listed = {path for patterns in KINDS.values() for pattern in patterns for path in written.glob(pattern)}
    found = {path for path in written.rglob("*") if path.is_file() and path.suffix != ".parquet"}
    assert {path.name for path in found - listed} <= {f"{name}.yaml" for name in operators()}  # like gemm.yaml


@pytest.mark.parametrize("name", READ)
def test_a_file_is_read_as_it_was_written_and_in_no_other_version(written, name, tmp_path):
    READ[name](written / name)
    path, document = _copied(written, name, tmp_path)
    path.write_text(_text(path, document | {"schema_version": 99}))
    with pytest.raises(FileFormatError, match=r"schema_version|schema version|digest"):
        READ[name](path)


@pytest.mark.parametrize("name", EDITED)
def test_an_edited_file_is_refused(written, name, tmp_path):
    key, told = EDITED[name]
    path, document = _copied(written, name, tmp_path)
    path.write_text(_text(path, document | {key: document[key] + 1}))
    with pytest.raises(FileFormatError, match=told):
        READ[name](path)
    if "manifest" not in name:  # whoever takes the digest out says that the file is their own
        path.write_text(_text(path, document | {key: document[key] + 1, "digest": ""}))
        READ[name](path)


def test_a_timeline_names_the_plan_that_it_is_of(written):
    plan, timeline = read_plan_file(written / "out/plan.json"), read_timeline(written / "out/timeline.json")
    assert timeline.computed_from == plan.digest


def test_shipped_sidecars_have_the_version_that_is_read():
    cards = [path for path in DATA.glob("*/*.yaml") if path.read_text().startswith("{")]
    assert len(cards) > 300
    assert all(json.loads(path.read_text())["schema_version"] == 1 for path in cards)


def _copied(written: Path, name: str, tmp_path: Path):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    document = yaml.safe_load((written / name).read_text()) if name.endswith(".yaml") else None
    return path, document or json.loads((written / name).read_text())


def _text(path: Path, document) -> str:
    return yaml.safe_dump(document) if path.suffix == ".yaml" else json.dumps(document)
