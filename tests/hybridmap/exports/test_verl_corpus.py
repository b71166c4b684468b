"""Protects the import of a shelf of launch scripts with the constructs that people use: each is read as bash itself
expands it, becomes the plan that it means, or is refused by name.

The first lines of a script say what is expected: ``reads`` (keys and values), ``plan``, ``note``, ``refused`` (a
pattern of the message), ``env`` (variables that it finds set).
"""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from hybridmap.exports.imported import Given
from hybridmap.exports.values import value_of
from hybridmap.exports.verl.defaults import is_read
from hybridmap.exports.verl.import_run import import_verl
from hybridmap.exports.verl.read import read_verl_config
from hybridmap.exports.verl.script import OVERRIDE
from profiles.errors import InputError
from simulator.feasibility import check_plan

FOLDER = Path(__file__).parent / "verl_scripts"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.sh"))
NEEDS = ("refused", "reads")
"""Every script says one of them."""

_PRINTS = '#!/bin/bash\n[ "$1" = -c ] && exit 1\nprintf "%s\\0" "$@" >> "$WORDS"\n'
"""A stand-in for Python: no module of another vendor's, and every word that it is given."""
_STARTS = '#!/bin/bash\nwhile [ $# -gt 0 ]; do case "$1" in python*|bash) exec "$@" ;; esac; shift; done\n'
"""A stand-in for what starts a command on other machines."""


def expected(name):
    """What the head of a script says."""
    found: dict[str, list[str]] = {}
    for line in (FOLDER / f"{name}.sh").read_text().splitlines()[1:]:
        if not (head := re.match(r"# (reads|plan|note|refused|env): (.*)", line)):
            break
        found.setdefault(head[1], []).append(head[2])
    return {key: " ".join(lines) for key, lines in found.items()}


def pairs(text):
    return dict(word.split("=", 1) for word in text.split())


def as_bash_reads(name, folder):
    """The overrides that bash hands to Python when the script runs."""
    programs = {"python": _PRINTS, "python3": _PRINTS, "torchrun": _PRINTS}
    programs |= dict.fromkeys(("ray", "srun", "docker", "uv", "nohup"), _STARTS)
    for program, text in programs.items():
        (folder / program).write_text(text)
        (folder / program).chmod(stat.S_IRWXU)
    words, own = folder / "words", pairs(expected(name).get("env", ""))
    environment = {"PATH": f"{folder}:{os.defpath}", "HOME": str(folder), "WORDS": str(words), **own}
    command = ["bash", str(FOLDER / f"{name}.sh")]
    subprocess.run(command, env=environment, cwd=folder, capture_output=True, timeout=60, check=False)
    found = (OVERRIDE.match(word) for word in words.read_text().split("\0"))
    return {match[2]: match[3] for match in found if match}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_understood_or_refused_by_name(name, tmp_path):
    expect = expected(name)
    assert any(key in expect for key in NEEDS), "the script says nothing of what is expected"
    given, path = Given("h100-80gb-sxm"), FOLDER / f"{name}.sh"
    if "refused" in expect:
        with pytest.raises(InputError, match=expect["refused"]):
            import_verl(read_verl_config(path, pairs(expect.get("env", ""))), given)
        return
    config = read_verl_config(path, pairs(expect.get("env", "")))
    for key, value in pairs(expect["reads"]).items():
        assert (config.get(key) if is_read(key) else config.given[key]) == yaml.safe_load(value), key
    theirs = as_bash_reads(name, tmp_path)
    assert theirs, "bash started nothing"
    for key, text in theirs.items():
        if isinstance(value := value_of(text), dict) or key in config.unresolved or str(tmp_path) in text:
            continue
        assert config.given[key] == value, key
    run = import_verl(config, given)
    assert {k: v for k, v in described(run).items() if k in pairs(expect.get("plan", ""))} == pairs(expect["plan"])
    assert [v for v in check_plan(run.plan, run.job.facts()) if v.rule != "memory"] == []
    assert expect.get("note", "") in "\n".join(run.notes)


def described(run):
    """A run in the words of a script's head."""
    plan, actor, facts = run.plan, run.plan.role("actor"), run.job.facts()
    layouts = {
        "training": actor.training,
        "generation": actor.generation,
        **{entry.role: entry.training or entry.inference for entry in plan.roles if entry.role != "actor"},
    }
    return {
        "gpus": str(plan.num_gpus),
        "roles": "+".join(facts.dataflow.roles),
        "schedule": plan.schedule,
        "steps": str(plan.steps_in_flight),
        "prompts": str(facts.workload.prompts),
        "recompute": actor.training.recompute,
        "budget": str(actor.training.token_budget and actor.training.token_budget // actor.training.cp),
        "lora": str(facts.implementation.lora_rank),
        "served": facts.roles["actor"].precision,
        "trained": facts.implementation.training_dtype,
        "loss_head": facts.implementation.loss_head,
        **{stage: degrees(layout) for stage, layout in layouts.items()},
    }


def degrees(layout):
    """``t2p2d8e8``; an engine's have no pipeline."""
    rare = [f"{letter}{n}" for letter, n in (("c", getattr(layout, "cp", 1)), ("e", layout.ep)) if n > 1]
    stages = [] if hasattr(layout, "attention_dp") else [f"p{layout.pp}"]
    return "".join([f"t{layout.tp}", *stages, f"d{layout.dp}", *rare])
