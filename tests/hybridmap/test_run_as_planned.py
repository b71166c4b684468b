"""Protects the way from the mapper to a run: its plans, scaled down, run on the engines that they were priced for."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
import yaml

from hybridmap.commands.run import with_planned_engines
from hybridmap.files.plan import read_plan
from hybridmap.job.load import load_job
from profiles.errors import NotYetError
from simulator.plan.timeline import Timeline

EXAMPLES = Path(__file__).parents[2] / "examples"
missing = [name for name in ("torch", "ray", "megatron", "vllm") if importlib.util.find_spec(name) is None]
AS_PLANNED = {"training": "as-planned", "generation": "as-planned"}


@pytest.fixture
def toy(tmp_path):
    """A RUN.yaml with the roles and the schedule of an example, at toy size; vLLM's CPU kernels want heads of 32."""

    def write(example, **changes):
        config = tmp_path / "config.json"
        tiny = json.loads((EXAMPLES / "run" / "tiny-config.json").read_text())
        sizes = {"num_hidden_layers": 4, "head_dim": 32, "num_key_value_heads": 4, "eos_token_id": None}
        config.write_text(json.dumps(tiny | sizes | {"bos_token_id": None}))
        document = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
        document["models"] = dict.fromkeys(document["models"], str(config))
        samples = document["workload"].get("samples_per_prompt", 1)
        document["workload"] = {
            "prompts": 4,
            "samples_per_prompt": min(samples, 4),
            "prompt_length": 4,
            "response_length": 3,
            "minibatches": 2,
        }
        document["run"] = {
            "weights": {"actor": str(config)},
            "dtype": "fp32",
            "learning_rate": 1e-3,
            "cpu_ranks": 4,
            "data": {"task": "sorted-digits", "digits": 4, "alphabet": "0123456789=+"},
            "engines": AS_PLANNED,
            "reward": {"function": "per-character"},
        } | changes
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write


def test_as_planned_is_what_the_plan_was_priced_for(planned, write_job, small_job, tmp_path):
    """The engines of the job inside the plan file, not those of the file that runs it."""
    run = {"weights": {"actor": "w"}, "data": {"task": "sorted-digits", "alphabet": "01"}, "engines": AS_PLANNED}
    given = load_job(
        write_job(small_job | {"engines": {"training": "fsdp@2.13", "generation": "tensorrt-llm@1.0"}, "run": run})
    )
    found = with_planned_engines(given, given.run, planned.plan).engines
    assert (found.training, found.generation) == ("megatron-core", "vllm")
    with pytest.raises(NotYetError, match=r"the plan is for generation on tensorrt-llm@1\.0, which cannot run yet"):
        with_planned_engines(given, given.run, None)


@pytest.mark.long
@pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: the extra cpu-engines")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", ["ppo-7b-16xa100", "grpo-qwen2.5-7b-16xh100-32xa100"])
def test_a_plan_of_the_mapper_runs_on_its_engines_at_toy_size(example, run, toy, tmp_path):
    assert run("plan", EXAMPLES / f"{example}.yaml", "--out", tmp_path / "planned").exit_code == 0
    file = tmp_path / "planned" / "plan.json"
    result = run("run", toy(example), "--plan", file, "--iterations", 2, "--scale-down", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "scaled down from" in result.stderr
    assert "the transition converted weights in buckets of at most" in result.stdout
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(line["actor/loss"]) for line in lines)
    plan, job = read_plan(file)
    assert job["engines"] == {"training": "megatron-core@0.16", "generation": "vllm@0.32"}
    timeline = Timeline.model_validate_json((tmp_path / "out" / "timeline.json").read_text())
    for entry in plan.roles:
        calls = [span for span in timeline.spans if span.role == entry.role and span.call != "transition"]
        pools = {entry.pool, *([entry.generation_pool] if entry.separate_generation else [])}
        assert {span.pool for span in calls} <= pools  # whoever shared a pool does
