"""The same parsers, fed by atheris: inputs that reach new lines are kept and changed further.

    python -m benchmarks.fuzz.guided TARGET [--runs 20000] [--seed 1] [--finds DIR]

Needs the extra ``fuzz``. Stops at the first find; it is written below ``--finds``, beside what it grew from.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import warnings
from pathlib import Path
from random import Random

INSTRUMENTED = ("profiles", "simulator", "executor", "hybridmap")
READ_LATER = (
    "executor.checkpoint.manifest",
    "executor.profiling.journal",
    "executor.recovery.scale_down",
    "executor.rl.data",
    "executor.weights.architecture",
    "executor.weights.files",
    "hybridmap.answers.what_if",
    "hybridmap.exports.verl.import_run",
    "hybridmap.exports.verl.read",
    "hybridmap.files.frontier",
    "hybridmap.files.plan",
    "hybridmap.files.timeline",
    "hybridmap.files.trace",
    "hybridmap.job.edit",
    "hybridmap.job.load",
    "hybridmap.report.figures",
    "hybridmap.shell.script",
    "profiles.calibration",
    "hybridmap.runlogs.console",
    "hybridmap.runlogs.tables",
    "profiles.engine_facts",
    "profiles.models.hf_config",
    "profiles.store",
    "simulator.feasibility",
)
"""What the readers import when they run: atheris sees no line of a module that was imported without it."""


# Long by its options.
def main() -> None:
    """Run until a find or the number of runs; does not return."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz.guided")
    parser.add_argument("target")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--finds", type=Path, default=Path("fuzz-finds"))
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        parser.error("needs atheris: pip install 'hybridmap[fuzz]'")
    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        from benchmarks.fuzz.outcome import outcome_of
        from benchmarks.fuzz.targets import TARGETS
        from benchmarks.fuzz.workplace import prepare

        for name in READ_LATER:
            importlib.import_module(name)
    if options.target not in TARGETS:
        parser.error(f"no target {options.target}; known: {', '.join(TARGETS)}")
    target = TARGETS[options.target]
    options.finds.mkdir(parents=True, exist_ok=True)
    finds = options.finds.resolve()
    made = tempfile.mkdtemp(prefix="work-", dir=finds)
    folder, corpus = Path(made) / "place", Path(made) / "corpus"
    folder.mkdir()
    corpus.mkdir()
    prepare(folder)
    for index in range(200):
        (corpus / str(index)).write_bytes(target.make(Random(f"{options.seed}:{index}")))
    os.chdir(folder)
    warnings.simplefilter("ignore")

    def one_input(data: bytes) -> None:
        path = folder / target.file_name
        path.write_bytes(data)
        outcome = outcome_of(target.read, path)
        if outcome.is_find:
            raise AssertionError(f"{outcome.kind} {outcome.where}\n{outcome.detail}")

    flags = [f"-runs={options.runs}", f"-seed={options.seed}", "-max_len=20000", f"-artifact_prefix={finds}/"]
    atheris.Setup([sys.argv[0], str(corpus), *flags], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
