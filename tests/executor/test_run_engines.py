"""Protects runs on other engines than the embedded one: Megatron-Core trains, vLLM generates, under Ray, in every pair
of layouts; losses equal those of the torch-native engine, and after each update vLLM's greedy tokens are transformers'.
"""

import importlib.util
import json
import math
from dataclasses import replace

import pytest
import torch

from executor.rl.algorithm import Step
from executor.rl.algorithms import RUNNABLE
from executor.run import run
from executor.weights.architecture import read_architecture
from executor.weights.checkpoint import reader_of, write_folder
from simulator.speculation import Speculation
from tests.executor.plans import (
    ROLES,
    colocated,
    config,
    config_for_all_engines,
    generating_apart,
    job,
    learned,
    metrics,
    plan,
)

ray = pytest.importorskip("ray")
missing = [name for name in ("megatron", "vllm") if importlib.util.find_spec(name) is None]
if missing:
    pytest.skip(f"needs {', '.join(missing)}: the extra cpu-engines", allow_module_level=True)

from executor.launch.ray import RayLauncher  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.thorough]
ITERATIONS = 2
PAIRS = [  # (p, t, d) in training, (p_g, t_g) in generation
    ((2, 1, 1), (1, 2)),
    ((2, 2, 1), (1, 2)),
    ((2, 2, 1), (1, 1)),
    ((4, 1, 1), (2, 1)),
    ((1, 2, 2), (2, 2)),
    ((1, 2, 2), (2, 1)),
    ((1, 4, 1), (2, 1)),
    ((4, 1, 1), (1, 4)),
    ((2, 2, 2), (1, 2)),
]
SOON = {((2, 1, 1), (1, 2))}
"""Stages become shards, on the fewest ranks: each imports vLLM. The others belong to `make check-all`."""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    launcher = RayLauncher(cpu_ranks=8)
    yield
    launcher.stop()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return config_for_all_engines(tmp_path_factory.mktemp("model"))


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
        patch.setitem(RUNNABLE, "ppo", replace(RUNNABLE["ppo"], script=greedy_ppo))
        run(job("ppo", minibatches=2), colocated("ppo"), settings(weights, launcher="local"), folder, ITERATIONS)
    return metrics(folder)


def assert_same_curve(found, reference):
    assert len(found) == len(reference)
    for mine, theirs in zip(found, reference, strict=True):
        assert learned(mine) == pytest.approx(learned(theirs), rel=2e-3, abs=2e-5)


def greedy_of_transformers(folder, prompts, mask, num):
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


def log_probs_of_transformers(folder, batch):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    with torch.no_grad():
        for prompt, seen, response in zip(batch["prompts"], batch["prompt_mask"], batch["responses"], strict=True):
            ids = torch.cat([prompt[seen], response])
            found = model(ids[None]).logits[0, -len(response) - 1 : -1].log_softmax(-1)
            rows.append(found.gather(1, response[:, None])[:, 0])
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("training", "generation"),
    [pytest.param(t, g, id=f"{t}-{g}", marks=[] if (t, g) in SOON else pytest.mark.long) for t, g in PAIRS],
)
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

    monkeypatch.setitem(
        RUNNABLE, "ppo", replace(RUNNABLE["ppo"], script=lambda models, batches: greedy_ppo(models, batches, after))
    )
    made = colocated("ppo", training, generation=generation)
    run(job("ppo", minibatches=2), made, settings(weights, launcher="ray", engines=MEGATRON_VLLM), tmp_path, ITERATIONS)
    assert checked == [True] * ITERATIONS
    assert_same_curve(metrics(tmp_path), reference)


@pytest.mark.long
def test_ranks_that_share_sequences_run_beside_vllm(weights, reference, tmp_path, monkeypatch):
    """Tensor x context parallel: the curve of one process, and each replica of vLLM gets the weights from its copy."""
    monkeypatch.setitem(RUNNABLE, "ppo", replace(RUNNABLE["ppo"], script=greedy_ppo))
    made = over(colocated("ppo", (1, 2, 2), generation=(1, 1)), dp=1, cp=2)
    run(job("ppo", minibatches=2), made, settings(weights, launcher="ray", engines=MEGATRON_VLLM), tmp_path, ITERATIONS)
    assert_same_curve(metrics(tmp_path), reference)


def over(made, **degrees):
    """``made`` with other degrees in every layout for training and scoring."""
    entries = []
    for entry in made.roles:
        layouts = {name: getattr(entry, name) for name in ("training", "inference")}
        cut = {name: found.model_copy(update=degrees) for name, found in layouts.items() if found is not None}
        entries.append(entry.model_copy(update=cut))
    return made.model_copy(update={"roles": tuple(entries)})


@pytest.mark.long
@pytest.mark.parametrize(("ep", "adds_to_one"), [(2, False), (1, True)])
def test_a_mixture_has_the_log_probs_of_transformers(ep, adds_to_one, tmp_path, monkeypatch):
    """Qwen3-MoE on Megatron-Core and vLLM, after each update; that layouts learn alike: engines/test_megatron.py."""
    weights = config_for_all_engines(tmp_path)
    mixture = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "moe_intermediate_size": 64}
    mixture |= {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": adds_to_one}
    weights.write_text(json.dumps(json.loads(weights.read_text()) | mixture))
    checked = []

    def after(models, prompts):
        folder = tmp_path / f"update-{len(checked)}"
        for future in models.actor.save_model(str(folder)):
            future.wait()
        batch = prompts | models.actor.generate_sequences(prompts, do_sample=False, suffix="check")
        batch |= models.actor.compute_log_prob(batch)  # of what vLLM wrote, by Megatron-Core
        found = batch.get()
        expected = log_probs_of_transformers(folder, found)
        names = ("rollout_log_probs", "log_probs")
        checked.append([torch.allclose(found[name], expected, atol=1e-4) for name in names])

    script = lambda models, batches: greedy_ppo(models, batches, after)  # noqa: E731
    monkeypatch.setitem(RUNNABLE, "ppo", replace(RUNNABLE["ppo"], script=script))
    made = over(colocated("ppo", (1, 1, 2), generation=(1, 2)), ep=ep)
    run(job("ppo", minibatches=2), made, settings(weights, launcher="ray", engines=MEGATRON_VLLM), tmp_path, ITERATIONS)
    assert checked == [[True, True]] * ITERATIONS


def saved_whole(weights, folder):
    """A folder with the weights that the run draws first."""
    arch = read_architecture(str(weights))
    read = reader_of(arch, str(weights), settings(weights).seed)
    tensors = arch.tensors().values()
    write_folder(folder, weights, {t.name: read(t, tuple((0, n) for n in t.shape)).clone() for t in tensors})
    return str(folder)


@pytest.mark.long
@pytest.mark.parametrize("apart", [False, True])
def test_drafts_are_those_of_the_plan_and_are_counted(apart, weights, tmp_path, monkeypatch):
    """The first policy drafts for all later ones: no transition touches it, and tokens stay the policy's own."""
    seen = []
    script = lambda models, batches: watched(models, batches, tmp_path, seen)  # noqa: E731
    monkeypatch.setitem(RUNNABLE, "grpo", replace(RUNNABLE["grpo"], script=script))
    made = colocated("grpo", (1, 2, 1), generation=(1, 2))
    made = (generating_apart(made, (1, 1, 1)) if apart else made).model_copy(update={"draft_tokens": 2})
    facts = job("grpo", prompts=4, samples=2, response=6, minibatches=2)
    facts = replace(facts, speculation=Speculation((0.5, 0.4, 0.3), read_architecture(str(weights)).shape))
    asked = settings(weights, launcher="ray", engines=MEGATRON_VLLM)
    draft = saved_whole(weights, tmp_path / "draft")
    asked = asked.model_copy(update={"weights": {**asked.weights, "draft": draft}})
    timelines = run(facts, made, asked, tmp_path, ITERATIONS)
    for i, (batch, greedy) in enumerate(seen):
        folder = tmp_path / f"version-{i}"
        expected = greedy_of_transformers(folder, batch["prompts"], batch["prompt_mask"], 6)
        assert greedy["responses"].tolist() == expected
        assert torch.allclose(batch["log_probs"], log_probs_of_transformers(folder, batch), atol=1e-4)
    for timeline in timelines:
        (counts,) = [span.counts for span in timeline.spans if span.call == "generate_sequences"]
        assert counts.draft_steps >= counts.drafts_kept[0] >= counts.drafts_kept[1]
        assert len(counts.drafts_kept) == 2 and counts.draft_steps > 0


def watched(models, batches, folder, seen):
    """GRPO, or PPO where there is a critic, that keeps the weights before each update and what was generated."""
    for i, prompts in enumerate(batches):
        for future in models.actor.save_model(str(folder / f"version-{i}")):
            future.wait()
        batch = prompts | models.actor.generate_sequences(prompts)
        greedy = models.actor.generate_sequences(prompts, do_sample=False, suffix="greedy")
        if "critic" in models:
            batch |= models.critic.compute_values(batch)
            batch |= models.reference.compute_ref_log_prob(batch)
        batch |= models.reward.compute_reward(batch)
        batch |= models.controller.compute_advantage(batch)
        updates = {"critic": models.critic.update_critic(batch)} if "critic" in models else {}
        updates["actor"] = models.actor.update_actor(batch)
        seen.append((batch.get(), greedy.get()))
        yield Step(batch, updates)


APART = [  # algorithm, training engine and layout, generation engine and layout, schedule, iterations ahead
    ("grpo", "fsdp2", (1, 1, 2), "torch-native", (1, 1, 2), "async", 2),
    ("grpo", "megatron-core", (1, 2, 1), "vllm", (1, 1, 1), "one-step-off", 1),
    ("ppo", "megatron-core", (1, 2, 1), "vllm", (1, 1, 1), "sync", 0),
    ("ppo", "megatron-core", (2, 1, 1), "vllm", (1, 2, 1), "async", 2),
    ("grpo", "fsdp2", (1, 1, 2), "vllm", (1, 1, 1), "one-step-off", 1),
    ("grpo", "torch-native", (1, 2, 1), "vllm", (1, 1, 1), "sync", 0),
]


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.long) for c in APART])
def test_a_pool_that_generates_has_the_weights_that_its_responses_name(case, weights, tmp_path, monkeypatch):
    """Staleness is what the schedule says; greedy tokens and log-probs are transformers' under the weights named."""
    algorithm, trainer, training, generator, generation, schedule, ahead = case
    seen = []
    monkeypatch.setitem(
        RUNNABLE,
        algorithm,
        replace(RUNNABLE[algorithm], script=lambda models, batches: watched(models, batches, tmp_path, seen)),
    )
    made = generating_apart(colocated(algorithm, training), generation, schedule, ahead or 1)
    engines = {"training": trainer, "generation": generator}
    learning = {"entropy_coefficient": 0.05}  # weights move even where all samples of a prompt score alike
    run_config = settings(weights, launcher="ray", engines=engines, learning=learning)
    samples = 2 if algorithm == "grpo" else 1
    timelines = run(job(algorithm, prompts=8 // samples, samples=samples, minibatches=2), made, run_config, tmp_path, 4)
    found = metrics(tmp_path)
    assert [line["actor/staleness"] for line in found] == [min(i, ahead) for i in range(4)]
    assert all(math.isfinite(line["actor/loss"]) for line in found)
    for i, (batch, greedy) in enumerate(seen):
        version = max(i - ahead, 0)
        assert set(batch["version"].tolist()) == set(greedy["version"].tolist()) == {version}
        folder = tmp_path / f"version-{version}"
        expected = greedy_of_transformers(folder, batch["prompts"], batch["prompt_mask"], 3)
        assert greedy["responses"].tolist() == expected
        theirs = log_probs_of_transformers(folder, batch)
        assert torch.allclose(batch["log_probs"], theirs, atol=1e-4)
        if version:
            before = log_probs_of_transformers(tmp_path / f"version-{version - 1}", batch)
            assert not torch.allclose(theirs, before, atol=1e-3)  # else the comparison says nothing
    assert_everybody_got_the_model(timelines[-1], weights, math.prod(generation))


def assert_everybody_got_the_model(timeline, weights, num_receivers):
    """What all that train send is the model together, and reaches every rank that generates."""
    counts = {span.pool: span.counts for span in timeline.spans if span.call == "transition"}
    sizes = [math.prod(tensor.shape) for tensor in read_architecture(str(weights)).tensors().values()]
    assert counts["A"].bytes_out >= 4 * sum(sizes)
    assert counts["G"].bytes_in == num_receivers * counts["A"].bytes_out
    assert 0 < counts["A"].bucket_bytes <= counts["G"].bucket_bytes


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


FSDP = [  # (p, t, d), generation engine, (p_g, t_g)
    ((1, 1, 2), "torch-native", (1, 2)),
    ((1, 2, 1), "vllm", (1, 1)),
    ((1, 1, 2), "vllm", (1, 1)),
    ((1, 2, 2), "vllm", (1, 2)),
    ((1, 2, 2), "torch-native", (2, 2)),
]


@pytest.mark.long
@pytest.mark.parametrize("case", FSDP, ids=str)
def test_fsdp_trains_like_the_others(case, weights, reference, tmp_path, monkeypatch):
    layout, generator, generation = case
    monkeypatch.setitem(RUNNABLE, "ppo", replace(RUNNABLE["ppo"], script=greedy_ppo))
    made = plan("ppo", {"A": (ROLES["ppo"], layout)}, generation=generation)
    engines = {"training": "fsdp2", "generation": generator}
    run(job("ppo", minibatches=2), made, settings(weights, launcher="ray", engines=engines), tmp_path, ITERATIONS)
    assert_same_curve(metrics(tmp_path), reference)


@pytest.mark.long
def test_every_role_on_an_engine_of_its_own(weights, tmp_path, monkeypatch):
    """Actor on Megatron-Core and vLLM, critic on FSDP2, reference and reward model torch-native, on the same ranks."""
    monkeypatch.setitem(RUNNABLE, "ppo", replace(RUNNABLE["ppo"], script=greedy_ppo))
    ppo, models = job("ppo", minibatches=2), {"reward": None}
    run(ppo, colocated("ppo"), settings(weights, launcher="local", **models), tmp_path / "one", ITERATIONS)
    roles = {"critic": "fsdp2", "reference": "torch-native", "reward": "torch-native"}
    mixed = settings(weights, launcher="ray", engines={**MEGATRON_VLLM, "roles": roles}, **models)
    run(ppo, colocated("ppo", (1, 2, 1), generation=(1, 1)), mixed, tmp_path / "two", ITERATIONS)
    assert_same_curve(metrics(tmp_path / "two"), metrics(tmp_path / "one"))


@pytest.mark.long
def test_scoring_has_a_layout_of_its_own_on_either_trainer(weights, reference, tmp_path, monkeypatch):
    """Actor on FSDP2, critic on Megatron-Core; both score over two data-parallel ranks what they train over tensors."""
    monkeypatch.setitem(RUNNABLE, "ppo", replace(RUNNABLE["ppo"], script=greedy_ppo))
    made = colocated("ppo", (1, 2, 1), generation=(1, 1), scoring=(1, 1, 2))
    engines = {"training": "fsdp2", "roles": {"critic": "megatron-core"}}
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
