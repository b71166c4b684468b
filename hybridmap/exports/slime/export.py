"""The files of a slime export."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Export, Times, algorithm_keys, header, notes_text
from hybridmap.exports.imported import setup_as_read
from hybridmap.exports.slime.follow import followed
from hybridmap.exports.slime.import_run import read_slime, setup_of
from hybridmap.exports.slime.settings import ALGORITHM, is_asynchronous, slime_settings
from hybridmap.text.notation import job_title

if TYPE_CHECKING:
    from hybridmap.exports.export import Source

VERSION = "0.3.1"
SCRIPT = "run_slime.sh"
MODEL_ARGUMENTS = "scripts/models"
"""Where slime keeps the shapes of models, one file of Megatron-Core's arguments each."""


def export_slime(source: Source) -> Export:
    """The plan for slime 0.3.1; ``InputError`` where it can run nothing near it."""
    ours, points = followed(source)
    values = slime_settings(ours).values
    written = as_written(_script([], values, ours), SCRIPT, ours)
    times = Times(source.iteration_s(), written.iteration_s())
    whole = Export("slime", VERSION, values, points, algorithm_keys(values, ALGORITHM), times, SCRIPT, {})
    title = job_title(source.facts)
    text = _script([f"# {title}", *header(whole)], values, ours)
    return replace(whole, files={SCRIPT: text, "NOTES.md": notes_text(whole, title)})


def as_written(script: str, name: str, source: Source) -> Source:
    """What slime runs when it is started with a script that an export wrote, for the export's own job."""
    keys = read_slime(Path(name), {"SLIME": "slime", "HF_CHECKPOINT": "x", "PROMPT_DATA": "x"}, script)
    return setup_as_read(setup_of(keys, named=False), source)


def _script(head: list[str], values: dict[str, Any], source: Source) -> str:
    name = source.model("actor").split("/")[-1]
    file = name.removesuffix("-Instruct").replace("Qwen", "qwen", 1) + ".sh"
    served = ", in FP8 by blocks of 128" if source.facts.roles["actor"].precision == "fp8_block" else ""
    program = "train_async.py" if is_asynchronous(source) else "train.py"
    lines = [
        "#!/usr/bin/env bash",
        *head[:1],
        f"# Arguments for slime {VERSION}, written by hybridmap from a plan. SLIME is the folder of a checkout; data,",
        "# rewards, learning rates, logging and checkpoints are yours: add them behind the script's name.",
        *head[1:],
        "set -euo pipefail",
        f': "${{SLIME:?set SLIME to a checkout of slime {VERSION}}}"',
        f': "${{HF_CHECKPOINT:?set HF_CHECKPOINT to the folder of the model{served}}}"',
        ': "${REF_LOAD:=${HF_CHECKPOINT}_torch_dist}"  # made by tools/convert_hf_to_torch_dist.py',
        ': "${PROMPT_DATA:?set PROMPT_DATA to a jsonl file of prompts}"',
        f': "${{MODEL_ARGUMENTS:=$SLIME/{MODEL_ARGUMENTS}/{file}}}"',
        ': "${NUM_ROLLOUT:=1000}"',
        'source "$MODEL_ARGUMENTS"',
        "",
        'cd "$SLIME"',
        f"exec python3 {program} \\",
        '  "${MODEL_ARGS[@]}" \\',
        '  --hf-checkpoint "$HF_CHECKPOINT" --ref-load "$REF_LOAD" \\',
        '  --prompt-data "$PROMPT_DATA" --num-rollout "$NUM_ROLLOUT" \\',
        *(f"  {' '.join(shlex.quote(word) for word in argument(key, value))} \\" for key, value in values.items()),
        "  --attention-dropout 0.0 --hidden-dropout 0.0 \\",
        "  --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32 \\",
        '  "$@"',
    ]
    return "\n".join([*lines, ""])


def argument(key: str, value: Any) -> list[str]:
    """An argument as the words of a command line."""
    words = value if isinstance(value, list) else [] if value is True else [value]
    return [f"--{key}", *map(str, words)]
