"""Profile one GPU, run PPO and GRPO iterations on it, and set predictions beside them: one command, no network, no Ray.

    python -m benchmarks.gpu.h200 --out DIR [--budget-minutes 9] [--device cuda] [--toy]

Needs torch >= 2.11, numpy, scipy, pandas, pyarrow, pydantic, pyyaml; and tensordict and safetensors for the iterations.
What is missing is named, and what can be done without it is done: without pydantic and its like only the journal of
measured rows is left, which `--from-journal` turns into tables on any other machine. Ray and vLLM are not used.
Everything that is written is small: journal, tables, timelines, one summary.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PROFILE_NEEDS = ("torch", "numpy")
TABLES_NEED = ("scipy", "pandas", "pyarrow", "pydantic", "yaml")
RUN_NEEDS = ("tensordict", "safetensors")
MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b")
PROFILE_SHARE = 0.5
JOURNAL = "journal.jsonl"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 done, 2 something that is needed is missing."""
    options = _parser().parse_args(arguments)
    deadline_s = time.monotonic() + 60.0 * options.budget_minutes
    missing = absent(PROFILE_NEEDS)
    if missing:
        print(f"error: this needs {', '.join(missing)}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"date": datetime.date.today().isoformat(), "command": " ".join(sys.argv), "runs": []}
    summary["missing"] = absent((*TABLES_NEED, *RUN_NEEDS, "ray", "vllm", "megatron"))
    if not options.from_journal:
        summary["machine"] = _profile(options, deadline_s)
    if absent(TABLES_NEED):
        print(f"without {', '.join(absent(TABLES_NEED))} there are no tables; --from-journal makes them elsewhere")
        _write(options.out, summary)
        return 0
    about = summary.get("machine") or json.loads((options.out / "machine.json").read_text())
    summary["tables"] = _tables(options.out, about)
    if absent(RUN_NEEDS) or options.from_journal:
        print(f"no iterations are run: {', '.join(absent(RUN_NEEDS)) or 'only tables were asked for'}")
    else:
        summary["runs"] = _runs(options, deadline_s)
    _write(options.out, summary)
    return 0


def absent(names: Sequence[str]) -> list[str]:
    """Packages that cannot be imported here."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.h200", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--budget-minutes", type=float, default=9.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--toy", action="store_true", help="tiny models and sizes, as the tests run it")
    parser.add_argument("--from-journal", action="store_true", help="only make tables from an earlier run's journal")
    return parser


def _profile(options: argparse.Namespace, deadline_s: float) -> dict[str, Any]:
    """Measure into the journal; returns what the rows belong to."""
    from executor.profiling.environment import conditions, describe, pick_device
    from executor.profiling.journal import Journal
    from executor.profiling.run_profile import Profiler

    device = pick_device(options.device)
    request = _request(options, max(1.0, (deadline_s - time.monotonic()) * PROFILE_SHARE))
    about = describe(device, request.threads)
    before = conditions(device)
    count = [0]

    def report(part: str, what: str) -> None:
        count[0] += 1
        if count[0] % 100 == 1:
            print(f"{count[0]:6d} rows  {part}: {what}", flush=True)

    with Journal(options.out / JOURNAL, {"device_string": about["device_string"], "dtype": request.dtype}) as journal:
        Profiler(request, journal, report).run()
        print(f"{len(journal.rows):,} rows in {options.out / JOURNAL}")
    about |= {
        "command": " ".join(sys.argv),
        "date": datetime.date.today().isoformat(),
        "dtype": request.dtype,
        "conditions_before": before,
        "conditions_after": conditions(device),
        "kind": "gpu" if device.type == "cuda" else "cpu",
    }
    (options.out / "machine.json").write_text(json.dumps(about, indent=1) + "\n")
    return about


def _request(options: argparse.Namespace, budget_s: float) -> Any:
    from executor.profiling.request import Request
    from executor.profiling.timing import Precision
    from profiles.models.catalogue import load_model, model_config
    from profiles.models.hf_config import shape_from_hf_config
    from profiles.models.probe_models import tiny_config

    gpu = options.device == "cuda"
    can_run = not absent((*RUN_NEEDS, "pydantic"))
    if options.toy:
        config = tiny_config(layers=2, hidden=64)
        shapes = (shape_from_hf_config(config, "tiny", "tiny"),)
        configs: tuple[dict[str, Any], ...] = (config,)
    else:
        names = (*MODELS, "qwen2.5-7b", "llama-3.1-8b", "qwen2.5-32b", "llama-3.1-70b")
        shapes = tuple(load_model(name) for name in names)
        configs = tuple(dict(model_config(name)) for name in MODELS)
    parts = ("memory", "copy", "gemm", "attention", *(("dispatch", "engine") if can_run else ()))
    return Request(
        device=options.device,
        dtype="bf16" if gpu else "fp32",
        models=shapes,
        configs=configs,
        budget_s=budget_s,
        target=0.03,
        groups=(),
        quick=True,
        parts=parts,
        launchers=("local",),
        precision=Precision(0.3, 3, 9, 0.0, 0.1) if options.toy else Precision(),
    )


def _tables(out: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Tables, card and engine files from the journal; where a catalogue device has the same name, how they differ."""
    from benchmarks.gpu.compare_tables import compare_with_catalogue
    from executor.profiling.journal import Journal
    from hybridmap.profiling.folder import write_profile
    from hybridmap.profiling.quality import Wanted
    from profiles.tables.write import KEYS

    header = {"device_string": about["device_string"], "dtype": about["dtype"]}
    journal = Journal(out / JOURNAL, header)
    profile = out / "profile"
    alone = Wanted(ray=False, ranks=False, neighbours=False)
    made = write_profile(profile, {table: journal.of(table) for table in KEYS}, about, about["kind"], alone)
    errors = {table: {"points": e.points, "median": e.median, "p90": e.p90} for table, e in made.errors.items()}
    return {
        "device": made.device,
        "rows": made.rows,
        "failed": made.failed,
        "left_out": errors,
        "against_catalogue": compare_with_catalogue(profile, about["device_string"]),
    }


def _runs(options: argparse.Namespace, deadline_s: float) -> list[dict[str, Any]]:
    """One PPO and one GRPO run for each model while there is time; each predicted first, then measured."""
    from benchmarks.gpu.single_gpu_runs import run_and_compare

    found = []
    sizes = ("tiny",) if options.toy else MODELS
    for model in sizes:
        for algorithm in ("grpo", "ppo"):
            left_s = deadline_s - time.monotonic()
            if left_s < 20.0:
                found.append({"model": model, "algorithm": algorithm, "error": "no time was left"})
                continue
            try:
                found.append(run_and_compare(options.out, model, algorithm, options.device, left_s))
            except Exception as error:  # whatever it is, the other runs go on and this one is on record
                found.append({"model": model, "algorithm": algorithm, "error": f"{type(error).__name__}: {error}"})
            print(json.dumps({k: v for k, v in found[-1].items() if k != "calls"}), flush=True)
    return found


def _write(out: Path, summary: dict[str, Any]) -> None:
    (out / "summary.json").write_text(json.dumps(summary, indent=1, default=str) + "\n")
    print(f"wrote {out / 'summary.json'}")


if __name__ == "__main__":
    sys.exit(main())
