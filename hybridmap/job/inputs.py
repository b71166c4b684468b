"""The parts of a job that point elsewhere, made self-contained: model configs, histograms, device cards.

``base`` is the folder of the job file; without one (a job that was embedded in a plan) nothing is read from disk
but the catalogue and a device's own folder.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.models.catalogue import load_model, model_names
from profiles.models.hf_config import parse_config
from profiles.relative_paths import inside
from profiles.store import device_names, load_device
from profiles.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from hybridmap.job.schema import ClusterSection, HistogramSection, LognormalSection, RoleSection

MAX_HISTOGRAM_BYTES = 4 * MIB
BITS_PER_BYTE, BITS_PER_GBIT = 8, 1e9


def role_document(role: RoleSection, base: Path | None) -> dict[str, Any]:
    """A role with its config embedded, unless the catalogue knows the model by name."""
    shape = role.shape
    if isinstance(shape, str) and shape not in model_names():
        if base is None:
            raise UnknownNameError("model", shape, model_names())
        shape = _embedded_config(shape, base)
    return {"shape": shape, "precision": role.precision}


def _embedded_config(text: str, base: Path) -> dict[str, Any]:
    path = inside(base, text)
    name = load_model(text, base).name  # also says what is wrong with the file
    path = path / "config.json" if path.is_dir() else path
    config = dict(parse_config(path.read_bytes(), str(path)))
    try:
        json.dumps(config, allow_nan=False)
    except ValueError:
        raise FileFormatError(f"{path}: holds NaN or Infinity, which no config needs and JSON does not have") from None
    return {"config": config, "name": name}


def cluster_document(cluster: ClusterSection, base: Path | None) -> dict[str, Any]:
    """A cluster entry with the defaults of its device's card."""
    device = _device(cluster.device, base)
    spec = load_device(device).spec
    gpus_per_node = cluster.gpus_per_node or spec.gpus_per_node
    # A rack-scale fabric joins nodes; elsewhere NVLink ends with the node, however many GPUs of it are rented.
    domain = spec.nvlink_domain_gpus if spec.nvlink_domain_gpus > spec.gpus_per_node else gpus_per_node
    card_gbps = spec.inter_node_bytes_per_s_per_node * BITS_PER_BYTE / BITS_PER_GBIT
    return {
        "device": device,
        "nodes": cluster.nodes,
        "gpus_per_node": gpus_per_node,
        "inter_node_gbps": float(cluster.inter_node_gbps or card_gbps),
        "nvlink_domain_gpus": cluster.nvlink_domain_gpus or domain,
        **({"nodes_per_pod": cluster.nodes_per_pod} if cluster.nodes_per_pod else {}),
    }


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


def engine_document(text: str, base: Path | None) -> str:
    """An engine by name, or by the whole path of its file."""
    if not text.endswith(".yaml"):
        return text
    if base is not None:
        return str(inside(base, text).absolute())
    if not text.startswith("/"):
        raise InputError(f"engine file '{text}': a job that a plan embeds has whole paths alone")
    return text


def response_document(response: int | LognormalSection | HistogramSection, base: Path | None) -> Any:
    """Response lengths with a histogram's columns embedded."""
    if isinstance(response, int):
        return response
    document = response.model_dump()
    if isinstance(document.get("histogram"), str):
        if base is None:
            raise FileFormatError(f"the histogram {document['histogram']} is a path, its columns should be here")
        return {"histogram": _read_histogram(inside(base, document["histogram"]))}
    return document


def _read_histogram(path: Path) -> dict[str, list[float]]:
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


def _histogram(text: str, path: Path) -> dict[str, list[float]]:
    reader = csv.DictReader(io.StringIO(text))
    names = [name.strip() for name in reader.fieldnames or ()]
    if sorted(names) != ["count", "length"]:
        raise FileFormatError(f"{path}: line 1: expected the columns length,count, got {', '.join(names) or 'nothing'}")
    reader.fieldnames = names
    lengths: list[float] = []
    counts: list[float] = []
    for row in reader:
        try:
            lengths.append(int(row["length"]))
            counts.append(float(row["count"]))
        except (TypeError, ValueError):
            given = ",".join(str(row[name]) for name in names)
            raise FileFormatError(f"{path}: line {reader.line_num}: expected two numbers, got '{given}'") from None
    return {"lengths": lengths, "counts": counts}
