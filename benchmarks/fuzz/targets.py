"""Everything of ours that reads files of others: where its inputs start from, how they are changed, who reads them.

A reader raises ``HybridmapError`` to refuse. It goes on with what it accepted as far as the first command would: a
value that passes a parser and breaks what comes next was not checked.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.fuzz.mutate import as_json, as_yaml, changed_bytes, changed_document
from benchmarks.fuzz.workplace import EXAMPLES, ROOT, jobs, write_device
from profiles.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

Reader = "Callable[[Path], object]"


@dataclass(frozen=True)
class Target:
    """One parser.

    Parameters
    ----------
    name, file_name
        What it is called here, and the name of its input file.
    make
        A changed input.
    read
        Hands a file to the product.
    """

    name: str
    file_name: str
    make: Callable[[Random], bytes]
    read: Callable[[Path], object]


def _job(path: Path) -> object:
    from hybridmap.config import job_from_document, load_job

    job = load_job(path)
    again = job_from_document(json.loads(json.dumps(dict(job.document), allow_nan=False)))
    if again != job:
        raise AssertionError("the normal form of an accepted job is another job")
    return job


def _plan(path: Path) -> object:
    from hybridmap.config import job_from_document
    from hybridmap.json_text import to_json
    from hybridmap.plan_file import read_plan, read_plan_file
    from simulator.simulate import simulate

    read_plan(path)
    file = read_plan_file(path)
    timeline = simulate(file.plan, job_from_document(file.job, f"{path}: job").facts())
    return to_json(timeline.model_dump(mode="json"))


def _bare_plan(path: Path) -> object:
    from executor.pools import require_supported
    from executor.scale_down import scale_down
    from hybridmap.plan_file import read_plan

    plan, _ = read_plan(path)
    require_supported(plan)
    return scale_down(plan, 2)


def _timeline(path: Path) -> object:
    from hybridmap.json_text import to_json
    from hybridmap.report_page import figures
    from hybridmap.timeline_file import read_any_timeline
    from hybridmap.trace_file import trace_document

    timeline, plan = read_any_timeline(path)
    to_json([figures.gantt(timeline), figures.memory(timeline)])
    return to_json(trace_document({"predicted": timeline}, plan))


def _records(path: Path) -> object:
    from hybridmap.frontier_file import FrontierFile
    from hybridmap.json_text import to_json
    from hybridmap.plan_file import read_record
    from hybridmap.report_page import figures
    from hybridmap.what_if_cases import WhatIfFile

    try:
        known = read_record(path, FrontierFile)
        return to_json(figures.frontier(known.points, 8, 1.0))
    except InputError:
        changed = read_record(path, WhatIfFile)
        return to_json(figures.what_if(changed))


def _config(path: Path) -> object:
    from profiles.hf_config import load_hf_config

    shape = load_hf_config(path)
    if not 0 < shape.num_params < 10**20:
        raise AssertionError(f"{shape.num_params} parameters")
    return shape


def _engine_config(path: Path) -> object:
    from executor.transition.architecture import read_architecture

    return read_architecture(path)


def _weights(path: Path) -> object:
    import torch  # noqa: F401  # safetensors would import it with the first tensor: seconds of no input's

    from executor.transition.weight_files import open_weights

    with open_weights(path) as opened:
        names = list(opened.keys())
        return [(opened.get_slice(name).get_shape(), opened.get_tensor(name)) for name in names]


def _verl(path: Path) -> object:
    from hybridmap.exports.verl_config import read_verl_config
    from hybridmap.exports.verl_import import Given, import_verl
    from simulator.feasibility import check_plan

    imported = import_verl(read_verl_config(path), Given("h100-80gb-sxm"))
    return check_plan(imported.plan, imported.job.facts())


def _device(path: Path) -> object:
    """A device folder, of which one file is the input; the checksums in it are right, as a stranger's would be."""
    from profiles.calibration import load_calibration
    from profiles.errors import NoBasisError
    from profiles.store import load_device

    folder = path.parent / "device"
    shutil.rmtree(folder, ignore_errors=True)
    write_device(folder)
    shutil.copy(path, folder / path.name)
    if path.suffix == ".parquet":
        (folder / "gemm.yaml").write_text(yaml.safe_dump(_card(path)))
    load_calibration(folder)
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


def _engine(path: Path) -> object:
    from profiles.engine_facts import load_generation_engine, load_training_engine

    try:
        return load_training_engine(str(path))
    except InputError:
        return load_generation_engine(str(path))


def _histogram(path: Path) -> object:
    from hybridmap.config import load_job

    raw = yaml.safe_load(jobs()[0])
    raw["workload"]["response_length"] = {"histogram": path.name}
    job = path.parent / "histogram-job.yaml"
    job.write_text(yaml.safe_dump(raw))
    return load_job(job).facts().workload.response.sample(100)


def _prompts(path: Path) -> object:
    from executor.data import read_examples

    return read_examples(path)


def _journal(path: Path) -> object:
    from executor.measure.journal import Journal

    journal = Journal(path, {"machine": "a"})
    return journal.of("gemm")


def _manifest(path: Path) -> object:
    from executor.checkpoint_files import read_checkpoint

    folder = path.parent / "iteration-00000012"
    (folder / "actor").mkdir(parents=True, exist_ok=True)
    (folder / "actor" / "a.safetensors").write_bytes(b"1234")
    shutil.copy(path, folder / "manifest.json")
    return read_checkpoint(folder)


def _settings(path: Path) -> object:
    from hybridmap.config import job_from_mapping
    from hybridmap.job_edit import parse_setting, with_settings

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileFormatError("no argument of a command") from None
    setting = parse_setting(text)
    raw = yaml.safe_load(jobs()[0])
    return job_from_mapping(with_settings(raw, {setting.path: setting.values[0]}), "job", path.parent)


def _of_text(
    seeds: Callable[[], Sequence[bytes]], to_text: Callable[[Any], bytes], parse: Callable[[bytes], Any]
) -> Any:
    """Inputs changed in their bytes, in their document, or in both."""

    @functools.cache
    def documents() -> list[Any]:
        return [parse(seed) for seed in seeds()]

    def make(random: Random) -> bytes:
        how = random.random()
        if how < 0.4:
            return changed_bytes(random, seeds())
        try:
            changed = to_text(changed_document(random, random.choice(documents())))
        except (ValueError, TypeError, OverflowError, yaml.YAMLError):  # a value that the format cannot say
            return changed_bytes(random, seeds())
        return changed if how < 0.9 else changed_bytes(random, [changed])

    return make


def _only_bytes(seeds: Callable[[], Sequence[bytes]]) -> Callable[[Random], bytes]:
    return lambda random: changed_bytes(random, seeds())


@functools.cache
def _plans() -> tuple[bytes, ...]:
    from hybridmap.config import job_from_mapping
    from hybridmap.plan_file import plan_file_of
    from mapper.search import find_plan

    out = []
    for algorithm, roles in (("ppo", ("actor", "critic", "reference", "reward")), ("grpo", ("actor", "reference"))):
        raw = {
            "algorithm": algorithm, "models": dict.fromkeys(roles, "llama-3.2-1b"),
            "workload": {"prompts": 64, "prompt_length": 256, "response_length": 256, "minibatches": 2},
            "cluster": [{"device": "h100-80gb-sxm", "nodes": 1}],
        }  # fmt: skip
        job = job_from_mapping(raw, "seed", ROOT)
        out.append(as_json(plan_file_of(job, find_plan(job.facts()), "any", False).model_dump(mode="json")))
    return tuple(out)


def _bare_plans() -> tuple[bytes, ...]:
    return tuple(file.read_bytes() for file in sorted((EXAMPLES / "run").glob("*-plan.json")))


@functools.cache
def _timelines() -> tuple[bytes, ...]:
    from hybridmap.config import job_from_document
    from simulator.plan import Plan
    from simulator.simulate import simulate

    out = []
    for raw in map(json.loads, _plans()):
        timeline = simulate(Plan.model_validate(raw["plan"]), job_from_document(raw["job"]).facts())
        out.append(as_json(timeline.model_dump(mode="json")))
    return tuple(out)


@functools.cache
def _written_records() -> tuple[bytes, ...]:
    raw = json.loads(_plans()[0])
    timeline = {"iteration_s": 2.0, "bound_s": 2.0, "tokens_per_s": 1e3, "status": "optimal", "num_gpus": 8}
    point = {
        **timeline, "up_to_gpus": 8, "gap": 0.0, "proven": True, "tokens_per_s_per_gpu": 125.0,
        "cost_per_iteration": None, "plan": raw["plan"],
    }  # fmt: skip
    case = {
        **timeline, "settings": {"workload.prompts": 1}, "placement": "{actor}", "plan": raw["plan"], "changes": "",
        "error": None, "fewest_gpus": None, "stages": {"generation": 2.0},
    }  # fmt: skip
    frontier = {"schema_version": 1, "hybridmap_version": "0", "job": raw["job"], "facts_hash": "", "seed": 0}
    what_if = {**frontier, "settings": {"workload.prompts": [1, 2]}, "base": case, "cases": [case]}
    return as_json({**frontier, "points": [point, point]}), as_json(what_if)


def _configs() -> tuple[bytes, ...]:
    folder = ROOT / "profiles" / "models"
    names = ("llama-3.1-8b", "qwen2.5-7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-1b-pt", "mixtral-8x7b-v0.1")
    return tuple((folder / f"{name}.json").read_bytes() for name in names)


SCRIPT = rb"""#!/bin/bash
set -x
NNODES=${NNODES:-2}
export ACTOR=Qwen/Qwen2.5-7B-Instruct
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo data.train_batch_size=1024 data.max_prompt_length=512 \
    data.max_response_length=1024 actor_rollout_ref.model.path=$ACTOR \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 trainer.n_gpus_per_node=8 trainer.nnodes=$NNODES "$@"
"""


@functools.cache
def _verl_scripts() -> tuple[bytes, ...]:
    fsdp = SCRIPT.replace(b"--config-name='ppo_megatron_trainer.yaml' ", b"").replace(b"actor.megatron.tensor", b"x.y")
    return SCRIPT, fsdp


@functools.cache
def _verl_documents() -> tuple[bytes, ...]:
    words = [word.decode() for word in SCRIPT.split() if b"=" in word and b"." in word and b"$" not in word]
    words += ["actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct", "trainer.nnodes=2"]
    nested: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        at = nested
        *parents, last = key.split(".")
        for part in parents:
            at = at.setdefault(part, {})
        at[last] = yaml.safe_load(value)
    return as_yaml(words[1:]), as_yaml(nested)


def _device_seeds(name: str) -> Callable[[], Sequence[bytes]]:
    @functools.cache
    def seeds() -> tuple[bytes, ...]:
        import tempfile
        from pathlib import Path as Folder

        with tempfile.TemporaryDirectory() as made:
            write_device(Folder(made) / "device")
            return ((Folder(made) / "device" / name).read_bytes(),)

    return seeds


@functools.cache
def _safetensors() -> tuple[bytes, ...]:
    import numpy as np
    from safetensors.numpy import save

    return (save({"a.weight": np.ones((4, 2), np.float32), "b": np.zeros(3, np.float16)}, {"format": "pt"}),)


def _engines() -> tuple[bytes, ...]:
    folder = ROOT / "profiles" / "engines"
    return tuple((folder / f"{name}.yaml").read_bytes() for name in ("vllm@0.32", "megatron-core@0.16", "fsdp@2.13"))


CALIBRATION = {
    "device": "d", "job": "j", "command": "c", "date": "2026-01-01",
    "corrections": [{"call": "update_actor", "factor": 1.1, "measured_s": 1.0, "predicted_s": 0.9, "iterations": 5,
                     "spread": 0.1, "error_before": 0.1, "error_after": 0.01}],
}  # fmt: skip
MANIFEST = {
    "schema_version": 1, "iteration": 12, "next_call": 100, "controls": {"kl": 0.1}, "ahead": 0,
    "identity": {"algorithm": "ppo", "seed": 1}, "layout": "{actor}",
    "roles": {"actor": {"num_ranks": 1, "counters": {"steps": 12}, "files": {
        "a.safetensors": {"num_bytes": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}}}},
}  # fmt: skip
HISTOGRAMS = (b"length,count\n16,4\n64,10\n512,1\n", b"count,length\r\n1,2\r\n3,4\r\n")
PROMPTS = (b'{"prompt": "12=", "answer": "12"}\n{"prompt": "3+4="}\n', b'{"prompt": "\\u00e9", "answer": 3}\n')
JOURNAL = (
    b'{"kind": "hybridmap-profile-journal", "machine": "a"}\n'
    b'{"table": "gemm", "key": {"m": 1, "n": 2}, "result": {"latency_s": 1e-6, "error": ""}}\n'
    b'{"table": "copy", "key": {"kind": "x"}, "result": {"latency_s": null, "error": "no"}}\n',
)
SETTINGS = (b"workload.prompts=256,512", b"cluster.0.nodes=4", b"pin={spare_nodes: 1}",
            b"models.actor={shape: llama-3.2-1b, precision: fp8}",
            b"workload.response_length={distribution: lognormal, mean: 5, max: 9}")  # fmt: skip


def _signed(document: Any) -> bytes:
    """A manifest whose digest is right, as a stranger's would be."""
    if not isinstance(document, dict):
        return as_json(document)
    plain = json.loads(as_json(document))
    return as_json({**plain, "digest": hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()})


def _unsigned(seed: bytes) -> Any:
    return {key: value for key, value in json.loads(seed).items() if key != "digest"}


def _lines(seed: bytes) -> Any:
    return [json.loads(line) for line in seed.splitlines()]


def _as_lines(document: Any) -> bytes:
    return b"\n".join(map(as_json, document)) + b"\n" if isinstance(document, list) else as_json(document)


def _cells(random: Random) -> bytes:
    from benchmarks.fuzz.tables import changed_table

    return changed_table(random, _device_seeds("gemm.parquet")()[0])


_YAML, _JSON, _LINES = (as_yaml, yaml.safe_load), (as_json, json.loads), (_as_lines, _lines)

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("job", "job.yaml", _of_text(jobs, *_YAML), _job),
        Target("plan", "plan.json", _of_text(_plans, *_JSON), _plan),
        Target("bare-plan", "bare-plan.json", _of_text(_bare_plans, *_JSON), _bare_plan),
        Target("timeline", "timeline.json", _of_text(_timelines, *_JSON), _timeline),
        Target("records", "frontier.json", _of_text(_written_records, *_JSON), _records),
        Target("config", "config.json", _of_text(_configs, *_JSON), _config),
        Target("engine-config", "engine-config.json", _of_text(_configs, *_JSON), _engine_config),
        Target("verl-script", "run.sh", _only_bytes(_verl_scripts), _verl),
        Target("verl-yaml", "verl.yaml", _of_text(_verl_documents, *_YAML), _verl),
        Target("device", "device.yaml", _of_text(_device_seeds("device.yaml"), *_YAML), _device),
        Target("sidecar", "gemm.yaml", _of_text(_device_seeds("gemm.yaml"), *_YAML), _device),
        Target("table-bytes", "gemm.parquet", _only_bytes(_device_seeds("gemm.parquet")), _device),
        Target("table", "gemm.parquet", _cells, _device),
        Target("calibration", "calibration.yaml", _of_text(lambda: (as_yaml(CALIBRATION),), *_YAML), _device),
        Target("engine", "engine.yaml", _of_text(_engines, *_YAML), _engine),
        Target("histogram", "histogram.csv", _only_bytes(lambda: HISTOGRAMS), _histogram),
        Target("prompts", "rows.jsonl", _of_text(lambda: PROMPTS, *_LINES), _prompts),
        Target("journal", "journal.jsonl", _of_text(lambda: JOURNAL, *_LINES), _journal),
        Target("manifest", "manifest.json", _of_text(lambda: (_signed(MANIFEST),), _signed, _unsigned), _manifest),
        Target("weights", "model.safetensors", _only_bytes(_safetensors), _weights),
        Target("settings", "setting.txt", _only_bytes(lambda: SETTINGS), _settings),
    )
}
"""By name. Every one of them reads one file; the workplace has what that file may name."""


@functools.cache
def good_inputs() -> dict[str, bytes]:
    """A file as it should be for each name that a command line may give."""
    return {
        "plan.json": _plans()[0], "timeline.json": _timelines()[0], "frontier.json": _written_records()[0],
        "config.json": _configs()[0], "run.sh": SCRIPT,
    }  # fmt: skip
