"""Protects runs that go on with the engines of GPU clusters: Megatron-Core or FSDP2 trains, vLLM samples. Bit for bit
the undisturbed run on the same plan, its curve on another plan or trainer, and after a killed rank.
"""

import importlib.util
import json
import math

import pytest

from executor.faults import Fault
from executor.run import run
from tests.executor.plans import colocated, config, config_for_all_engines, job, learned, metrics

pytest.importorskip("ray")
missing = [name for name in ("megatron", "vllm") if importlib.util.find_spec(name) is None]
if missing:
    pytest.skip(f"needs {', '.join(missing)}: the extra cpu-engines", allow_module_level=True)

from executor.launch.ray import RayLauncher  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.long]
ITERATIONS, STOPS = 4, 2
JOB = job("ppo", minibatches=2)
DATA = colocated("ppo", (1, 1, 2), generation=(1, 1))
TENSOR = colocated("ppo", (1, 2, 1), generation=(1, 2))
STAGES = colocated("ppo", (2, 1, 1), generation=(1, 1))
PLANS = {"megatron-core": DATA, "fsdp2": DATA}
"""On which each trainer makes the undisturbed run: both cut their optimizer's states."""
OTHERS = [
    pytest.param("megatron-core", "megatron-core", TENSOR, id="megatron: tensor parallel"),
    pytest.param("fsdp2", "megatron-core", STAGES, id="fsdp to megatron: pipeline"),
    pytest.param("megatron-core", "fsdp2", DATA, id="megatron to fsdp"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    launcher = RayLauncher(cpu_ranks=2)
    yield
    launcher.stop()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return config_for_all_engines(tmp_path_factory.mktemp("model"))


def settings(weights, trainer, dtype="fp32", **changes):
    """Sampled responses, a KL coefficient that moves, a save every other iteration."""
    generator = "vllm" if dtype == "fp32" else "torch-native"  # on CPUs vLLM packs bf16 weights: none can be written
    given = {
        "learning_rate": 3e-3,
        "launcher": "ray",
        "engines": {"training": trainer, "generation": generator},
        "learning": {"kl_target": 1e-4, "kl_horizon": 20},
        "checkpoint": {"every": STOPS},
        "dtype": dtype,
    }
    return config(weights, **(given | changes))


@pytest.fixture(scope="module")
def undisturbed(weights, tmp_path_factory):
    """The folder of a trainer's undisturbed run, made when it is first asked for."""
    made = {}

    def folder_of(trainer, dtype="fp32"):
        if (trainer, dtype) not in made:
            made[trainer, dtype] = folder = tmp_path_factory.mktemp(f"{trainer}-{dtype}")
            run(JOB, PLANS[trainer], settings(weights, trainer, dtype), folder, ITERATIONS)
            curve = metrics(folder)
            assert len({line["kl_coefficient"] for line in curve}) > 1
            assert all(math.isfinite(line["actor/loss"]) for line in curve)
        return made[trainer, dtype]

    return folder_of


def curve(folder):
    found = metrics(folder)
    assert [line["iteration"] for line in found] == list(range(ITERATIONS))
    for role in ("actor", "critic"):
        assert [line[f"{role}/optimizer_steps"] for line in found] == [2.0 * (i + 1) for i in range(ITERATIONS)]
    return [learned(line) for line in found]


@pytest.mark.parametrize(
    ("trainer", "dtype"), [("megatron-core", "fp32"), ("megatron-core", "bf16"), ("fsdp2", "fp32")]
)
def test_a_run_that_stopped_goes_on_to_the_last_bit(trainer, dtype, weights, undisturbed, tmp_path):
    """In new processes, with the engines' own random numbers, masters, moments and prompts where they were."""
    section = settings(weights, trainer, dtype)
    run(JOB, PLANS[trainer], section, tmp_path, STOPS)
    run(JOB, PLANS[trainer], section, tmp_path, ITERATIONS, resume=True)
    assert curve(tmp_path) == curve(undisturbed(trainer, dtype))


@pytest.mark.parametrize(("trainer", "other", "other_plan"), OTHERS)
def test_it_goes_on_by_another_plan_or_trainer(trainer, other, other_plan, weights, undisturbed, tmp_path):
    begin = undisturbed(trainer) / "checkpoints" / f"iteration-{STOPS:08d}"
    run(JOB, other_plan, settings(weights, other), tmp_path, ITERATIONS, resume=begin)
    expected = curve(undisturbed(trainer))[STOPS:]
    for mine, theirs in zip(metrics(tmp_path), expected, strict=True):
        assert learned(mine) == pytest.approx(theirs, rel=2e-3, abs=2e-5)
        assert mine["reward"] == theirs["reward"]  # the same tokens were sampled


def test_a_killed_rank_is_replaced_and_the_curve_is_the_undisturbed_one(weights, undisturbed, tmp_path):
    fault = Fault("actor", "update_actor", call=3, rank=1, kind="kill", delay_s=0.05)
    section = settings(
        weights,
        "megatron-core",
        faults=[fault],
        on_failure="restart",
        timeouts={"collective_s": 60},
        checkpoint={"every": 1},
    )
    run(JOB, PLANS["megatron-core"], section, tmp_path, ITERATIONS)
    assert curve(tmp_path) == curve(undisturbed("megatron-core"))
    (line,) = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert (line["call"], line["rank"], line["lost_iterations"]) == ("actor.update_actor", 1, 0)
    assert "its process ended" in line["summary"]
