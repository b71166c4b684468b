"""The files of an OpenRLHF export."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Export, Times, algorithm_keys, header, notes_text
from hybridmap.exports.imported import setup_as_read
from hybridmap.exports.openrlhf.follow import followed
from hybridmap.exports.openrlhf.import_run import read_openrlhf, setup_of
from hybridmap.exports.openrlhf.settings import ALGORITHM, openrlhf_settings
from hybridmap.text.notation import job_title

if TYPE_CHECKING:
    from hybridmap.exports.export import Source

VERSION = "0.11.2"
SCRIPT = "run_openrlhf.sh"


def export_openrlhf(source: Source) -> Export:
    """The plan for OpenRLHF 0.11.2; ``InputError`` where it can run nothing near it."""
    ours, points = followed(source)
    values = openrlhf_settings(ours).values
    written = as_written(_script([], values), SCRIPT, ours)
    times = Times(source.iteration_s(), written.iteration_s())
    whole = Export("openrlhf", VERSION, values, points, algorithm_keys(values, ALGORITHM), times, SCRIPT, {})
    title = job_title(source.facts)
    text = _script([f"# {title}", *header(whole)], values)
    return replace(whole, files={SCRIPT: text, "NOTES.md": notes_text(whole, title)})


def as_written(script: str, name: str, source: Source) -> Source:
    """What OpenRLHF runs when it is started with a script that an export wrote, for the export's own job."""
    return setup_as_read(setup_of(read_openrlhf(Path(name), {"PROMPTS": "x"}, script), named=False), source)


def _script(head: list[str], values: dict[str, Any]) -> str:
    lines = [
        "#!/usr/bin/env bash",
        *head[:1],
        f"# Flags for OpenRLHF {VERSION}, written by hybridmap from a plan. Learning rates, logging and checkpoints",
        "# are yours: add them behind the script's name.",
        *head[1:],
        "set -euo pipefail",
        ': "${PROMPTS:?set PROMPTS to a data set of prompts}"',
        "",
        "python3 -m openrlhf.cli.train_ppo_ray \\",
        '  --data.prompt_dataset "$PROMPTS" \\',
        *(f"  {' '.join(shlex.quote(part) for part in flag(key, value))} \\" for key, value in values.items()),
        '  "$@"',
    ]
    return "\n".join([*lines, ""])


def flag(key: str, value: Any) -> list[str]:
    """A flag as the words of a command line."""
    if value is True:
        return [f"--{key}"]
    return [f"--{key}", *(str(v) for v in value)] if isinstance(value, list) else [f"--{key}", str(value)]
