"""The files of an OpenRLHF export."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Export, Times, algorithm_keys, header, notes_text
from hybridmap.exports.openrlhf.follow import followed
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
    times = Times(source.iteration_s(), ours.iteration_s())
    whole = Export("openrlhf", VERSION, values, points, algorithm_keys(values, ALGORITHM), times, SCRIPT, {})
    title = job_title(source.facts)
    lines = [
        "#!/usr/bin/env bash",
        f"# {title}",
        f"# Flags for OpenRLHF {VERSION}, written by hybridmap from a plan. Learning rates, logging and checkpoints",
        "# are yours: add them behind the script's name.",
        *header(whole),
        "set -euo pipefail",
        ': "${PROMPTS:?set PROMPTS to a data set of prompts}"',
        "",
        "python3 -m openrlhf.cli.train_ppo_ray \\",
        '  --data.prompt_dataset "$PROMPTS" \\',
        *(f"  {' '.join(shlex.quote(part) for part in flag(key, value))} \\" for key, value in values.items()),
        '  "$@"',
    ]
    return replace(whole, files={SCRIPT: "\n".join([*lines, ""]), "NOTES.md": notes_text(whole, title)})


def flag(key: str, value: Any) -> list[str]:
    """A flag as the words of a command line."""
    if value is True:
        return [f"--{key}"]
    return [f"--{key}", *(str(v) for v in value)] if isinstance(value, list) else [f"--{key}", str(value)]
