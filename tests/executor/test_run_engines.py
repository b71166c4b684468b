"""Protects runs on other engines than the embedded one: Megatron-Core trains, vLLM generates, under Ray, in every pair
of layouts; losses equal those of the torch-native engine, and after each update vLLM's greedy tokens are transformers'.
"""

import importlib.util
import json
import math

import pytest

from executor.algorithms import SCRIPTS
from executor.algorithms.step import Step
from executor.run import run
from tests.executor.plans import ROLES, TINY, colocated, config, job, learned, metrics, plan

ray = pytest.importorskip("ray")
missing = [name for name in ("megatron", "vllm") if importlib.util.find_spec(name) is None]
if missing:
    pytest.skip(f"needs {', '.join(missing)}: the extra cpu-engines", allow_module_level=True)

from executor.launch_ray import RayLauncher  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
ITERATIONS = 2
PAIRS = [  # (p, t, d) in training, (p_g, t_g) in generation
    ((2, 2, 1), (1, 2)), ((2, 2, 1), (1, 1)), ((4, 1, 1), (2, 1)), ((1, 2, 2), (2, 2)), ((1, 2, 2), (2, 1)),
    ((1, 4, 1), (2, 1)), ((4, 1, 1), (1, 4)), ((2, 2, 2), (1, 2)),
]  # fmt: skip
SOON = {((2, 2, 1), (1, 2)), ((1, 2, 2), (2, 1))}
"""A strided pair and a general one; the others belong to `make check-all`."""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    launcher = RayLauncher(cpu_ranks=8)
    yield
    launcher.stop()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A config that every engine here takes: vLLM's CPU kernels want heads of 32."""
    file = tmp_path_factory.mktemp("model") / "config.json"
    changes = {
        "num_hidden_layers": 4, "head_dim": 32, "num_key_value_heads": 4, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    file.write_text(json.dumps(json.loads(TINY.read_text()) | changes))
    return file


def settings(weights, **changes):
    return config(weights, learning_rate=3e-3, **changes)


MEGATRON_VLLM = {"training": "megatron-core", "generation": "vllm"}


def greedy_ppo(models, batches, after=None):
    """PPO on greedy responses, so that it does not matter who draws; ``after`` each update looks at weights."""
    for prompts in batches:
        batch = prompts | models.actor.generate_sequences(prompts, do_sample=False)
        batch |= models.critic.compute_values(batch)
        batch |= models.reference.compute_ref_log_prob(batch)
        batch |= models.reward.compute_reward(batch)
        batch |= models.controller.compute_advantage(batch)
        critic = models.critic.update_critic(batch)
        actor = models.actor.update_actor(batch)
        if after is not None:
            after(models, prompts)
        yield Step(batch, {"critic": critic, "actor": actor})


@pytest.fixture(scope="module")
def reference(weights, tmp_path_factory):
    """The curve of one torch-native process."""
    folder = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCRIPTS, "ppo", greedy_ppo)
        run(job("ppo", minibatches=2), colocated("ppo"), settings(weights, launcher="local"), folder, ITERATIONS)
    return metrics(folder)


def assert_same_curve(found, reference):
    assert len(found) == len(reference)
    for mine, theirs in zip(found, reference, strict=True):
        assert learned(mine) == pytest.approx(learned(theirs), rel=2e-3, abs=2e-5)


def greedy_of_transformers(folder, prompts, mask, num):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    with torch.no_grad():
        for tokens, seen in zip(prompts, mask, strict=True):
            ids = tokens[seen][None]
            for _ in range(num):
                ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
            rows.append(ids[0, -num:].tolist())
    return rows


@pytest.mark.parametrize(("training", "generation"), [
    pytest.param(t, g, id=f"{t}-{g}", marks=[] if (t, g) in SOON else pytest.mark.long) for t, g in PAIRS
])  # fmt: skip
def test_ppo_on_megatron_and_vllm(training, generation, weights, reference, tmp_path, monkeypatch):
    checked = []

    def after(models, prompts):
        folder = tmp_path / f"update-{len(checked)}"
        for future in models.actor.save_model(str(folder)):
            future.wait()
        again = models.actor.generate_sequences(prompts, do_sample=False, suffix="check").get()
        given = prompts.get()
        expected = greedy_of_transformers(folder, given["prompts"], given["prompt_mask"], 3)
        checked.append(again["responses"].tolist() == expected)

    monkeypatch.setitem(SCRIPTS, "ppo", lambda models, batches: greedy_ppo(models, batches, after))
    made = colocated("ppo", training, generation=generation)
    run(job("ppo", minibatches=2), made, settings(weights, launcher="ray", engines=MEGATRON_VLLM), tmp_path, ITERATIONS)
    assert checked == [True] * ITERATIONS
    assert_same_curve(metrics(tmp_path), reference)


@pytest.mark.long
@pytest.mark.parametrize("layout", [(1, 1, 2), (2, 2, 1)])
def test_grpo_samples_alike_whoever_trains(layout, weights, tmp_path):
    """With our own sampling the tokens are the same, so curves of Megatron-Core and torch-native are."""
    grpo = job("grpo", prompts=4, samples=4, minibatches=2)
    run(grpo, colocated("grpo"), settings(weights, launcher="local"), tmp_path / "one", ITERATIONS)
    engines = {"training": "megatron-core", "generation": "torch-native"}
    made = colocated("grpo", layout, generation=(1, 1))
    run(grpo, made, settings(weights, launcher="ray", engines=engines), tmp_path / "four", ITERATIONS)
    assert_same_curve(metrics(tmp_path / "four"), metrics(tmp_path / "one"))


@pytest.mark.parametrize("generation", ["torch-native", pytest.param("vllm", marks=pytest.mark.long)])
def test_fsdp_trains_like_the_others(generation, weights, reference, tmp_path, monkeypatch):
    monkeypatch.setitem(SCRIPTS, "ppo", greedy_ppo)
    made = plan("ppo", {"A": (ROLES["ppo"], (1, 1, 2))}, generation=(1, 2 if generation == "torch-native" else 1))
    engines = {"training": "fsdp2", "generation": generation}
    run(job("ppo", minibatches=2), made, settings(weights, launcher="ray", engines=engines), tmp_path, ITERATIONS)
    assert_same_curve(metrics(tmp_path), reference)


@pytest.mark.long
def test_grpo_learns_on_megatron_and_vllm(weights, tmp_path):
    grpo = job("grpo", prompts=32, samples=8, minibatches=2)
    made = colocated("grpo", (1, 2, 1), generation=(1, 1), micro_batch=64)
    learning = {"kl_coefficient": 0.0, "entropy_coefficient": 0.02}
    run(grpo, made, settings(weights, launcher="ray", engines=MEGATRON_VLLM, learning=learning), tmp_path, 60)
    rewards = [line["reward"] for line in metrics(tmp_path)]
    assert all(math.isfinite(reward) for reward in rewards)
    assert sum(rewards[-10:]) / 10 > sum(rewards[:5]) / 5 + 0.2
