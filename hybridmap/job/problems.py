"""What is wrong with a job file, one line per problem: the place, what was given, what is expected."""

from __future__ import annotations

import datetime
import difflib
import re
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from executor.run_config import parse_run
from hybridmap.job.choices import PinSection, RolePin
from hybridmap.job.job import Job
from hybridmap.job.leaves import EXPECTED, Section
from hybridmap.job.lengths import KINDS
from profiles.errors import FileFormatError, InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic_core import ErrorDetails

MOST_LINES = 20

WRITTEN = {
    (
        "plan",
        "job",
    ): "a plan, which simulate, explain, report, trace and export take; give the JOB.yaml that it was made from",
    ("pools", "roles"): "a bare plan, which run takes with --plan; give the JOB.yaml that it is for",
    ("spans", "stages"): "a timeline, which report and trace take with --measured; give the JOB.yaml of its run",
    ("points", "job"): "a frontier, which report takes with --frontier; give the JOB.yaml that it was found for",
    ("cases", "job"): "the cases of a what-if, which report takes with --what-if; give the JOB.yaml that they change",
}
"""Files that our commands write, by keys that tell them apart."""


class UnknownKeyError(UnknownNameError):
    """A key that the job file does not have, with its place and the nearest key that it has."""

    def __init__(self, key: str, place: str, known: tuple[str, ...]) -> None:
        self.kind, self.name, self.known = "key", key, sorted(known)
        InputError.__init__(self, _unknown_key(key, place, known))


def parse_job(raw: object, source: str, base: Path | None) -> Job:
    """Check ``raw`` against the schema: the job as it was written. Paths in its run section start from ``base``.

    Raises
    ------
    FileFormatError
        Not a mapping, or values of the wrong type; ``UnknownKeyError`` if the one problem is an unknown key.
    InputError
        The run section is none.
    """
    if not isinstance(raw, dict):
        given = "is empty" if raw is None else f"holds {described(raw)}"
        raise FileFormatError(f"{source} {given}; a job is a mapping with algorithm, models, workload and cluster")
    if (kind := _what_we_wrote(raw)) is not None:
        raise FileFormatError(f"{source} is no job but {kind}")
    sections = dict(raw)
    run = sections.pop("run", None)  # the executor reads its own section
    try:
        job = Job.model_validate(sections)
    except ValidationError as error:
        raise _refusal(error, source) from None
    return job if run is None else job.model_copy(update={"run": parse_run(run, f"{source}: run", base)})


def _what_we_wrote(raw: dict[Any, Any]) -> str | None:
    """What a file of another kind that one of our commands wrote is, and who takes it; ``None`` for any other."""
    return next((kind for keys, kind in WRITTEN.items() if set(keys) <= set(raw) and "workload" not in raw), None)


def described(value: object) -> str:
    """A value in a few words, whatever its kind and size."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a yes/no value)"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        shown = "".join(c if c.isprintable() else "?" for c in value[:40])
        return f"'{shown}{'...' if len(value) > 40 else ''}'"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, datetime.date):
        return f"the date {value}"
    return "a mapping" if isinstance(value, dict) else f"a {type(value).__name__}"


def _refusal(error: ValidationError, source: str) -> InputError:
    details = error.errors(include_url=False)
    unknown = [d for d in details if d["type"] == "extra_forbidden"]
    if len(details) == 1 and unknown:
        refused = _as_unknown_key(details[0])
        refused.args = (f"{source}: {refused}",)
        return refused
    meant = {name for d in unknown for name in _nearest(_as_unknown_key(d))}
    # A key that is only misspelt is not missing too.
    lines = [_line(d) for d in details if not (d["type"] == "missing" and str(d["loc"][-1]) in meant)]
    lines = sorted(set(lines), key=lines.index)
    if len(lines) == 1:
        return FileFormatError(f"{source}: {lines[0]}")
    more = [f"and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return FileFormatError("\n  ".join([f"{source} has {len(lines)} problems:", *lines[:MOST_LINES], *more]))


def _line(detail: ErrorDetails) -> str:
    place = _place(detail["loc"])
    kind = detail["type"]
    if not place:  # pydantic has no place for a key that it cannot read
        return f"a key: {detail['msg']}"
    if kind == "extra_forbidden":
        return str(_as_unknown_key(detail))
    if kind == "missing":
        return f"{place} is missing"
    expected = _expected(detail)
    if detail["loc"][-1] == "[key]":
        return f"{_place(detail['loc'][:-2])}: got {described(detail['input'])} as a key, expected {expected}"
    return f"{place}: got {described(detail['input'])}, expected {expected}"


def _expected(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == EXPECTED:
        return detail["msg"]
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if kind == "too_short":
        return "an entry with device and nodes for each kind of GPU"
    return "a list of entries that each begin with '-'" if kind == "list_type" else "a mapping"


def _as_unknown_key(detail: ErrorDetails) -> UnknownKeyError:
    *parents, key = detail["loc"]
    return UnknownKeyError(described(str(key)).strip("'"), _place(tuple(parents)), _keys_at(tuple(parents)))


def _keys_at(place: tuple[Any, ...]) -> tuple[str, ...]:
    """The keys of the section at ``place``, as pydantic reports places."""
    sections: list[type[Section]] = [Job]
    for part in place:
        below = [s for section in sections for s in _sections_below(section, part)]
        sections = below or sections  # the name of a role, a position, the kind of a response length
    return tuple(key for section in sections for key in section.model_fields)


def _sections_below(section: type[Section], key: Any) -> list[type[Section]]:
    if section is PinSection and key not in PinSection.model_fields:
        return [RolePin]
    field = section.model_fields.get(key)
    return [] if field is None else list(_sections_in(field.annotation))


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def _unknown_key(key: str, place: str, known: tuple[str, ...]) -> str:
    where = f" in {place}" if place else ""
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"unknown key '{key}'{where}; {hint}"


def _nearest(error: UnknownKeyError) -> list[str]:
    return difflib.get_close_matches(error.name.lower(), error.known, n=1, cutoff=0.6)


def _place(loc: tuple[Any, ...]) -> str:
    """``workload.prompts``, ``cluster[0].device``: the place as a person would write it."""
    if loc[:2] == ("workload", "response_length") and loc[2:3] and loc[2] in KINDS:
        loc = (*loc[:2], *loc[3:])
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) and text == "cluster" else f".{part}" if text else str(part)
    return text
