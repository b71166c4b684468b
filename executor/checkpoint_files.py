"""Checkpoints as folders that are whole or not there.

    DIR/iteration-00000012/manifest.json          what is here: sizes, digests, counters; written last
                          /actor/*.safetensors    the shards of a role, in DCP's safetensors form
    DIR/.iteration-00000014.3f9a01c2.partial/     being written; or what a killed run left
    DIR/.iteration-00000008.removed/              being deleted

A checkpoint is written aside, every file and folder is synced, and one rename makes it visible. No pointer says which
one is the newest: whoever asks reads the manifests. Nothing here is pickled and nothing imports torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from profiles.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"iteration-(\d{8})")
Count = Annotated[int, Field(ge=0)]
PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
"""A name that stays in its folder."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FileFacts(_Part):
    """Size and SHA-256 of a file."""

    num_bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RoleFacts(_Part):
    """What a role saved: its files by name, and counters that all of its ranks agree on (optimizer steps, updates)."""

    num_ranks: Count
    counters: dict[str, int]
    files: dict[PlainName, FileFacts]


class Manifest(_Part):
    """A checkpoint's contents.

    Parameters
    ----------
    iteration
        Iterations that are through; the next one has this number, so it is the position in the data, too.
    next_call
        The next number in the controller's call order.
    controls
        What advantages are steered by: KL coefficient, cost multiplier.
    ahead
        How many iterations generation was ahead of training; their responses are in the files of ``generated``.
    identity
        What must be the same for the run to be the same: algorithm, workload, learning rules, seed, data, weights.
    layout
        The plan's placement and degrees in words; another one may load the checkpoint.
    """

    schema_version: Literal[1] = 1
    iteration: Count
    next_call: Count
    controls: dict[str, float]
    ahead: Count = 0
    identity: dict[str, Any]
    layout: str
    roles: dict[PlainName, RoleFacts]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    folder: Path
    manifest: Manifest

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(file.num_bytes for role in self.manifest.roles.values() for file in role.files.values())


def begin_aside(root: Path, iteration: int, roles: Iterable[str]) -> Path:
    """An empty folder beside the checkpoints, with one inside for each role; ranks write there.

    Never the same one twice: a rank that was given up may still be writing into an older one.
    """
    aside = root / f".{_name(iteration)}.{uuid.uuid4().hex[:8]}.partial"
    for role in roles:
        (aside / role).mkdir(parents=True)
    return aside


def commit(aside: Path, manifest: Manifest) -> Checkpoint:
    """Make what lies in ``aside`` a checkpoint. Every file in it must be synced already."""
    document = manifest.model_dump(mode="json")
    text = json.dumps(document | {"digest": _digest(document)}, indent=1)
    with open(aside / MANIFEST, "x") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    for role in manifest.roles:
        sync_folder(aside / role)
    sync_folder(aside)
    folder = aside.parent / _name(manifest.iteration)
    if folder.exists():  # damaged, else this run would not have begun
        _remove(folder)
    os.rename(aside, folder)
    sync_folder(aside.parent)
    return Checkpoint(folder, manifest)


def checkpoints(root: Path) -> list[Checkpoint]:
    """Every checkpoint in ``root`` that is complete, by iteration; damaged ones are left out."""
    found = []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if _NAME.fullmatch(folder.name):
            try:
                found.append(read_checkpoint(folder))
            except InputError:
                continue
    return found


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a manifest and compare it with the files beside it, by name and size.

    ``FileFormatError`` says what is wrong. Contents are compared by digest when they are read.
    """
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text())
        given = document.pop("digest")
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise FileFormatError(f"{path}: schema version {version}, this version reads {SCHEMA_VERSION}")
        manifest = Manifest.model_validate(document)
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror or error}; a checkpoint has a manifest") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise FileFormatError(f"{path}: {place}: {first['msg']}") from None
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: not the manifest of a checkpoint ({error})") from error
    if given != _digest(document):
        raise FileFormatError(f"{path}: its digest is not that of its contents: the file was changed")
    for role, facts in manifest.roles.items():
        _require_files(folder / role, facts)
    return Checkpoint(folder, manifest)


def _require_files(folder: Path, facts: RoleFacts) -> None:
    """The files of a role are those of the manifest: no more, no fewer, of its sizes."""
    there = {entry.name: entry for entry in os.scandir(folder)} if folder.is_dir() else {}
    for name in sorted(there.keys() ^ facts.files.keys()):
        what = "is missing" if name in facts.files else "is not in the manifest"
        raise FileFormatError(f"{folder / name} {what}")
    for name, file in facts.files.items():
        entry = there[name]
        if not entry.is_file(follow_symlinks=False):
            raise FileFormatError(f"{folder / name} is no plain file")
        if (size := entry.stat().st_size) != file.num_bytes:
            raise FileFormatError(f"{folder / name} has {size:,} bytes, the manifest says {file.num_bytes:,}")


def require_digest(path: Path, facts: FileFacts) -> None:
    """Raise ``FileFormatError`` where a file's contents are not those that were written."""
    if (found := facts_of(path)) != facts:
        raise FileFormatError(
            f"{path} is damaged: SHA-256 {found.sha256[:12]}..., the manifest says {facts.sha256[:12]}...; "
            "an older checkpoint of the run may be whole"
        )


def facts_of(path: Path) -> FileFacts:
    """Size and digest of a file."""
    with open(path, "rb") as file:
        return FileFacts(sha256=hashlib.file_digest(file, "sha256").hexdigest(), num_bytes=file.tell())


def prune(root: Path, keep: int) -> None:
    """Delete all checkpoints but the newest ``keep``."""
    for checkpoint in checkpoints(root)[:-keep]:
        _remove(checkpoint.folder)


def clean(root: Path) -> None:
    """Delete what killed runs left half written or half deleted."""
    for kind in ("partial", "removed"):
        for folder in root.glob(f".iteration-*.{kind}"):
            shutil.rmtree(folder, ignore_errors=True)  # what somebody still writes into goes the next time


def sync_file(path: Path) -> None:
    """Wait until a file's contents are on disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until a folder's names are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    """Delete a checkpoint: first out of sight, so that nobody sees half of it."""
    gone = folder.parent / f".{folder.name}.removed"
    if gone.exists():
        shutil.rmtree(gone)
    os.rename(folder, gone)
    shutil.rmtree(gone)


def _name(iteration: int) -> str:
    return f"iteration-{iteration:08d}"


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
