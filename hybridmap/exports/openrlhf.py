"""The files of an OpenRLHF export."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Export, notes_text
from hybridmap.exports.openrlhf_settings import openrlhf_settings
from hybridmap.notation import job_title

if TYPE_CHECKING:
    from hybridmap.exports.export import Source

VERSION = "0.11.2"


def export_openrlhf(source: Source) -> Export:
    """The plan for OpenRLHF 0.11.2."""
    found = openrlhf_settings(source)
    script = "run_openrlhf.sh"
    title = job_title(source.facts)
    lines = [
        "#!/usr/bin/env bash",
        f"# {title}",
        f"# Flags for OpenRLHF {VERSION}, written by hybridmap from a plan. Learning rates, logging and checkpoints",
        "# are yours: add them behind the script's name.",
        *(f"# Cannot follow: {point.place}: {point.text}" for point in found.points),
        "set -euo pipefail",
        ': "${PROMPTS:?set PROMPTS to a data set of prompts}"',
        "",
        "python3 -m openrlhf.cli.train_ppo_ray \\",
        '  --data.prompt_dataset "$PROMPTS" \\',
        *(f"  {' '.join(shlex.quote(part) for part in flag(key, value))} \\" for key, value in found.values.items()),
        '  "$@"',
    ]
    whole = Export("openrlhf", VERSION, found.values, tuple(found.points), script, {})
    contents = {script: "\n".join([*lines, ""]), "NOTES.md": notes_text(whole, title)}
    return Export(whole.system, whole.version, whole.settings, whole.points, script, contents)


def flag(key: str, value: Any) -> list[str]:
    """A flag as the words of a command line."""
    if value is True:
        return [f"--{key}"]
    return [f"--{key}", *(str(v) for v in value)] if isinstance(value, list) else [f"--{key}", str(value)]
