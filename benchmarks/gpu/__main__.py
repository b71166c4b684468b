"""Check and profile a node with GPUs, run every engine and four placements on it, pack what came out: one command.

    python -m benchmarks.gpu --out DIR [--device cuda] [--model qwen2.5-0.5b] [--iterations 20]

No network is used: weights are drawn, prompts are made. Each step is a process of its own, so memory of one is not
missed in the next; what a step found stays on disk when another fails, and a step that is named again by ``--steps`` is
made again (the profile resumes). ``DIR/report.tar.gz`` is what to send back: tables, timelines, comparisons, versions,
no weights. How long it takes is said in steps: ``--iterations``, and what ``hybridmap profile --quick`` measures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu import engines, environment, measure, report

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS = {
    "environment": environment.check,
    "smoke": measure.smoke,
    "profile": measure.profile,
    "placements": measure.placements,
    "engines": engines.engines,
    "report": report.write,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 1 a step failed (the others are on disk), 2 something that every step needs is missing."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    options.out.mkdir(parents=True, exist_ok=True)
    if len(options.steps) == 1:
        return int(STEPS[options.steps[0]](options))
    given = ["--out", options.out, "--device", options.device, "--model", options.model]
    given += ["--iterations", options.iterations, "--cpu-ranks", options.cpu_ranks]
    failed = 0
    for step in options.steps:
        print(f"== {step}", flush=True)
        command = [sys.executable, "-m", "benchmarks.gpu", *map(str, given), "--steps", step]
        status = subprocess.run(command, check=False).returncode
        if status == environment.MISSING:
            return status
        failed = failed or int(status != 0)
    return failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="qwen2.5-0.5b", help="of every role: a name, or a config.json")
    parser.add_argument("--iterations", type=int, default=20, help="measured ones of each placement")
    parser.add_argument("--cpu-ranks", type=int, default=4, help="with --device cpu: ranks in place of GPUs")
    parser.add_argument("--steps", nargs="+", choices=tuple(STEPS), default=tuple(STEPS), metavar="STEP")
    return parser


if __name__ == "__main__":
    sys.exit(main())
