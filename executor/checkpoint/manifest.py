"""What a checkpoint says of itself, and whether that is true.

A manifest names every file with its size and digest. Only plain files in plain folders are read: a link may lead out
of the checkpoint, and a pipe has no end. Nothing here is unpickled and nothing imports torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from profiles.errors import FileFormatError

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
NAME = re.compile(r"iteration-(\d{8})")
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
        Iterations that are through; the next one has this number.
    batches_drawn
        The next batch of prompts; the next iteration's number, unless iterations drew several.
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
    batches_drawn: Count | None = None
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


def name_of(iteration: int) -> str:
    """The folder of a checkpoint."""
    return f"iteration-{iteration:08d}"


def digest_of(document: dict[str, Any]) -> str:
    """The digest of a manifest, of all else that it says."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a manifest and compare it with the files beside it, by name and size, and with the folder's own name.

    ``FileFormatError`` says what is wrong. Contents are compared by digest before they are read.
    """
    try:
        require_plain_folder(folder)
        manifest = _manifest_of(folder / MANIFEST)
        if folder.name != name_of(manifest.iteration):
            raise FileFormatError(
                f"{folder}: its manifest is of iteration {manifest.iteration}, whose folder is "
                f"{name_of(manifest.iteration)}: it was renamed or copied"
            )
        for role, facts in manifest.roles.items():
            _require_files(folder / role, facts)
    except OSError as error:
        raise FileFormatError(f"{error.filename or folder} cannot be read: {error.strerror or error}") from error
    return Checkpoint(folder, manifest)


def _manifest_of(path: Path) -> Manifest:
    try:
        with open_plain(path) as file:
            document = json.loads(file.read())
        given = document.pop("digest")
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise FileFormatError(f"{path}: schema version {version}, this version reads {SCHEMA_VERSION}")
        manifest = Manifest.model_validate(document)
    except FileNotFoundError:
        raise FileFormatError(f"{path} is missing; a checkpoint has a manifest") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise FileFormatError(f"{path}: {place}: {first['msg']}") from None
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: not the manifest of a checkpoint ({error})") from error
    if given != digest_of(document):
        raise FileFormatError(f"{path}: its digest is not that of its contents: the file was changed")
    return manifest


def _require_files(folder: Path, facts: RoleFacts) -> None:
    """The files of a role are those of the manifest: no more, no fewer, of its sizes."""
    require_plain_folder(folder)
    there = {entry.name: entry for entry in os.scandir(folder)}
    for name in sorted(there.keys() ^ facts.files.keys()):
        what = "is missing" if name in facts.files else "is not in the manifest"
        raise FileFormatError(f"{folder / name} {what}")
    for name, file in facts.files.items():
        entry = there[name]
        if not entry.is_file(follow_symlinks=False):
            raise FileFormatError(f"{folder / name} is no plain file")
        if (size := entry.stat().st_size) != file.num_bytes:
            raise FileFormatError(f"{folder / name} has {size:,} bytes, the manifest says {file.num_bytes:,}")


def require_plain_folder(path: Path) -> None:
    """Raise ``FileFormatError`` for a link or anything else that is no folder; ``OSError`` where nothing is."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise FileFormatError(f"{path} is no plain folder")


def open_plain(path: Path) -> BufferedReader:
    """Open a file to read; ``FileFormatError`` for a link, a pipe, a device or anything else that is no plain file."""
    if not stat.S_ISREG(os.lstat(path).st_mode):  # before it is opened: that alone may wait, or set a device going
        raise FileFormatError(f"{path} is no plain file")
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # if it is replaced meanwhile
    return os.fdopen(handle, "rb")


def facts_of(path: Path) -> FileFacts:
    """Size and digest of a file."""
    with open_plain(path) as file:
        return FileFacts(sha256=hashlib.file_digest(file, "sha256").hexdigest(), num_bytes=file.tell())


def damage_of(path: Path, facts: FileFacts) -> str:
    """What is wrong with a file whose contents are not those that were written; nothing where they are."""
    try:
        found = facts_of(path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    except FileFormatError as error:
        return str(error)
    if found == facts:
        return ""
    return f"{path} is damaged: SHA-256 {found.sha256[:12]}..., the manifest says {facts.sha256[:12]}..."
