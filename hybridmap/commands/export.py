"""``hybridmap export``: the launch script of another RL system for a plan."""

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridmap.commands.options import Json
from hybridmap.commands.planned import read_planned
from hybridmap.console import say, say_json, say_whole, warn
from profiles.errors import InputError

if TYPE_CHECKING:
    from hybridmap.exports.export import Export
    from hybridmap.files.plan import PlanFile


class System(StrEnum):
    """Systems that a plan exports to."""

    VERL = "verl"
    NEMO_RL = "nemo-rl"
    OPENRLHF = "openrlhf"
    SLIME = "slime"


def export(
    plan: Annotated[Path, typer.Argument(metavar="plan.json", help="What `hybridmap plan` wrote.")],
    to: Annotated[
        System | None,
        typer.Option("--to", help="The system that is to run it; else the job's target.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write the script and what goes with it here.", show_default=False),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            "--launcher",
            help="Also write what brings the run up: slurm, ray, kuberay or skypilot; needs --out.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a launch script for verl, NeMo-RL, OpenRLHF or slime.

    The script goes to stdout, and what the system cannot follow to stderr; with --out both go into a folder, with
    notes and, where verl has no key for the plan's pools, a trainer subclass. What is written is priced beside the
    plan, and every setting that changes the system's own algorithm is named.
    """
    from hybridmap.exports.systems import export_plan

    if launcher is not None and out is None:
        raise InputError(f"--launcher {launcher} needs --out DIR: its file goes beside the script that it starts")
    file = read_planned(plan)[0]
    found = export_plan(file, str(plan), _system(to, file, plan))
    if launcher is not None:
        found = _with_launcher(found, launcher, file, plan)
    written = _written(found, out, file.digest_now()) if out is not None else []
    if as_json:
        say_json(_document(found, written))
        return
    if out is None:
        _say_script(found)
    else:
        say(f"time        {found.times}")
        say(f"wrote       {', '.join(written)}")
        if launcher is not None:
            from hybridmap.exports.launchers.launcher import FILES, NEXT

            say(f"next        cd {out} && {NEXT[launcher].format(file=FILES[launcher])}")
    _warn_of(found)


def _document(found: "Export", written: list[str]) -> dict[str, object]:
    return {
        "system": found.system,
        "version": found.version,
        "settings": dict(found.settings),
        "planned_iteration_s": found.times.planned_s,
        "written_iteration_s": found.times.written_s,
        "algorithm": [asdict(key) for key in found.algorithm],
        "cannot_follow": [{"place": p.place, "why": p.text} for p in found.points],
        "files": dict(found.files),
        "written": written,
    }


def _say_script(found: "Export") -> None:
    say_whole(found.files[found.script].rstrip("\n"))
    others = [name for name in found.files if name not in (found.script, "NOTES.md")]
    if others:
        warn(f"the script needs {', '.join(others)} beside it; --out DIR writes all of it")


def _warn_of(found: "Export") -> None:
    """What the system cannot follow, what changes its own algorithm, and a time that is not the plan's."""
    from hybridmap.exports.export import said_aloud

    for point in found.points:
        warn(f"{found.system} cannot follow {point.place}: {point.text}")
    for line in said_aloud(found):
        warn(line)
    if found.times.differ:
        warn(str(found.times))


def _system(to: System | None, file: "PlanFile", plan: Path) -> str:
    """The system that was asked for, else the one that the plan was made for."""
    made_for = str(file.job.get("target") or "").partition("/")[0].partition("@")[0]
    if to is None and made_for not in [system.value for system in System]:
        raise InputError(f"{plan} was planned for no other system: give --to {', --to '.join(System)}")
    return to.value if to is not None else made_for


def _with_launcher(found: "Export", launcher: str, file: "PlanFile", path: Path) -> "Export":
    from hybridmap.exports.launchers.launcher import launcher_files
    from hybridmap.job.load import job_from_document

    job = job_from_document(file.job, f"{path}: job")
    return replace(found, files={**found.files, **launcher_files(launcher, file.plan, job, found)})


def _written(found: "Export", out: Path, digest: str) -> list[str]:
    """Write the files, each with the digest of its plan in its last line, a comment."""
    from hybridmap.files.plan import require_folder
    from hybridmap.files.write import write_file

    require_folder(out)
    stamp = f"hybridmap export, schema 1, of plan {digest}"
    for name, text in found.files.items():
        write_file(out / name, f"{text.rstrip()}\n{f'<!-- {stamp} -->' if name.endswith('.md') else f'# {stamp}'}\n")
    for name in found.files:
        if name.endswith(".sh"):
            (out / name).chmod(0o755)
    return [str(out / name) for name in found.files]
