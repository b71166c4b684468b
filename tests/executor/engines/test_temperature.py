"""Protects the sampling temperature in every pass: at T != 1 the first step of a policy has ratio 1 and no KL to its
reference, whoever generates, trains and scores; its entropy is that of the distribution that tokens are drawn from.
"""

import importlib.util

import pytest
import torch
from tensordict import TensorDict

from benchmarks.rank_pool import run_on_ranks
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.spec import EngineSpec
from executor.records import Identity
from executor.rl.hyperparameters import Hyperparameters
from executor.worker.roles import ActorWorker, ReferenceWorker
from profiles.errors import InputError
from simulator.plan.groups import Degrees
from tests.executor.plans import config, config_for_all_engines

missing = [name for name in ("megatron", "vllm") if importlib.util.find_spec(name) is None]
if missing:
    pytest.skip(f"needs {', '.join(missing)}: the extra cpu-engines", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]
TRAINERS, GENERATORS = ("torch-native", "fsdp2", "megatron-core"), ("torch-native", "vllm")
TEMPERATURE, ROWS, PROMPT, RESPONSE = 0.6, 32, 4, 6
ALONE = Degrees(1, 1, 1, 1, 1)


def worker_of(kind, path, engine, generation=None, temperature=TEMPERATURE):
    """A role's worker as a run makes it, alone in its world."""
    trained = OptimizerConfig(1e-3) if kind is ActorWorker else None
    model = ModelSpec(path, optimizer=trained, micro_batch=8, max_num_seqs=ROWS)
    hyper = Hyperparameters(temperature=temperature, max_tokens=RESPONSE, kl_coefficient=1.0)
    choice = EngineSpec(model, engine, generation)
    worker = kind(Identity("A", 0, 1), address="", degrees=ALONE, engine=choice, algorithm="grpo", hyper=hyper)
    worker.init_model()
    return worker


def prompts():
    stream = torch.Generator().manual_seed(0)
    seen = torch.arange(PROMPT)[None] >= (torch.arange(ROWS) % 3)[:, None]
    tokens = torch.randint(0, 16, (ROWS, PROMPT), generator=stream) * seen
    text = torch.randint(0, 16, (ROWS, 5), generator=stream)
    return TensorDict(
        {
            "uid": torch.arange(ROWS),
            "prompts": tokens,
            "prompt_mask": seen,
            "pretrain_tokens": text,
            "pretrain_mask": torch.ones_like(text, dtype=torch.bool),
        },
        batch_size=[ROWS],
    )


def first_steps(rank, path, folder):
    """What each generator wrote; what each trainer makes of it: old and reference log-probs, and its first step."""
    found, given = {}, prompts()
    worker_of(ActorWorker, path, "fsdp2").save_model(folder)
    for generator in GENERATORS:
        actor = worker_of(ActorWorker, path, "torch-native", generator)
        actor.transition(0)
        batch = TensorDict({**given, **actor.generate_sequences(given)}, batch_size=[ROWS])
        found[generator] = batch
        batch["advantages"] = torch.where(torch.arange(ROWS) % 2 == 0, 1.0, -1.0)[:, None] * batch["response_mask"]
        for trainer in TRAINERS:
            learner = worker_of(ActorWorker, path, trainer)
            old = learner.compute_log_prob(batch)["log_probs"]
            reference = worker_of(ReferenceWorker, path, trainer).compute_ref_log_prob(batch)["ref_log_probs"]
            seen = TensorDict({**batch, "ref_log_probs": reference}, batch_size=[ROWS])
            likelihood = learner.compute_loss(batch)["pretrain_loss"]
            found[trainer, generator] = old, reference, learner.update_actor(seen), likelihood
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(config_for_all_engines(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The weights that every engine draws from the seed, where transformers finds them."""
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def found(path, saved):
    return run_on_ranks(1, first_steps, path, str(saved))[0]


@pytest.fixture(scope="module")
def model(found, saved):
    """The policy as another library runs it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def logits(found, model):
    """Before every response token of the torch-native generator's, ``[B, R, V]``."""
    batch = found["torch-native"]
    tokens = torch.cat([batch["prompts"], batch["responses"]], 1)
    seen = torch.cat([batch["prompt_mask"], batch["response_mask"]], 1)
    places = (seen.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        return model(tokens, attention_mask=seen.long(), position_ids=places).logits[:, PROMPT - 1 : -1]


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_first_step_has_ratio_one(trainer, generator, found):
    batch, (old, reference, step, _) = found[generator], found[trainer, generator]
    mask = batch["response_mask"]
    for log_probs in (old, reference):
        assert torch.allclose((log_probs - batch["log_probs"])[mask], torch.zeros(()), atol=1e-4)
    assert step["clip_fraction"] == 0
    assert step["approx_kl"] == pytest.approx(0, abs=1e-5)
    assert step["reference_kl"] == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_log_probs_and_entropy_are_those_of_scaled_logits(trainer, found, logits):
    batch, (old, _, step, _) = found["torch-native"], found[trainer, "torch-native"]
    mask, scaled = batch["response_mask"], (logits / TEMPERATURE).log_softmax(-1)
    expected = scaled.gather(-1, batch["responses"][..., None])[..., 0]
    assert torch.allclose(old[mask], expected[mask], atol=1e-4)
    entropy = -(scaled.exp() * scaled).sum(-1)
    assert step["entropy"] == pytest.approx(float(entropy[mask].mean()), rel=1e-4)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_pretraining_text_has_no_temperature(trainer, found, model):
    """Nobody sampled it: its likelihood is that of the model itself."""
    text = prompts()["pretrain_tokens"]
    with torch.no_grad():
        expected = model(text).logits[:, :-1].log_softmax(-1).gather(-1, text[:, 1:, None])[..., 0]
    assert torch.allclose(found[trainer, "torch-native"][3], -expected.mean(1), atol=1e-4)


def test_a_temperature_that_no_engine_samples_at_is_refused():
    """vLLM draws at 0.01 whatever is below, so that nothing else could be scored."""
    with pytest.raises(InputError, match="temperature"):
        config(learning={"temperature": 0.001})
