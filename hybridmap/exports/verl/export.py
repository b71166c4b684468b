"""The files of a verl export: the launch script, the notes, and the trainer subclass where a pool needs it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Export, Times, header, notes_text
from hybridmap.exports.values import override_text
from hybridmap.exports.verl.follow import followed
from hybridmap.exports.verl.import_run import as_written
from hybridmap.exports.verl.places import needs_subclass
from hybridmap.exports.verl.programs import CONFIG_PATH, MAIN, program_for
from hybridmap.exports.verl.settings import algorithm_of, verl_settings
from hybridmap.text.notation import job_title

if TYPE_CHECKING:
    from hybridmap.exports.export import Source

VERSION = "0.9.1"
SUBCLASS = "hybridmap_verl.py"
SCRIPT = "run_verl.sh"
MEGATRON = (
    "export CUDA_DEVICE_MAX_CONNECTIONS=1  # one queue, so that collectives of Megatron-Core start in their order"
)


def export_verl(source: Source) -> Export:
    """The plan for verl 0.9.1; ``InputError`` where verl can run nothing near it."""
    ours, points = followed(source)
    values = verl_settings(ours).values
    subclass = SUBCLASS if needs_subclass(ours) else None
    start = _start(ours, subclass)
    # What counts is what verl will read: the script is read back before anything is said about its time.
    written = as_written(_script([], values, start), SCRIPT, ours)
    times = Times(source.iteration_s(), written.iteration_s())
    whole = Export("verl", VERSION, values, points, algorithm_of(ours, values), times, SCRIPT, {})
    title = job_title(source.facts)
    needed = [f"# Needs {subclass} beside it: verl has no key for the plan's pools."] if subclass else []
    contents = {SCRIPT: _script([*needed, f"# {title}", *header(whole)], values, start)}
    if subclass is not None:
        contents[subclass] = (files("hybridmap.exports.verl") / "verl_pools.py.in").read_text(encoding="utf-8")
    return replace(whole, files=contents | {"NOTES.md": notes_text(whole, title)})


def _start(source: Source, subclass: str | None) -> list[str]:
    """What starts the program of a plan, and the words that it alone needs."""
    program = program_for(source.plan)
    if subclass:
        return [f'python3 "$(dirname "$0")/{subclass}"']
    path = [] if program is MAIN else [shlex.quote(CONFIG_PATH)]
    return [f"python3 -m {program.module}", *path]


def _script(head: list[str], values: dict[str, Any], start: list[str]) -> str:
    lines = [
        "#!/usr/bin/env bash",
        f"# Overrides for verl {VERSION}, written by hybridmap from a plan, whatever the plan decides. Data, learning",
        "# rates, logging and checkpoints are yours: add them behind the script's name.",
        *head,
        "set -euo pipefail",
        ': "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of prompts}"',
        ': "${VAL_FILES:=$TRAIN_FILES}"',
        *([MEGATRON] if values["model_engine"] == "megatron" else []),
        "",
        f"{start[0]} \\",
        *(f"  {word} \\" for word in start[1:]),
        '  data.train_files="$TRAIN_FILES" \\',
        '  data.val_files="$VAL_FILES" \\',
        *(f"  {shlex.quote(f'{key}={override_text(value)}')} \\" for key, value in values.items()),
        '  "$@"',
    ]
    return "\n".join([*lines, ""])
