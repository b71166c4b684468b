"""Everything of ours that reads files of others: how its inputs are made, and who reads them."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.fuzz import readers, seeds
from benchmarks.fuzz.grown import SEARCH_LIMIT_S, grown_job, read_to_plan
from benchmarks.fuzz.mutate import as_json, as_yaml, changed_bytes, changed_document, grown_script
from benchmarks.fuzz.outcome import LIMIT_S
from benchmarks.fuzz.workplace import jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random


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
    limit_s
        Longest time that an input may take.
    """

    name: str
    file_name: str
    make: Callable[[Random], bytes]
    read: Callable[[Path], object]
    limit_s: float = LIMIT_S


def _of_text(
    given: Callable[[], Sequence[bytes]], to_text: Callable[[Any], bytes], parse: Callable[[bytes], Any]
) -> Any:
    """Inputs changed in their bytes, in their document, or in both."""

    @functools.cache
    def documents() -> list[Any]:
        return [parse(seed) for seed in given()]

    def make(random: Random) -> bytes:
        how = random.random()
        if how < 0.4:
            return changed_bytes(random, given())
        try:
            changed = to_text(changed_document(random, random.choice(documents())))
        except (ValueError, TypeError, OverflowError, yaml.YAMLError):  # a value that the format cannot say
            return changed_bytes(random, given())
        return changed if how < 0.9 else changed_bytes(random, [changed])

    return make


def _only_bytes(given: Callable[[], Sequence[bytes]]) -> Callable[[Random], bytes]:
    return lambda random: changed_bytes(random, given())


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

    return changed_table(random, seeds.device_files("gemm.parquet")()[0])


_YAML, _JSON, _LINES = (as_yaml, yaml.safe_load), (as_json, json.loads), (_as_lines, _lines)

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("job", "job.yaml", _of_text(jobs, *_YAML), readers.read_job),
        Target("grown-job", "grown.yaml", grown_job, read_to_plan, limit_s=SEARCH_LIMIT_S),
        Target("plan", "plan.json", _of_text(seeds.plans, *_JSON), readers.read_plan),
        Target("bare-plan", "bare-plan.json", _of_text(seeds.bare_plans, *_JSON), readers.read_bare_plan),
        Target("timeline", "timeline.json", _of_text(seeds.timelines, *_JSON), readers.read_timeline),
        Target("records", "frontier.json", _of_text(seeds.written_records, *_JSON), readers.read_records),
        Target("config", "config.json", _of_text(seeds.configs, *_JSON), readers.read_config),
        Target("engine-config", "engine-config.json", _of_text(seeds.configs, *_JSON), readers.read_engine_config),
        Target("verl-script", "run.sh", lambda random: grown_script(random, seeds.verl_scripts()), readers.read_verl),
        Target("verl-yaml", "verl.yaml", _of_text(seeds.verl_documents, *_YAML), readers.read_verl),
        Target("device", "device.yaml", _of_text(seeds.device_files("device.yaml"), *_YAML), readers.read_device),
        Target("sidecar", "gemm.yaml", _of_text(seeds.device_files("gemm.yaml"), *_YAML), readers.read_device),
        Target("table-bytes", "gemm.parquet", _only_bytes(seeds.device_files("gemm.parquet")), readers.read_device),
        Target("table", "gemm.parquet", _cells, readers.read_device),
        Target(
            "calibration",
            "layer.yaml",
            _of_text(lambda: (as_yaml(seeds.CALIBRATION),), *_YAML),
            readers.read_layer,
        ),
        Target("run-log", "train.log", _only_bytes(lambda: seeds.RUN_LOGS), readers.read_run_log),
        Target("run-table", "history.csv", _only_bytes(lambda: seeds.RUN_TABLES), readers.read_run_log),
        Target("engine", "engine.yaml", _of_text(seeds.engines, *_YAML), readers.read_engine),
        Target("histogram", "histogram.csv", _only_bytes(lambda: seeds.HISTOGRAMS), readers.read_histogram),
        Target("prompts", "rows.jsonl", _of_text(lambda: seeds.PROMPTS, *_LINES), readers.read_prompts),
        Target("journal", "journal.jsonl", _of_text(lambda: seeds.JOURNAL, *_LINES), readers.read_journal),
        Target(
            "manifest",
            "manifest.json",
            _of_text(lambda: (_signed(seeds.MANIFEST),), _signed, _unsigned),
            readers.read_manifest,
        ),
        Target("weights", "model.safetensors", _only_bytes(seeds.weights), readers.read_weights),
        Target("settings", "setting.txt", _only_bytes(lambda: seeds.SETTINGS), readers.read_settings),
    )
}
"""By name. Every one of them reads one file; the workplace has what that file may name."""
