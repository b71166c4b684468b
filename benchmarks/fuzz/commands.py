"""Changed command lines, run in this process through the application's own ``main``: only exits 0 and 2 are right."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from enum import Enum
from typing import TYPE_CHECKING, Any

from benchmarks.fuzz.targets import TARGETS
from benchmarks.fuzz.values import NUMBERS, TEXTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from random import Random

LEFT_OUT = ("ui", "mcp", "watch", "profile", "run", "validate")
"""Commands that start processes, and stay or measure for minutes: their files and sections are targets of their own."""

FILES = {
    "job": "job.yaml",
    "plan": "plan.json",
    "config": "run.sh",
    "file": "timeline.json",
    "hint": "plan.json",
    "measured": "timeline.json",
    "what_if": "frontier.json",
    "frontier": "frontier.json",
    "profile": "device",
    "models": "config.json",
    "name": "llama-3.2-1b",
}
"""What a parameter of that name takes. Commands write where they stand, so names of outputs stay relative."""

SHORT = ("--time-limit", "1")
SMALL_JOB = b"""algorithm: ppo
models: {actor: llama-3.2-1b, critic: llama-3.2-1b, reference: llama-3.2-1b, reward: llama-3.2-1b}
workload: {prompts: 64, prompt_length: 256, response_length: 256, minibatches: 2}
cluster: [{device: h100-80gb-sxm, nodes: 1}]
"""


def changed_command(random: Random, folder: Path) -> list[str]:
    """Arguments of a command by its own list of parameters, and the files that they name, some of them changed."""
    command, path = _command(random)
    _write_files(random, folder)
    words: list[str] = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            if random.random() < 0.95:
                words.append(_value(random, parameter))
        elif (parameter.required and random.random() < 0.95) or random.random() < 0.2:
            words.append(random.choice(parameter.opts))
            if not parameter.is_flag:
                words.append(_value(random, parameter))
    limited = any("--time-limit" in p.opts for p in command.params) and "--time-limit" not in words
    words = [*path, *words, *(SHORT if limited else ())]
    if random.random() < 0.1:
        words.insert(random.randrange(len(words) + 1), random.choice([*TEXTS[:12], "--", "-", "--json", "--nonsense"]))
    return [word.replace("\x00", "") for word in words]  # no shell can say it


def run_command(words: Sequence[str], folder: Path) -> None:
    """Run a command in ``folder``. Raises what a traceback would show, and ``AssertionError`` for a wrong exit."""
    from hybridmap.cli import app

    out, err, here = io.StringIO(), io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            app(list(words))
    except SystemExit as end:
        status = end.code or 0
    finally:
        os.chdir(here)
    printed, warned = out.getvalue(), err.getvalue()
    if status not in (0, 2):
        raise AssertionError(f"exit {status}: {warned[-300:]}")
    if status == 2 and not (warned.strip() or printed.strip()):
        raise AssertionError("exit 2 without a word")
    odd = {c for c in printed + warned if not c.isprintable() and c not in "\n\t"}
    if odd:
        raise AssertionError(f"prints {sorted(odd)!r}, which a terminal obeys")


def _command(random: Random) -> tuple[Any, list[str]]:
    from typer.main import get_command

    from hybridmap.cli import app

    command: Any = get_command(app)
    path: list[str] = []
    while getattr(command, "commands", None):
        name = random.choice([name for name in sorted(command.commands) if name not in LEFT_OUT])
        path.append(name)
        command = command.commands[name]
    return command, path


def _value(random: Random, parameter: Any) -> str:
    kind = parameter.bare_type()
    if isinstance(kind, type) and issubclass(kind, Enum) and random.random() < 0.9:
        return str(random.choice(list(kind)).value)
    if parameter.name in ("out", "to"):
        return random.choice(("out", "out/deep/er", "folder", "job.yaml", "plan.json/x", "verl", "", "loop", "x" * 300))
    if random.random() < 0.8:
        if parameter.name in FILES:
            return FILES[parameter.name]
        if parameter.name == "device":
            return random.choice(("h100-80gb-sxm", "a100-80gb-sxm", "device", "h100"))
        if parameter.name == "settings":
            return random.choice(("workload.prompts=32,64", "cluster.0.nodes=2", "models.actor=qwen2.5-7b", "a.b=c"))
        if kind in (int, float):
            return str(random.choice((1, 2, 3, 8, *NUMBERS))) if random.random() < 0.5 else "2"
    texts = (text for text in TEXTS if text != "fifo")  # a pipe named by hand is read for as long as it lasts
    return str(random.choice((*texts, *NUMBERS[:26]))).encode("utf-8", "replace").decode()


def _write_files(random: Random, folder: Path) -> None:
    """Every file that a command may be given, good ones mostly."""
    for name in ("out", "hybridmap-out", "folder"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "folder").mkdir(exist_ok=True)
    from benchmarks.fuzz.seeds import good_inputs

    for file_name, good in good_inputs().items():
        (folder / file_name).write_bytes(good)
    (folder / "job.yaml").write_bytes(SMALL_JOB)
    if random.random() < 0.5:
        target = TARGETS[random.choice(("job", "plan", "timeline", "records", "config", "verl-script"))]
        (folder / target.file_name).write_bytes(target.make(random))
