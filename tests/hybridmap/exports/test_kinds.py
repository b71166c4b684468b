"""Protects exports of mixed clusters: no system is told which kind of GPU a pool has, so such a plan is refused."""

import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "grpo-qwen2.5-7b-16xh100-32xa100.yaml"


def test_pools_of_two_kinds_are_refused_by_every_system(run, tmp_path):
    assert run("plan", EXAMPLE, "--out", tmp_path).exit_code == 0
    for system in ("verl", "openrlhf", "nemo-rl"):
        done = run("export", tmp_path / "plan.json", "--to", system)
        assert done.exit_code == 2
        assert re.search(r"has pools of (a100-80gb-sxm and h100|h100-80gb-sxm and a100)-80gb-sxm", done.stderr)
        assert "plan for one kind" in done.stderr
