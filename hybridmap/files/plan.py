"""``plan.json`` and ``timeline.json``: what a search leaves behind, and what later steps start from.

The same job, seed and profile data give the same bytes, so nothing of the run itself (how long it took, when, where)
is in the files. They are written all or none: a failed run leaves no file and no folder.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

from hybridmap.job.problems import described
from hybridmap.json_text import to_json
from hybridmap.version import __version__
from profiles.atomic_write import write_all_or_none
from profiles.errors import FileFormatError, InputError
from profiles.units import MIB
from simulator.plan.dataflow import Stage
from simulator.plan.plan import Plan, Record
from simulator.plan.seal import Sealed, sealed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hybridmap.job.job import Job
    from mapper.result import Result
    from simulator.plan.timeline import Timeline

SCHEMA_VERSION = 1
_Sealed = TypeVar("_Sealed", bound=Sealed)
MAX_BYTES = 64 * MIB


class PlannedRunnerUp(Record):
    """The best plan of another placement, or nearly: no plan of the same search is below ``bound_s``, where it is."""

    placement: str
    iteration_s: float
    bound_s: float | None = None
    plan: Plan


class Searched(Record):
    """What the search was free to choose; ``bound_s`` and ``status`` hold within it."""

    placement: str
    even: bool


class PlanFile(Sealed):
    """The content of ``plan.json``. ``job`` is the job's document: the file needs nothing else to be simulated.

    ``facts_hash`` is that of the prices that it was computed from; ``digest`` is empty where a file is older than it.
    """

    hybridmap_version: str
    job: dict[str, Any]
    facts_hash: str
    objective: Literal["time", "throughput_per_gpu", "cost", "gpus"] = "time"
    searched: Searched
    status: Literal["optimal", "feasible"]
    iteration_s: float
    bound_s: float
    gap: float
    seed: int
    stages: dict[Stage, float]
    tokens_per_s: float
    num_gpus: int
    plan: Plan
    runners_up: tuple[PlannedRunnerUp, ...]


def plan_file_of(job: Job, result: Result, placement: str, even: bool) -> PlanFile:
    """The file of a search's result."""
    timeline = result.timeline
    file = PlanFile(
        hybridmap_version=__version__,
        job=job.document,
        facts_hash=job.facts().facts_hash,
        objective=result.objective.goal,
        searched=Searched(placement=placement, even=even),
        status="optimal" if result.status == "optimal" else "feasible",
        iteration_s=result.iteration_s,
        bound_s=result.bound_s,
        gap=result.gap,
        seed=result.seed,
        stages=dict(timeline.stages),
        tokens_per_s=timeline.tokens_per_s,
        num_gpus=timeline.num_gpus,
        plan=result.plan,
        runners_up=tuple(
            PlannedRunnerUp(placement=r.placement, iteration_s=r.iteration_s, bound_s=r.bound_s, plan=r.plan)
            for r in result.runners_up
        ),
    )
    return sealed(file)


def planned_records(file: PlanFile, timeline: Timeline) -> dict[str, Sealed]:
    """What a search leaves behind, by name; the timeline says which plan it is of."""
    return {"plan.json": file, "timeline.json": sealed(timeline, computed_from=file.digest)}


def read_plan_file(path: Path) -> PlanFile:
    """Read ``plan.json``.

    Raises
    ------
    InputError
        There is no such file, or it cannot be read.
    FileFormatError
        Truncated, no plan file, of another schema version, or with a key missing or wrong; names file and place.
    """
    return parse_plan_file(read_json(path), path)


def parse_plan_file(content: object, path: Path) -> PlanFile:
    """The plan file that ``content`` is, read from ``path``; errors as in ``read_plan_file``."""
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: not a plan file: it holds {described(content)}, not a JSON object")
    if not {"plan", "job"} & set(content):
        kind = "a timeline" if "spans" in content else "another kind of JSON"
        raise FileFormatError(f"{path}: not a plan file but {kind}: it has neither 'plan' nor 'job'")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise FileFormatError(
            f"{path}: schema_version is {described(version)}, this hybridmap ({__version__}) reads {SCHEMA_VERSION}; "
            "plan the job again"
        )
    try:
        return PlanFile.model_validate(content)
    except ValidationError as error:
        raise misfit(path, error) from None


def is_plan_file(path: Path) -> bool:
    """Whether a file is meant as one of ``hybridmap plan``'s and not as a job; ``InputError`` if it cannot be read."""
    try:
        content = read_json(path)
    except FileFormatError:  # YAML, or nothing that a plan could be
        return False
    return isinstance(content, dict) and "plan" in content and "workload" not in content


def read_record(path: Path, kind: type[_Sealed]) -> _Sealed:
    """Read a JSON file that one of our commands wrote, such as ``frontier.json``; errors as in ``read_plan_file``.

    An edited file is refused: nothing in it can be priced again, so its times would be shown as they are.
    """
    return unedited(validated(read_json(path), kind, path), path)


def validated(content: object, kind: type[_Sealed], path: Path) -> _Sealed:
    """The record that ``content`` is, read from ``path``; ``FileFormatError`` says what is wrong with it."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise misfit(path, error) from None


def unedited(record: _Sealed, path: Path) -> _Sealed:
    """The record, if it is as it was written; ``FileFormatError`` otherwise."""
    if record.is_edited:
        raise FileFormatError(
            f"{path}: was edited after it was written (its digest is not that of what it says); make it again, or take "
            "its 'digest' out to have it read as your own"
        )
    return record


def read_plan(path: Path) -> tuple[Plan, dict[str, Any] | None]:
    """A plan to run, from what ``hybridmap plan`` wrote or from a bare plan; with the job that it was made for.

    Errors as in ``read_plan_file``.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "pools" not in content:
        file = read_plan_file(path)
        return _with_its_pools(file.plan, path), file.job
    try:
        return _with_its_pools(Plan.model_validate(content), path), None
    except ValidationError as error:
        raise misfit(path, error) from None


def _with_its_pools(plan: Plan, path: Path) -> Plan:
    """``plan``, whose roles are on pools that it has; what reads it next need not look."""
    names = [pool.name for pool in plan.pools]
    if len(set(names)) < len(names):
        raise FileFormatError(f"{path}: pool names must differ, got {', '.join(names)}")
    for entry in plan.roles:
        for name in (entry.pool, entry.generation_pool or entry.pool):
            if name not in names:
                raise FileFormatError(f"{path}: {entry.role} is on pool '{name}', the plan has {', '.join(names)}")
    return plan


def misfit(path: Path, error: ValidationError) -> FileFormatError:
    """The first thing in a JSON file that is missing or wrong, as the error to raise."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    what = "is missing" if first["type"] == "missing" else f"got {described(first['input'])}: {first['msg']}"
    return FileFormatError(f"{path}: {place}: {what}")


def read_json(path: Path) -> object:
    """Any JSON document of at most 64 MiB; ``InputError`` if unreadable, ``FileFormatError`` if it is no JSON."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        held = ", ".join(sorted(file.name for file in path.glob("*.json")))
        raise InputError(f"{path}: is a folder; name a file in it ({held or 'it holds no JSON'})") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(raw) > MAX_BYTES:
        raise FileFormatError(f"{path}: larger than {MAX_BYTES // MIB} MiB, which no plan file is")
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        cut = ": truncated?" if error.pos >= len(raw.rstrip()) - 1 else ""
        place = f"line {error.lineno}, column {error.colno}"
        raise FileFormatError(f"{path}: not JSON at {place} ({error.msg}{cut})") from None
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not JSON ({str(error).splitlines()[0]})") from None


def require_folder(out: Path) -> None:
    """Fail early, before a long search, if files could not be written below ``out``."""
    try:
        there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    except OSError as error:
        raise InputError(f"{out}: cannot be an output folder ({error.strerror})") from None
    if not there.is_dir():
        raise InputError(f"{out}: cannot be an output folder, {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{out}: cannot be an output folder, {there} is not writable")


def write_records(out: Path, records: Mapping[str, Sealed]) -> list[Path]:
    """Write ``<name>: record``, sealed, as JSON files below ``out``, made if need be; all of them or none."""
    first_new = next((f for f in reversed((out, *out.absolute().parents)) if not f.exists()), None)
    files = {out / name: to_json(sealed(record).model_dump(mode="json")) for name, record in records.items()}
    try:
        write_all_or_none(files, durable=True)
    except BaseException as error:  # Ctrl-C too
        _remove_empty(out, first_new)
        if not isinstance(error, OSError):
            raise
        raise InputError(f"{out}: cannot be written ({error.strerror or error}); nothing was changed") from error
    return list(files)


def _remove_empty(out: Path, first_new: Path | None) -> None:
    """Take back the folders that were made for nothing."""
    folder = out.absolute()
    while first_new is not None and folder.is_relative_to(first_new.absolute()):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
