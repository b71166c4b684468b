"""How the search for a plan grows with the cluster: seconds, memory and gap from 8 to 16,384 GPUs.

    python -m benchmarks.solver_scaling [--quick] [--no-paper | --paper-largest GPUS] [--note TEXT] [--out DIRECTORY]

Every GPU has 16 samples, so batches grow with the cluster.
Each case runs in a process of its own, so that its peak memory is its own; a case that takes less than
``REPEAT_BELOW_S`` runs three times and the fastest counts. Beside it stands the time of the paper's Algorithm 1 over
the same priced tables, where that ends within ``PAPER_LIMIT_S``; it is not tried on more GPUs than where it did not.
Results go to a dated CSV file.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from mapper.analysis.algorithm1 import paper
from mapper.model.instance import make_instance
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.engine_facts import default_engine, load_generation_engine, load_training_engine
from profiles.hardware import ClusterGroup
from profiles.models.catalogue import load_model
from profiles.store import load_device
from profiles.workload import LengthDistribution, Workload
from simulator.facts import Facts, RoleSpec

ROLES = {
    "ppo": ("actor", "critic", "reference", "reward"),
    "safe-rlhf": ("actor", "critic", "reference", "reward", "cost"),
    "grpo": ("actor", "reference"),
}
SIZES = (8, 32, 128, 512, 1024, 4096, 16384)
DENSE = {8: "llama-2-7b", 32: "llama-2-13b"}
"""Models that fit on few GPUs four or five times; beyond those it is Llama 2 70B."""

DEVICE = "a100-80gb-sxm"
SAMPLES_PER_GPU = 16
"""Batches grow with the cluster: a fixed one hides what a large one costs the search."""

Work = Literal["fixed", "long tail"]
"""Responses of 1,024 tokens, as in the HybridFlow paper; or of up to 15,360 tokens, of 4,096 on the mean."""

TIME_LIMIT_S = 600.0
PAPER_LIMIT_S = 600.0
REPEAT_BELOW_S = 10.0
REPEATS = 3
TIMED_OUT = "> {:g}"


@dataclass(frozen=True)
class Case:
    """One job: every role has the same model."""

    algorithm: str
    model: str
    num_gpus: int
    device: str = DEVICE
    work: Work = "fixed"


@dataclass(frozen=True)
class Row:
    """What one case took: ``process_s`` of the whole process, ``seconds`` of the search alone.

    ``cpu_s`` is the whole process's own time, start and imports included, where others use the machine too.
    ``paper_s`` is empty where Algorithm 1 was not asked
    for, and a bound where it, or a smaller case of the same roles and model, did not end.
    """

    algorithm: str
    model: str
    num_gpus: int
    device: str
    work: str
    status: str
    process_s: str
    seconds: str
    cpu_s: str
    peak_memory_mib: str
    gap: str
    priced: str
    candidates: str
    runs: str
    paper_s: str


def cases(quick: bool = False) -> list[Case]:
    """All cases, small clusters first; ``quick`` leaves three that take seconds."""
    if quick:
        return [Case("ppo", DENSE[8], 8), Case("grpo", DENSE[32], 32), Case("safe-rlhf", DENSE[32], 32)]
    out = []
    for n in SIZES:
        out += [Case(algorithm, DENSE.get(n, "llama-2-70b"), n) for algorithm in ROLES]
        out.append(Case("grpo", "qwen3-30b-a3b", n, work="long tail"))
    out.append(Case("grpo", "deepseek-v3", 512, "h200-sxm", "long tail"))
    return sorted(out, key=lambda case: case.num_gpus)


def facts_of(case: Case) -> Facts:
    """The job of a case."""
    device, shape = load_device(case.device), load_model(case.model)
    samples = SAMPLES_PER_GPU * case.num_gpus
    fixed, long_tail = LengthDistribution.fixed(1024), LengthDistribution("lognormal", 4096.0, 15360)
    response = long_tail if case.work == "long tail" else fixed
    return Facts(
        algorithm=case.algorithm,
        roles={role: RoleSpec(shape) for role in ROLES[case.algorithm]},
        workload=Workload(samples, 1, 1024, response, minibatches=8),
        group=ClusterGroup.of(device.spec, case.num_gpus // device.spec.gpus_per_node),
        device=device,
        training=load_training_engine(default_engine("training")),
        generation=load_generation_engine(default_engine("generation")),
    )


def measured_here(case: Case, with_paper: bool) -> dict[str, str]:
    """Run one case in this process: the search, or Algorithm 1 over the tables of the search."""
    facts = facts_of(case)
    if with_paper:
        instance = make_instance(make_problem(facts))
        began = time.perf_counter()
        paper(instance)
        return {"paper_s": f"{time.perf_counter() - began:.4f}"}
    began = time.perf_counter()
    found = find_plan(SearchRequest(facts, runners_up=False, time_limit_s=TIME_LIMIT_S))
    seconds, cpu_s = time.perf_counter() - began, time.process_time()
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    return {
        "status": found.status,
        "seconds": f"{seconds:.3f}",
        "cpu_s": f"{cpu_s:.3f}",
        "peak_memory_mib": f"{peak_kib / 1024:.0f}",
        "gap": f"{found.gap:.2e}",
        "priced": str(found.num_priced),
        "candidates": str(found.num_candidates),
    }


def measured(case: Case, with_paper: bool, limit_s: float) -> dict[str, str] | None:
    """Run one case in a child process; ``None`` if that did not end in time."""
    what = ["--case", json.dumps(asdict(case)), *(["--paper"] if with_paper else [])]
    command = [sys.executable, "-m", "benchmarks.solver_scaling", *what]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return {"status": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    return {"process_s": f"{time.perf_counter() - began:.3f}", **json.loads(done.stdout)}


def row_of(case: Case, with_paper: bool) -> Row:
    """The fastest of the runs of a case, and Algorithm 1 beside it."""
    runs: list[dict[str, str]] = []
    while len(runs) < REPEATS:
        found = measured(case, False, 2 * TIME_LIMIT_S) or {"status": "timed out"}
        runs.append(found)
        if float(found.get("seconds", "inf")) >= REPEAT_BELOW_S:
            break
    best = min(runs, key=lambda run: float(run.get("seconds", "inf")))
    paper_s = ""
    if with_paper:
        other = measured(case, True, PAPER_LIMIT_S)
        paper_s = TIMED_OUT.format(PAPER_LIMIT_S) if other is None else other.get("paper_s", "failed")
    values = {f.name: best.get(f.name, "") for f in fields(Row)}
    return Row(**{**values, **asdict(case), "runs": str(len(runs)), "paper_s": paper_s})


def header(note: str) -> list[str]:
    """Where and how the numbers were made, a comment line each."""
    cpus = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    how = f"best of up to {REPEATS} runs below {REPEAT_BELOW_S:g} s; seconds: find_plan alone"
    return [f"# {datetime.date.today().isoformat()}; {cpus}; {how}", *([f"# {note}"] if note else [])]


def write(path: Path, rows: list[Row], note: str) -> None:
    """Write what there is so far: a run of hours may be cut short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in header(note))
        table = csv.writer(file, lineterminator="\n")
        table.writerow([f.name for f in fields(Row)])
        table.writerows(asdict(row).values() for row in rows)


def main(arguments: list[str] | None = None) -> None:
    """Run the cases and write the result file, or run a single case as a child."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three small cases")
    parser.add_argument("--no-paper", action="store_true", help="leave out the paper's Algorithm 1")
    parser.add_argument("--paper-largest", type=int, default=max(SIZES), metavar="GPUS", help="Algorithm 1 to here")
    parser.add_argument("--largest", type=int, default=max(SIZES), metavar="GPUS", help="no cases beyond this")
    parser.add_argument("--note", default="", help="a remark for the file's header, such as what else was running")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="directory of the file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--paper", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case:
        print(json.dumps(measured_here(Case(**json.loads(options.case)), options.paper)))
        return
    endless: set[tuple[str, str]] = set()
    path, rows = options.out / f"solver_scaling_{datetime.date.today().isoformat()}.csv", []
    for case in cases(options.quick):
        if case.num_gpus <= options.largest:
            with_paper = not options.no_paper and case.num_gpus <= options.paper_largest
            kind, never = (case.algorithm, case.model), TIMED_OUT.format(PAPER_LIMIT_S)
            row = row_of(case, with_paper and kind not in endless)
            rows.append(replace(row, paper_s=never) if with_paper and kind in endless else row)
            endless |= {kind} if rows[-1].paper_s == never else set()
            print(*asdict(rows[-1]).values(), sep="  ", flush=True)
            write(path, rows, options.note)


if __name__ == "__main__":
    main()
