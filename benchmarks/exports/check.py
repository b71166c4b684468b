"""Plan the example jobs for every target, check what is exported with the packages, and write a table.

    python -m benchmarks.exports.check --peers .venv-peers [--nemo-rl CHECKOUT] [--slime CHECKOUT] [--out TABLE.md]

``--peers`` is an environment with verl, OpenRLHF and ``requirements.txt`` (``make check-all`` makes it). What is run:

- verl: its Hydra configuration composed with the overrides, ``validate_config``, the dataclasses of actor, reference,
  critic, rollout and reward model, and constructor and placement of the trainer that the script starts. Models are
  folders with the published config.json and a tokenizer of two words, since verl opens both; no weights.
- OpenRLHF: its parser and every check between parsing and training.
- NeMo-RL, whose package is a placeholder: with a checkout of release 0.7.0, the recipe composed on its configuration,
  every key held to its schema, and what its set-up asserts.
- slime, which has no package: with a checkout of 0.3.1, every argument held to its parser's, its scripts' and
  Megatron-Core's.

Then the parallel state of verl's own engines, read back for twelve plans (``engine_states.py``).

And for each target so many plans that are drawn and not searched (``drawn.py``): written, read back, priced again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.exports import engine_states
from benchmarks.exports.drawn import round_trips
from hybridmap.exports.systems import export_plan
from hybridmap.exports.targets import plan_for
from hybridmap.files.plan import plan_file_of
from hybridmap.job.load import load_job
from mapper.search.find_plan import find_plan
from profiles.errors import HybridmapError, InputError
from profiles.models.catalogue import hf_id, model_names
from simulator.plan.plan import Pool
from simulator.systems.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hybridmap.exports.export import Export
    from hybridmap.files.plan import PlanFile
    from hybridmap.job.job import Job
    from mapper.result import Result
    from simulator.systems.targets import Target

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
CATALOGUE = HERE.parents[1] / "profiles" / "models" / "configs"
SPLIT = "ppo-7b-16xa100"
"""The example that is checked in its split placement too, where the critic has GPUs of its own."""
ROLLOUT = "grpo-qwen2.5-7b-8xh100"
"""The example that is also checked with GPUs for generation alone: three of verl's programs and trainers."""
APART: dict[str, dict[str, Any]] = {
    "rollout pool": {"schedule": "async", "in_flight_updates": True},
    "one step off": {"schedule": "one-step-off", "in_flight_updates": False},
    "drained at updates": {"schedule": "async", "in_flight_updates": False},
}
SECONDS = 30.0
"""Of each search; nothing here is said of what is best."""
DRAWN = 200


@dataclass(frozen=True)
class Checked:
    """One export: what the package's own code said, or its error.

    Parameters
    ----------
    job, target
        What was planned, and for whom; a system alone for a plan that was made for none.
    points
        Where the system does not do what the job or the plan asks for.
    planned_s, written_s
        Seconds of an iteration of the plan, and of what was written.
    answer, error
        What the package said.
    """

    job: str
    target: str
    points: int = 0
    planned_s: float = 0.0
    written_s: float = 0.0
    answer: dict[str, Any] | None = None
    error: str = ""

    @property
    def system(self) -> str:
        """The system of the target."""
        return self.target.partition("/")[0]


def write_models(folder: Path) -> None:
    """A Hugging Face folder per catalogue model: the published config, and a tokenizer that knows two words."""
    for name in model_names():
        config = json.loads((CATALOGUE / f"{name}.json").read_text())
        config.pop("_hybridmap")
        write_model(folder, hf_id(name), config)


def write_model(folder: Path, name: str, config: dict[str, Any]) -> None:
    """A Hugging Face folder of a model: its config, and a tokenizer that knows two words."""
    words = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "a"},
    }
    place = folder / name.replace("/", "--")
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config))
    (place / "tokenizer.json").write_text(json.dumps(words))
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "</s>"}
    (place / "tokenizer_config.json").write_text(json.dumps(special))


def planned(path: Path, placement: str = "any") -> PlanFile:
    """The plan of an example job."""
    job = load_job(path)
    result = find_plan(replace(job.request(), placement=placement, runners_up=False))
    return plan_file_of(job, result, placement, False)


def planned_for(job: Job, target: Target) -> tuple[PlanFile, int]:
    """The plan of a job for a target, and in how many points that is not what the job asks for."""

    def search(one: Job) -> Result:
        return find_plan(replace(one.request(), runners_up=False, time_limit_s=SECONDS))

    found = plan_for(job, target, search)
    return plan_file_of(found.job, found.result, "any", False), len(found.points)


def with_rollout_pool(file: PlanFile, **schedule: Any) -> PlanFile:
    """The plan with as many GPUs again, on which the actor generates while it trains on samples one step old."""
    plan, actor = file.plan, file.plan.role("actor")
    assert actor.generation is not None, "the actor generates"
    size = plan.pool_of("actor").num_gpus
    pool = Pool(name="G", device=plan.pools[0].device, first_gpu=plan.num_gpus, num_gpus=size, roles=())
    roles = tuple(e.model_copy(update={"generation_pool": "G"}) if e is actor else e for e in plan.roles)
    changed = {"pools": (*plan.pools, pool), "roles": roles, **(schedule or APART["rollout pool"])}
    cluster = [{**each, "nodes": 2 * each["nodes"]} for each in file.job["cluster"]]
    return file.model_copy(update={"plan": plan.model_copy(update=changed), "job": {**file.job, "cluster": cluster}})


def run_check(
    python: Path, export: Export, folder: Path, models: Path, checkouts: Mapping[str, Path]
) -> tuple[dict[str, Any] | None, str]:
    """Run the package's own checks on an export written below ``folder``."""
    checkout = checkouts.get(export.system)
    if checkout is None and export.system in ("nemo-rl", "slime"):
        return None, "not checked: no checkout to check with"
    folder.mkdir(parents=True)
    for name, text in export.files.items():
        (folder / name).write_text(text)
    script = str(folder / export.script)
    if export.system == "verl":
        own = [str(folder / "hybridmap_verl.py")] if "hybridmap_verl.py" in export.files else []
        command = [str(HERE / "verl_check.py"), script, str(models), *own]
    elif export.system == "nemo-rl":
        command = [str(HERE / "nemo_rl_check.py"), str(folder / "recipe.yaml")]
    elif export.system == "slime":
        command = [str(HERE / "slime_check.py"), str(checkout), script]
    else:
        package = next(python.parents[1].glob("lib/python*/site-packages/openrlhf"))
        entry, config = package / "cli" / "train_ppo_ray.py", package / "utils" / "config.py"
        command = [str(HERE / "openrlhf_check.py"), str(entry), str(config), script]
    done = subprocess.run(
        [str(python), "-W", "ignore", *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **({"NEMO_RL": str(checkout)} if checkout else {})},
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    if done.returncode == 0 and answers:
        return json.loads(answers[-1].removeprefix("ANSWER ")), ""
    return None, (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]


def exports_of(jobs: Iterator[tuple[str, str, PlanFile | str, int]]) -> Iterator[tuple[Checked, Export | None]]:
    """What is exported of plans, by job and target; a refusal is text in place of a plan."""
    for name, target, file, points in jobs:
        if isinstance(file, str):
            yield Checked(name, target, error=file), None
            continue
        try:
            export = export_plan(file, name, target.partition("/")[0])
        except InputError as error:
            yield Checked(name, target, error=f"not exported: {error}"), None
            continue
        times = export.times
        yield Checked(name, target, points or len(export.points), times.planned_s, times.written_s), export


def plans() -> Iterator[tuple[str, str, PlanFile | str, int]]:
    """Every example planned for every target; and plans for verl with rollout GPUs, and with a critic apart."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for name, target in TARGETS.items():
            try:
                yield (path.stem, name, *planned_for(load_job(path), target))
            except HybridmapError as error:
                yield path.stem, name, f"not planned: {error}", 0
    free = planned(EXAMPLES / f"{ROLLOUT}.yaml")
    for name, schedule in APART.items():
        yield f"{ROLLOUT}, {name}", "verl", with_rollout_pool(free, **schedule), 0
    yield f"{SPLIT}, split", "verl", planned(EXAMPLES / f"{SPLIT}.yaml", "split"), 0


def check_all(peers: Path, folder: Path, checkouts: Mapping[str, Path] | None = None) -> list[Checked]:
    """Every plan that is exported, as far as it can be checked; ``checkouts`` by system."""
    models, python = folder / "models", (peers / "bin" / "python").absolute()
    write_models(models)
    out = []
    for row, export in exports_of(plans()):
        if export is None:
            out.append(row)
            continue
        place = folder / row.job.replace(" ", "").replace(",", "") / row.target.replace("/", "-")
        answer, error = run_check(python, export, place, models, checkouts or {})
        out.append(replace(row, answer=answer, error=error))
    return out


def table(rows: list[Checked], versions: str) -> list[str]:
    """The lines of the table of exports, as Markdown."""
    lines = [
        f"# Exports checked with the packages they are for, {date.today().isoformat()}",
        "",
        f"In an environment with {versions} on a CPU (`make check-all` makes one): each example planned for each",
        "target, exported, and given to what [check.py](../exports/check.py) names. A check passes if the package's",
        "own code raises nothing. `points`: where the target does not do what the job asks for, named when planning.",
        "",
        "| job | target | plan, s | as written, s | points | passed |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in rows:
        times = f"{row.planned_s:.2f} | {row.written_s:.2f} | {row.points}" if row.planned_s else " | | "
        lines.append(f"| {row.job} | {row.target} | {times} | {_outcome(row)} |")
    return lines


def _outcome(row: Checked) -> str:
    if row.answer is None:
        return row.error if row.error.startswith("not ") else f"**failed**: {row.error}"
    if row.system == "openrlhf":
        return f"parser and checks, {row.answer['flags']} words"
    if row.system == "nemo-rl":
        return f"composed, {row.answer['keys']} keys held to the schema of release 0.7.0"
    if row.system == "slime":
        return f"{row.answer['arguments']} arguments held to release 0.3.1"
    pools = ", ".join(f"{name} {sum(nodes)}" for name, nodes in row.answer["pools"].items())
    return f"composed ({row.answer['overrides']} overrides), validated; {row.answer['trainer']} makes {pools}"


def drawn_table(most: int) -> list[str]:
    """The lines of the table of drawn plans, as Markdown."""
    lines = [
        "",
        f"## {most} drawn plans for each target, written, read back and priced again",
        "",
        "| target | plans | of draws | largest difference in time |",
        "|---|---:|---:|---:|",
    ]
    for name in TARGETS:
        trips = list(round_trips(name, most))
        off = max(trip.off for trip in trips)
        lines.append(f"| {name} | {len(trips)} | {trips[-1].seed + 1} | {100 * off:.4f} % |")
    return [*lines, ""]


def main() -> None:
    """Check, print the table, and end with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--nemo-rl", type=Path, help="a checkout of NeMo-RL 0.7.0")
    parser.add_argument("--slime", type=Path, help="a checkout of slime 0.3.1")
    parser.add_argument("--drawn", type=int, default=DRAWN, help="drawn plans for each target")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    checkouts = {name: at.absolute() for name, at in (("nemo-rl", args.nemo_rl), ("slime", args.slime)) if at}
    with tempfile.TemporaryDirectory() as folder:
        rows = check_all(args.peers, Path(folder), checkouts)
        python, models = (args.peers / "bin" / "python").absolute(), Path(folder) / "models"
        read_back = engine_states.table(engine_states.states(python, Path(folder), models))
    text = "\n".join(table(rows, "verl 0.9.1 and OpenRLHF 0.11.2") + read_back + drawn_table(args.drawn))
    if args.out:
        args.out.write_text(text)
    print(text)
    if "**no**" in text or any(row.answer is None and not row.error.startswith("not ") for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
