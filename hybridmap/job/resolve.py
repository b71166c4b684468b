"""A job made complete: roles in dataflow order, defaults of device cards, and the content of files in place of paths.

``base`` is the folder of the job file; without one (a job that was embedded in a plan) nothing is read from disk
but the catalogue and a device's own folder.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

from hybridmap.job.leaves import MOST_NUMBER, MOST_SAMPLES
from hybridmap.job.lengths import Histogram, HistogramSection
from hybridmap.job.places import at
from hybridmap.job.schema import EmbeddedConfig
from profiles.calibration import CalibrationFile, read_calibration
from profiles.engine_facts import default_engine
from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.models.catalogue import is_known, load_model, model_names
from profiles.models.hf_config import read_config
from profiles.models.hub_cache import cached_config
from profiles.relative_paths import inside
from profiles.store import device_names, load_device
from profiles.units import MIB
from simulator.plan.algorithms import algorithm_of
from simulator.plan.dataflow import build_dataflow

if TYPE_CHECKING:
    from pathlib import Path

    from hybridmap.job.choices import PinSection
    from hybridmap.job.job import Job
    from hybridmap.job.lengths import LognormalSection
    from hybridmap.job.schema import ClusterSection, RoleSection, WorkloadSection

MAX_HISTOGRAM_BYTES = 4 * MIB
BITS_PER_BYTE, BITS_PER_GBIT = 8, 1e9


def complete(job: Job, base: Path | None) -> Job:
    """The job in normal form; ``InputError`` for what does not exist or cannot be read, with its place in the job."""
    roles = build_dataflow(job.algorithm, tuple(job.models)).roles
    models = {}
    for role in roles:
        with at(f"models.{role}"):
            models[role] = _role(job.models[role], base)
    cluster = []
    for i, entry in enumerate(job.cluster):
        with at(f"cluster[{i}]"):
            cluster.append(_cluster(entry, base))
    return job.model_copy(
        update={
            "models": models,
            "workload": _workload(job, base),
            "cluster": cluster,
            "engines": job.engines.model_copy(
                update={
                    "training": _engine(job.engines.training or default_engine("training"), base),
                    "generation": _engine(job.engines.generation or default_engine("generation"), base),
                }
            ),
            "pin": _pin(job.pin, roles),
            "calibration": [_layer(layer, base) for layer in job.calibration],
        }
    )


def _role(role: RoleSection, base: Path | None) -> RoleSection:
    """A role with its config embedded, unless the catalogue knows the model by name or Hugging Face id."""
    shape = role.shape
    if isinstance(shape, EmbeddedConfig) or is_known(shape, base):
        return role
    if base is None:
        raise UnknownNameError("model", shape, model_names())
    return role.model_copy(update={"shape": _embedded_config(shape, base)})


def _embedded_config(text: str, base: Path) -> EmbeddedConfig:
    within = inside(base, text)  # before anything of it is read
    name = load_model(text, base).name  # also says what is wrong with the file
    cached = None if within.exists() else cached_config(text)
    config, path = read_config(cached or within)
    try:
        json.dumps(config, allow_nan=False)
    except ValueError:
        raise FileFormatError(f"{path}: holds NaN or Infinity, which no config needs and JSON does not have") from None
    return EmbeddedConfig(config=dict(config), name=name)


def _cluster(cluster: ClusterSection, base: Path | None) -> ClusterSection:
    """A cluster entry with the defaults of its device's card."""
    device = _device(cluster.device, base)
    spec = load_device(device).spec
    gpus_per_node = cluster.gpus_per_node or spec.gpus_per_node
    # A rack-scale fabric joins nodes; elsewhere NVLink ends with the node, however many GPUs of it are rented.
    domain = spec.nvlink_domain_gpus if spec.nvlink_domain_gpus > spec.gpus_per_node else gpus_per_node
    card_gbps = spec.inter_node_bytes_per_s_per_node * BITS_PER_BYTE / BITS_PER_GBIT
    return cluster.model_copy(
        update={
            "device": device,
            "gpus_per_node": gpus_per_node,
            "inter_node_gbps": float(cluster.inter_node_gbps or card_gbps),
            "nvlink_domain_gpus": cluster.nvlink_domain_gpus or domain,
        }
    )


def _device(text: str, base: Path | None) -> str:
    if text in device_names():
        return text
    try:
        folder = inside(base, text) if base is not None else None
        if folder is not None and folder.is_dir():
            return str(folder.resolve())
    except InputError:
        raise
    except (OSError, ValueError):  # a name too long, or with a null byte
        pass
    if base is None and text.startswith("/"):
        return text  # a device folder, as an earlier reading of the job resolved it
    raise UnknownNameError("device", text, device_names(), "(or give the path of a device folder)")


def _layer(layer: str | CalibrationFile, base: Path | None) -> CalibrationFile:
    """A calibration with its content in place of its path."""
    if isinstance(layer, CalibrationFile):
        return layer
    if base is None:
        raise FileFormatError(f"the calibration {layer} is a path, its content should be here")
    path = inside(base, layer)
    try:
        return read_calibration(path)
    except OSError as error:
        raise InputError(f"cannot read the calibration {path}: {error.strerror or error}") from None


def _engine(text: str, base: Path | None) -> str:
    """An engine by name, or by the whole path of its file."""
    if not text.endswith(".yaml"):
        return text
    if base is not None:
        return str(inside(base, text).absolute())
    if not text.startswith("/"):
        raise InputError(f"engine file '{text}': a job that a plan embeds has whole paths alone")
    return text


def _workload(job: Job, base: Path | None) -> WorkloadSection:
    work = job.workload
    if work.prompts * work.samples_per_prompt > MOST_SAMPLES:
        raise InputError(
            f"workload: {work.prompts:,} prompts x {work.samples_per_prompt:,} samples_per_prompt is more than "
            f"{MOST_SAMPLES:,} samples in one iteration"
        )
    if work.pretrain_update and not algorithm_of(job.algorithm).pretraining_loss:
        raise InputError(f"workload.pretrain_update is part of safe-rlhf; {job.algorithm} has no pretraining text")
    with at("workload.response_length"):
        response = _response(work.response_length, base)
    return work.model_copy(update={"response_length": response, "reward_s_per_sample": float(work.reward_s_per_sample)})


def _response(
    response: int | LognormalSection | HistogramSection, base: Path | None
) -> int | LognormalSection | HistogramSection:
    """Response lengths with a histogram's columns embedded."""
    if not isinstance(response, HistogramSection) or isinstance(response.histogram, Histogram):
        return response
    if base is None:
        raise FileFormatError(f"the histogram {response.histogram} is a path, its columns should be here")
    return HistogramSection(histogram=_read_histogram(inside(base, response.histogram)))


def _pin(pin: PinSection, roles: tuple[str, ...]) -> PinSection:
    """What was pinned, roles in dataflow order (unknown ones after them)."""
    ordered = [role for role in roles if role in pin.roles] + [role for role in pin.roles if role not in roles]
    fixed = {role: pin.roles[role] for role in ordered if pin.roles[role].model_dump()}
    return pin.model_validate({"share": pin.share, "spare_nodes": pin.spare_nodes or None, **fixed})


def _read_histogram(path: Path) -> Histogram:
    """Columns ``length`` and ``count`` of a CSV file with that header."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_HISTOGRAM_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the histogram {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_HISTOGRAM_BYTES:
        raise FileFormatError(f"{path}: larger than {MAX_HISTOGRAM_BYTES // MIB} MiB; give it in coarser steps")
    try:
        return _histogram(text, path)
    except csv.Error as error:
        raise FileFormatError(f"{path}: not CSV ({error})") from None


def _histogram(text: str, path: Path) -> Histogram:
    reader = csv.DictReader(io.StringIO(text))
    names = [name.strip() for name in reader.fieldnames or ()]
    if sorted(names) != ["count", "length"]:
        raise FileFormatError(f"{path}: line 1: expected the columns length,count, got {', '.join(names) or 'nothing'}")
    reader.fieldnames = names
    lengths: list[int] = []
    counts: list[float] = []
    for row in reader:
        try:
            lengths.append(int(row["length"]))
            counts.append(_finite(row["count"]))
        except (TypeError, ValueError):
            given = ",".join(str(row[name]) for name in names)
            raise FileFormatError(f"{path}: line {reader.line_num}: expected two numbers, got '{given}'") from None
    return Histogram(lengths=lengths, counts=counts)


def _finite(text: str) -> float:
    number = float(text)
    if not abs(number) <= MOST_NUMBER:
        raise ValueError(text)
    return number
