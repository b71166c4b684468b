"""The files of a verl export: the launch script, the notes, and the trainer subclass where a pool needs it."""

from __future__ import annotations

import shlex
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Export, notes_text
from hybridmap.exports.verl_places import needs_subclass
from hybridmap.exports.verl_settings import verl_settings
from hybridmap.notation import job_title

if TYPE_CHECKING:
    from hybridmap.exports.export import Point, Source

VERSION = "0.9.1"
SUBCLASS = "hybridmap_verl.py"


def export_verl(source: Source) -> Export:
    """The plan for verl 0.9.1."""
    found = verl_settings(source)
    script = "run_verl.sh"
    entry = SUBCLASS if needs_subclass(source) else None
    contents = {script: _script(source, found.values, tuple(found.points), entry)}
    if entry is not None:
        contents[entry] = (files("hybridmap.exports") / "verl_pools.py.in").read_text(encoding="utf-8")
    whole = Export("verl", VERSION, found.values, tuple(found.points), script, contents)
    return Export(
        whole.system, whole.version, whole.settings, whole.points, script,
        contents | {"NOTES.md": notes_text(whole, job_title(source.facts))},
    )  # fmt: skip


def override_text(value: Any) -> str:
    """A value as a Hydra override writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, list):
        return f"[{','.join(override_text(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{override_text(each)}" for key, each in value.items()) + "}"
    return str(value)


def _script(source: Source, values: dict[str, Any], points: tuple[Point, ...], subclass: str | None) -> str:
    where = f'"$(dirname "$0")/{subclass}"' if subclass else "-m verl.trainer.main_ppo"
    lines = [
        "#!/usr/bin/env bash",
        f"# {job_title(source.facts)}",
        f"# Overrides for verl {VERSION}, written by hybridmap from a plan, whatever the plan decides. Data, learning",
        "# rates, logging and checkpoints are yours: add them behind the script's name.",
        *([f"# Needs {subclass} beside it: verl has no key for the plan's pools."] if subclass else []),
        *(f"# Cannot follow: {point.place}: {point.text}" for point in points),
        "set -euo pipefail",
        ': "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of prompts}"',
        ': "${VAL_FILES:=$TRAIN_FILES}"',
        "",
        f"python3 {where} \\",
        '  data.train_files="$TRAIN_FILES" \\',
        '  data.val_files="$VAL_FILES" \\',
        *(f"  {shlex.quote(f'{key}={override_text(value)}')} \\" for key, value in values.items()),
        '  "$@"',
    ]
    return "\n".join([*lines, ""])
