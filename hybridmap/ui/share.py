"""A job in a link, and a job from pasted text."""

from __future__ import annotations

import base64
import binascii
import json
import re
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.job.load import job_from_document, job_from_mapping
from hybridmap.json_text import to_json
from hybridmap.ui.form import document_of, form_of
from profiles.errors import HybridmapError, InputError
from profiles.yaml_text import parse_yaml

if TYPE_CHECKING:
    from hybridmap.ui.form import Form

MOST_TEXT = 400_000
"""Characters of pasted text, and bytes of a link's job when it is unpacked; a message of the page holds 1,000,000."""


def link_of(form: Form) -> str:
    """The job of a form in letters that a link may hold; whatever it says, it needs no server to keep it."""
    return base64.urlsafe_b64encode(zlib.compress(to_json(document_of(form)).encode(), 9)).decode("ascii").rstrip("=")


def form_of_link(text: str) -> Form:
    """The form that a link stands for; ``InputError`` if it is none."""
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacked = zlib.decompressobj().decompress(packed, MOST_TEXT)
        document: dict[str, Any] = json.loads(unpacked)
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        raise InputError("the link holds no job: it was cut, or changed") from None
    _require_no_paths(document)
    return form_of(job_from_document(document, "the link").document)


def form_of_text(text: str, form: Form) -> tuple[Form, str]:
    """A form from a job file, a verl script or overrides, or a run's log, and in words what was read.

    A script takes its GPUs from ``form``; a log gives ``form`` its mean response.
    """
    if len(text) > MOST_TEXT:
        raise InputError(f"more than {MOST_TEXT:,} characters; paste a job file, a script or the last lines of a log")
    errors = []
    for read, what in ((_job, "a job file"), (_script, "a verl run"), (_log, "a log: the mean response")):
        try:
            return read(text, form), f"read as {what}"
        except HybridmapError as error:
            errors.append(f"as {what}: {_TEMPORARY.sub('', str(error).splitlines()[0])}")
    raise InputError("this is none of what is read here; " + "; ".join(errors))


def _job(text: str, form: Form) -> Form:
    raw = parse_yaml(text, "the text")
    if not isinstance(raw, dict) or "algorithm" not in raw:
        raise InputError("the text names no algorithm")
    _require_no_paths(raw)
    return form_of(job_from_mapping(raw, "the text", Path()).document)


def _require_no_paths(document: object) -> None:
    """A link and pasted text come from anybody: they name models and devices, and no files of this machine."""
    if isinstance(document, dict | list):
        for inner in document.values() if isinstance(document, dict) else document:
            _require_no_paths(inner)
    elif isinstance(document, str) and (document.startswith(_PATHS) or document.endswith((".json", ".yaml", ".csv"))):
        raise InputError(f"{document!r} is a file; here a job names models and devices only")


_TEMPORARY = re.compile(r"\S*/(?=(?:overrides\.yaml|run\.\w+))")
"""Where pasted text lies while it is read: nothing of the user's."""
_PATHS = ("/", ".", "~", "\\")


def _script(text: str, form: Form) -> Form:
    from hybridmap.exports.imported import Given
    from hybridmap.exports.verl.import_run import import_verl
    from hybridmap.exports.verl.read import read_verl_config

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("run.sh" if "main_ppo" in text else "overrides.yaml")
        path.write_text(text, encoding="utf-8")
        return form_of(import_verl(read_verl_config(path, {}), Given(form.device)).job.document)


def _log(text: str, form: Form) -> Form:
    from hybridmap.runlogs.read import read_log

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("run.jsonl" if text.lstrip().startswith("{") else "run.log")
        path.write_text(text, encoding="utf-8")
        mean = read_log(path).mean_lengths().response_mean
    if mean is None:
        raise InputError("it says nothing of response lengths")
    return replace(form, mean_response_length=max(1, round(mean)))
