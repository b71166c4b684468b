"""Hands a file to the product, as far as the first command would go with what it accepted.

A reader raises ``HybridmapError`` to refuse. A value that passes a parser and breaks what comes next was not checked.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.fuzz import seeds
from benchmarks.fuzz.workplace import jobs, write_device
from profiles.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from pathlib import Path


def read_job(path: Path) -> object:
    """A job, and its normal form read again."""
    from hybridmap.job.load import job_from_document, load_job

    job = load_job(path)
    again = job_from_document(json.loads(json.dumps(job.document, allow_nan=False)))
    if again.document != job.document:
        raise AssertionError("the normal form of an accepted job is another job")
    return job


def read_plan(path: Path) -> object:
    """A plan file, simulated and written again."""
    from hybridmap.files.plan import read_plan, read_plan_file
    from hybridmap.job.load import job_from_document
    from hybridmap.json_text import to_json
    from simulator.play.simulate import simulate

    read_plan(path)
    file = read_plan_file(path)
    timeline = simulate(file.plan, job_from_document(file.job, f"{path}: job").facts())
    return to_json(timeline.model_dump(mode="json"))


def read_bare_plan(path: Path) -> object:
    """A plan without a job, as a run would take it."""
    from executor.controller.pools import Devices, require_supported
    from executor.recovery.scale_down import scale_down
    from hybridmap.files.plan import read_plan

    plan, _ = read_plan(path)
    require_supported(plan)
    return scale_down(plan, Devices(2))


def read_timeline(path: Path) -> object:
    """A timeline, drawn and written for Perfetto."""
    from hybridmap.files.timeline import read_any_timeline
    from hybridmap.files.trace import trace_document
    from hybridmap.json_text import to_json
    from hybridmap.report.gantt import gantt

    timeline, plan = read_any_timeline(path)
    to_json(gantt(timeline))
    return to_json(trace_document({"predicted": timeline}, plan))


def read_records(path: Path) -> object:
    """What frontier and what-if write, drawn again."""
    from hybridmap.answers.what_if import WhatIfFile
    from hybridmap.files.frontier import FrontierFile
    from hybridmap.files.plan import read_record
    from hybridmap.json_text import to_json
    from hybridmap.report import figures

    try:
        known = read_record(path, FrontierFile)
        return to_json(figures.frontier(known.points, 8, 1.0))
    except InputError:
        changed = read_record(path, WhatIfFile)
        return to_json(figures.what_if(changed))


def read_config(path: Path) -> object:
    """A model's config.json, as the catalogue reads it."""
    from profiles.models.hf_config import load_hf_config

    shape = load_hf_config(path)
    if not 0 < shape.num_params < 10**20:
        raise AssertionError(f"{shape.num_params} parameters")
    return shape


def read_engine_config(path: Path) -> object:
    """The same file as engines that run read it."""
    from executor.weights.architecture import read_architecture

    return read_architecture(path)


def read_weights(path: Path) -> object:
    """A safetensors file, every tensor of it."""
    import torch  # noqa: F401  # safetensors would import it with the first tensor: seconds of no input's

    from executor.weights.files import open_weights

    with open_weights(path) as opened:
        names = list(opened.keys())
        return [(opened.get_slice(name).get_shape(), opened.get_tensor(name)) for name in names]


def read_verl(path: Path) -> object:
    """A launch script or a config of verl, imported and checked."""
    from hybridmap.exports.imported import Given
    from hybridmap.exports.verl.import_run import import_verl
    from hybridmap.exports.verl.read import read_verl_config
    from simulator.feasibility import check_plan

    imported = import_verl(read_verl_config(path), Given("h100-80gb-sxm"))
    return check_plan(imported.plan, imported.job.facts())


def read_layer(path: Path) -> object:
    """A calibration, and a small job's price with it."""
    from hybridmap.job.load import job_from_document
    from profiles.calibration import read_calibration
    from simulator.calibration.factors import calibrated, layer_of
    from simulator.plan.plan import Plan
    from simulator.play.simulate import simulate

    file, planned = read_calibration(path), json.loads(seeds.plans()[1])
    facts = job_from_document(planned["job"]).facts()
    return simulate(Plan.model_validate(planned["plan"]), calibrated(facts, layer_of([file]))).iteration_s


def read_run_log(path: Path) -> object:
    """A run's log, which of its steps count, and the lengths that they speak of."""
    from hybridmap.calibration.lengths import learn_lengths
    from hybridmap.runlogs.read import read_log
    from hybridmap.runlogs.steady import steady

    return learn_lengths(steady(read_log(path)).steps, 1024)


def read_device(path: Path) -> object:
    """A device folder, of which one file is the input; the checksums in it are right, as a stranger's would be."""
    from profiles.errors import NoBasisError
    from profiles.store import load_device

    folder = path.parent / "device"
    shutil.rmtree(folder, ignore_errors=True)
    write_device(folder)
    shutil.copy(path, folder / path.name)
    if path.suffix == ".parquet":
        (folder / "gemm.yaml").write_text(yaml.safe_dump(_card(path)))
    device = load_device(folder)
    try:
        return device.gemm([1, 100, 10**6], 4096, 128)
    except NoBasisError:
        return device


def _card(table: Path) -> dict[str, Any]:
    """A sidecar that says of a table what is so, where that can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    card: dict[str, Any] = {"sha256": hashlib.sha256(table.read_bytes()).hexdigest(), "device_string": "mine"}
    try:
        schema, rows = pq.read_schema(table), pq.read_metadata(table).num_rows
        return {**card, "rows": rows, "units": dict.fromkeys(schema.names, "unit")}
    except (OSError, ValueError, pa.ArrowException):  # no parquet any more
        return card


def read_engine(path: Path) -> object:
    """An engine's constants, of one that trains or generates."""
    from profiles.engine_facts import load_generation_engine, load_training_engine

    try:
        return load_training_engine(str(path))
    except InputError:
        return load_generation_engine(str(path))


def read_histogram(path: Path) -> object:
    """Response lengths that a job names."""
    from hybridmap.job.load import load_job

    raw = yaml.safe_load(jobs()[0])
    raw["workload"]["response_length"] = {"histogram": path.name}
    job = path.parent / "histogram-job.yaml"
    job.write_text(yaml.safe_dump(raw))
    return load_job(job).facts().workload.response.sample(100)


def read_prompts(path: Path) -> object:
    """Prompts of a run."""
    from executor.rl.data import read_examples

    return read_examples(path)


def read_journal(path: Path) -> object:
    """What a stopped profile has measured so far."""
    from executor.profiling.journal import Journal

    journal = Journal(path, {"machine": "a"})
    return journal.of("gemm")


def read_manifest(path: Path) -> object:
    """A checkpoint's manifest beside the file that it should name."""
    from executor.checkpoint.manifest import read_checkpoint

    folder = path.parent / "iteration-00000012"
    (folder / "actor").mkdir(parents=True, exist_ok=True)
    (folder / "actor" / "a.safetensors").write_bytes(b"1234")
    shutil.copy(path, folder / "manifest.json")
    return read_checkpoint(folder)


def read_settings(path: Path) -> object:
    """A ``--set`` of a command, applied to a job."""
    from hybridmap.job.edit import parse_setting, with_settings
    from hybridmap.job.load import job_from_mapping

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileFormatError("no argument of a command") from None
    setting = parse_setting(text)
    raw = yaml.safe_load(jobs()[0])
    return job_from_mapping(with_settings(raw, {setting.path: setting.values[0]}), "job", path.parent)
