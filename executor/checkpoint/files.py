"""Checkpoints as folders that are whole or not there.

    DIR/iteration-00000012/manifest.json          what is here: sizes, digests, counters; written last
                          /actor/*.safetensors    the shards of a role, in DCP's safetensors form
    DIR/.iteration-00000014.3f9a01c2.partial/     being written; or what a killed run left
    DIR/.iteration-00000008.removed/              being deleted

A checkpoint is written under another name, every file and folder is synced, and one rename makes it visible. No
pointer says which one is the newest: whoever asks reads the manifests (``checkpoint.manifest``).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.checkpoint.manifest import MANIFEST, NAME, Checkpoint, digest_of, name_of, read_checkpoint
from profiles.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from executor.checkpoint.manifest import Manifest


KEPT = "those before it are kept, and --resume continues from the newest"
"""What to say of checkpoints where one could not be saved."""


@dataclass(frozen=True)
class Damaged:
    """A folder that has the name of a checkpoint and is none."""

    folder: Path
    reason: str


@contextmanager
def os_errors_as(what: str, then: str = "") -> Iterator[None]:
    """Whatever the file system has against what is done in the block becomes one ``InputError``.

    ``what`` could not be done; ``then`` is the next step.
    """
    try:
        yield
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        raise InputError(f"{what}: {error.strerror or error}{place}{then and '; ' + then}") from error


def prepare(root: Path) -> None:
    """Make the folder that checkpoints go into, clean it, and see that they can; ``InputError`` where they cannot."""
    with os_errors_as(f"{root}: checkpoints cannot be saved here", "run.checkpoint.dir (or --out) names another place"):
        root.mkdir(parents=True, exist_ok=True)
        clean(root)
        with tempfile.TemporaryDirectory(dir=root, prefix=".iteration-", suffix=".partial"):
            pass


def begin_unfinished(root: Path, iteration: int, roles: Iterable[str]) -> Path:
    """An empty folder beside the checkpoints, with one inside for each role; ranks write there.

    Never the same one twice: a rank that was given up may still be writing into an older one.
    """
    unfinished = root / f".{name_of(iteration)}.{uuid.uuid4().hex[:8]}.partial"
    for role in roles:
        (unfinished / role).mkdir(parents=True)
    return unfinished


def commit(unfinished: Path, manifest: Manifest) -> Checkpoint:
    """Make what lies in ``unfinished`` a checkpoint. Every file in it must be synced already."""
    document = manifest.model_dump(mode="json")
    text = json.dumps(document | {"digest": digest_of(document)}, indent=1)
    with open(unfinished / MANIFEST, "x") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    for role in manifest.roles:
        sync_folder(unfinished / role)
    sync_folder(unfinished)
    folder = unfinished.parent / name_of(manifest.iteration)
    if os.path.lexists(folder):  # damaged, else this run would not have begun
        _remove(folder)
    os.rename(unfinished, folder)
    sync_folder(unfinished.parent)
    return Checkpoint(folder, manifest)


def survey(root: Path) -> tuple[Checkpoint | Damaged, ...]:
    """Every folder in ``root`` that has the name of a checkpoint, newest first; digests of shards are not compared."""
    found: list[Checkpoint | Damaged] = []
    with os_errors_as(f"{root}: the checkpoints here cannot be read"):
        names = os.listdir(root) if root.is_dir() else []
    for name in sorted(names, reverse=True):
        if NAME.fullmatch(name):
            try:
                found.append(read_checkpoint(root / name))
            except FileFormatError as error:
                found.append(Damaged(root / name, str(error)))
    return tuple(found)


def checkpoints(root: Path) -> list[Checkpoint]:
    """Every checkpoint in ``root`` that is complete, by iteration; damaged ones are left out."""
    return [found for found in reversed(survey(root)) if isinstance(found, Checkpoint)]


def prune(root: Path, keep: int, iteration: int, damaged: Collection[Path] = ()) -> None:
    """Delete all checkpoints up to ``iteration`` but the newest ``keep``; ``damaged`` ones go, and count as none.

    Those beyond are damaged, else the run that saves would not have begun before them. They stay until its iterations
    come to them.
    """
    behind = [found for found in checkpoints(root) if found.manifest.iteration <= iteration]
    whole = [found for found in behind if found.folder not in damaged]
    for found in behind:
        if found not in whole[-keep:]:
            _remove(found.folder)


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
    if os.path.lexists(gone):
        _delete(gone)
    os.rename(folder, gone)
    _delete(gone)


def _delete(path: Path) -> None:
    """Delete a tree, or what somebody put in its place: what a link leads to is not ours."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)
