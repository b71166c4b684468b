"""Check the exports of the example jobs with the packages they are for, and write a table.

    python -m benchmarks.exports.check --peers .venv-peers [--nemo-rl CHECKOUT] [--out TABLE.md]

``--peers`` is an environment with verl, OpenRLHF and ``requirements.txt`` (``make check-all`` makes it). What is run:

- verl: its Hydra configuration composed with the overrides, ``validate_config``, the dataclasses of actor, reference,
  critic, rollout and reward model, and constructor and placement of the trainer that the script starts. Models are
  folders with the published config.json and a tokenizer of two words, since verl opens both; no weights.
- OpenRLHF: its parser and every check between parsing and training.
- NeMo-RL, whose package is a placeholder: with a checkout of release 0.7.0, the recipe composed on its configuration,
  every key held to its schema, and what its set-up asserts.
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

from hybridmap.exports.systems import export_plan
from hybridmap.files.plan import plan_file_of
from hybridmap.job.load import load_job
from mapper.search.find_plan import find_plan
from profiles.errors import InputError
from profiles.models.catalogue import hf_id, model_names
from simulator.plan.plan import Pool

if TYPE_CHECKING:
    from hybridmap.exports.export import Export
    from hybridmap.files.plan import PlanFile

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
CATALOGUE = HERE.parents[1] / "profiles" / "models" / "configs"
SPLIT = "ppo-7b-16xa100"
"""The example that is checked in its split placement too, where the critic has GPUs of its own."""


ROLLOUT = "grpo-qwen2.5-7b-8xh100"
"""The example that is also checked with GPUs for generation alone, which is another of verl's trainers."""


@dataclass(frozen=True)
class Checked:
    """One export: what the package's own code said, or its error."""

    job: str
    system: str
    points: int
    answer: dict[str, Any] | None
    error: str


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


def with_rollout_pool(file: PlanFile) -> PlanFile:
    """The plan with as many GPUs again, on which the actor generates while it trains on samples one step old."""
    plan, actor = file.plan, file.plan.role("actor")
    assert actor.generation is not None, "the actor generates"
    size = plan.pool_of("actor").num_gpus
    pool = Pool(name="G", device=plan.pools[0].device, first_gpu=plan.num_gpus, num_gpus=size, roles=())
    roles = tuple(e.model_copy(update={"generation_pool": "G"}) if e is actor else e for e in plan.roles)
    changed = {"pools": (*plan.pools, pool), "roles": roles, "schedule": "async", "in_flight_updates": True}
    cluster = [{**each, "nodes": 2 * each["nodes"]} for each in file.job["cluster"]]
    return file.model_copy(update={"plan": plan.model_copy(update=changed), "job": {**file.job, "cluster": cluster}})


def run_check(
    python: Path, export: Export, folder: Path, models: Path, checkout: Path | None = None
) -> tuple[dict[str, Any] | None, str]:
    """Run the package's own checks on an export written below ``folder``."""
    folder.mkdir(parents=True)
    for name, text in export.files.items():
        (folder / name).write_text(text)
    script = str(folder / export.script)
    if export.system == "verl":
        own = [str(folder / "hybridmap_verl.py")] if "hybridmap_verl.py" in export.files else []
        command = [str(HERE / "verl_check.py"), script, str(models), *own]
    elif export.system == "nemo-rl":
        command = [str(HERE / "nemo_rl_check.py"), str(folder / "recipe.yaml")]
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


def check_all(peers: Path, folder: Path, checkout: Path | None = None) -> list[Checked]:
    """Every example job, one with rollout GPUs and one split placement, in every system, as far as can be checked."""
    models = folder / "models"
    write_models(models)
    jobs = [(path.stem, planned(path)) for path in sorted(EXAMPLES.glob("*.yaml"))]
    jobs.append((f"{ROLLOUT}, rollout pool", with_rollout_pool(planned(EXAMPLES / f"{ROLLOUT}.yaml"))))
    jobs.append((f"{SPLIT}, split", planned(EXAMPLES / f"{SPLIT}.yaml", "split")))
    out = []
    for name, file in jobs:
        for system in ("verl", "openrlhf", "nemo-rl"):
            try:
                export = export_plan(file, name, system)
            except InputError as error:
                out.append(Checked(name, system, 0, None, f"not exported: {error}"))
                continue
            if system == "nemo-rl" and checkout is None:
                out.append(Checked(name, system, len(export.points), None, "not checked: no checkout to check with"))
                continue
            python, place = peers / "bin" / "python", folder / name.replace(" ", "") / system
            answer, error = run_check(python.absolute(), export, place, models, checkout)
            out.append(Checked(name, system, len(export.points), answer, error))
    return out


def table(rows: list[Checked], versions: str) -> str:
    """The table, as Markdown."""
    lines = [
        f"# Exports checked with the packages they are for, {date.today().isoformat()}",
        "",
        f"In an environment with {versions} on a CPU (`make check-all` makes one), for each job's plan, what",
        "[check.py](../exports/check.py) says. A check passes if the package's own code raises nothing.",
        "",
        "| job | system | points it cannot follow | passed |",
        "|---|---|---:|---|",
    ]
    for row in rows:
        lines.append(f"| {row.job} | {row.system} | {row.points} | {_outcome(row)} |")
    return "\n".join([*lines, ""])


def _outcome(row: Checked) -> str:
    if row.answer is None:
        return row.error if row.error.startswith("not ") else f"**failed**: {row.error}"
    if row.system == "openrlhf":
        return f"parser and checks, {row.answer['flags']} words"
    if row.system == "nemo-rl":
        return f"composed, {row.answer['keys']} keys held to the schema of release 0.7.0"
    pools = ", ".join(f"{name} {sum(nodes)}" for name, nodes in row.answer["pools"].items())
    return f"composed ({row.answer['overrides']} overrides), validated; {row.answer['trainer']} makes {pools}"


def main() -> None:
    """Check, print the table, and end with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--nemo-rl", type=Path, help="a checkout of NeMo-RL 0.7.0")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = check_all(args.peers, Path(folder), args.nemo_rl.absolute() if args.nemo_rl else None)
    text = table(rows, "verl 0.9.1 and OpenRLHF 0.11.2")
    if args.out:
        args.out.write_text(text)
    print(text)
    if any(row.answer is None and not row.error.startswith("not ") for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
