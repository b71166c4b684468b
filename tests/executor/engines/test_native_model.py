"""Protects the decoder against transformers' own models, and weights against files: same names, same numbers."""

import json
from contextlib import nullcontext

import pytest
import torch
from tensordict import TensorDict

from executor.engines.model_spec import ModelSpec
from executor.engines.native.engine import TorchNativeEngine
from executor.engines.native.generation import wave_of
from executor.engines.native.heads import next_tokens, uniforms
from executor.records import Identity
from executor.rl.sampling import Sampling
from executor.weights.architecture import architecture_of
from executor.weights.native_layout import require_even
from executor.weights.parameters import Slice, cut_out, drawn, parameters_of, read_dense
from profiles.errors import FileFormatError, InputError, NotYetError
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY

ONE = Degrees(1, 1, 1, 1, 1)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "head_dim": 8,
}
FAMILIES = [("llama", False), ("qwen2", True), ("qwen3", False)]


def engine(path, **changes) -> TorchNativeEngine:
    made = TorchNativeEngine(Identity("A", 0, 1), "", ONE, ModelSpec(str(path), **changes))
    made.load()
    return made


def prompts(vocab: int = 16, rows: int = 4) -> TensorDict:
    stream = torch.Generator().manual_seed(0)
    mask = torch.tensor([[False, True, True], [True, True, True], [False, False, True], [True, True, True]])[:rows]
    tokens = torch.randint(0, vocab, (rows, 3), generator=stream)
    return TensorDict({"prompts": tokens, "prompt_mask": mask, "uid": torch.arange(rows)}, batch_size=[rows])


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda f: f[0])
def saved(request, tmp_path_factory):
    """A folder that transformers wrote, and the model it wrote."""
    transformers = pytest.importorskip("transformers")
    family, tied = request.param
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, tie_word_embeddings=tied)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, weight in model.named_parameters():  # norms and biases start as constants, which would hide mistakes
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(weight, mean=0.8, std=0.2)
    folder = tmp_path_factory.mktemp(family)
    model.save_pretrained(folder)
    return folder, model


@pytest.mark.filterwarnings("ignore")
def test_log_probs_equal_those_of_transformers(saved):
    folder, model = saved
    batch = prompts(40)
    batch["responses"] = torch.randint(0, 40, (4, 5), generator=torch.Generator().manual_seed(1))
    batch["response_mask"] = torch.ones(4, 5, dtype=torch.bool)
    ours = engine(folder, micro_batch=3).log_probs(batch, 1.0)
    assert torch.allclose(ours, log_probs_of(model, batch), atol=2e-5)


def log_probs_of(model, batch):
    """Those of transformers' own model."""
    tokens = torch.cat([batch["prompts"], batch["responses"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["response_mask"]], 1)
    with torch.no_grad():
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        logits = model(tokens, attention_mask=mask.long(), position_ids=positions).logits
    return logits[:, 2:-1].log_softmax(-1).gather(-1, batch["responses"][..., None])[..., 0]


LONGER = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {"factor": 8.0, **LONGER},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_angles_are_those_of_transformers(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    scaled = {"rope_type": kind, "rope_theta": 1e4, **SCALINGS[kind]}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, rope_parameters=scaled)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path)
    batch = prompts(40)
    batch["responses"] = torch.randint(0, 40, (4, 40), generator=torch.Generator().manual_seed(1))
    batch["response_mask"] = torch.ones(4, 40, dtype=torch.bool)
    made = engine(tmp_path)
    assert torch.allclose(made.log_probs(batch, 1.0), log_probs_of(model, batch), atol=1e-4)
    plain = json.loads((tmp_path / "config.json").read_text()) | {"rope_parameters": {"rope_theta": 1e4}}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    unscaled = engine(tmp_path).log_probs(batch, 1.0)
    assert torch.allclose(made.log_probs(batch, 1.0), unscaled, atol=1e-2) is (kind == "dynamic")  # 43 tokens of 64
    with pytest.raises(InputError, match="dynamic rotary scaling") if kind == "dynamic" else nullcontext():
        made.generate(prompts(40), Sampling(62, seed=1))


@pytest.mark.filterwarnings("ignore")
def test_greedy_generation_equals_that_of_transformers(saved):
    folder, model = saved
    batch = prompts(40)
    found = engine(folder, max_num_seqs=3).generate(batch, Sampling(6, greedy=True))
    theirs = model.generate(
        batch["prompts"],
        attention_mask=batch["prompt_mask"].long(),
        max_new_tokens=6,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    assert found["responses"].tolist() == theirs[:, 3:].tolist()


def test_log_probs_of_generation_equal_a_pass_over_the_whole_sequence():
    """The KV cache, the padding and the end token change nothing."""
    model, batch = engine(TINY), prompts()
    batch.update(model.generate(batch, Sampling(6, end_tokens=(3,), seed=8)))
    assert not batch["response_mask"].all()  # the seed has rows that end early
    again = model.log_probs(batch, 1.0)
    assert torch.allclose(batch["log_probs"], again * batch["response_mask"], atol=1e-5)
    for tokens, mask in zip(batch["responses"], batch["response_mask"], strict=True):
        ends = (tokens == 3).nonzero().flatten().tolist()
        assert int(mask.sum()) == (ends[0] + 1 if ends else 6)


def test_sampling_depends_on_seed_and_sample_alone():
    model, batch = engine(TINY), prompts()
    whole = model.generate(batch, Sampling(5, seed=1))["responses"]
    reordered = model.generate(batch[torch.tensor([3, 1])], Sampling(5, seed=1))["responses"]
    assert torch.equal(reordered, whole[[3, 1]])
    assert torch.equal(engine(TINY, max_num_seqs=1).generate(batch, Sampling(5, seed=1))["responses"], whole)
    assert not torch.equal(model.generate(batch, Sampling(5, seed=2))["responses"], whole)


def test_tokens_are_drawn_by_their_probabilities():
    logits = torch.tensor([0.5, 0.2, 0.2, 0.1]).log().repeat(20_000, 1)
    tokens, log_probs = next_tokens(logits, uniforms(3, torch.arange(20_000), 1)[:, 0], Sampling(1))
    shares = torch.bincount(tokens, minlength=4) / 20_000
    assert torch.allclose(shares, torch.tensor([0.5, 0.2, 0.2, 0.1]), atol=0.012)  # three standard deviations
    assert torch.allclose(log_probs.exp(), torch.tensor([0.5, 0.2, 0.2, 0.1])[tokens])


@pytest.mark.parametrize(
    ("cut", "left"),
    [({"top_k": 2}, [0, 1]), ({"top_p": 0.6}, [0, 1]), ({"top_p": 0.5}, [0]), ({"top_k": 3, "top_p": 0.95}, [0, 1, 2])],
)
def test_unlikely_tokens_are_left_out_and_the_others_drawn_by_what_is_left(cut, left):
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.1])
    tokens, log_probs = next_tokens(
        probabilities.log().repeat(2_000, 1), uniforms(3, torch.arange(2_000), 1)[:, 0], Sampling(1, **cut)
    )
    assert tokens.unique().tolist() == left
    assert torch.allclose(log_probs.exp(), (probabilities / probabilities[left].sum())[tokens])


def test_uniform_numbers_are_uniform_and_independent_enough():
    drawn_numbers = uniforms(0, torch.arange(2000), 8)
    assert ((drawn_numbers >= 0) & (drawn_numbers < 1)).all()
    assert float(drawn_numbers.mean()) == pytest.approx(0.5, abs=0.01)
    correlation = torch.corrcoef(drawn_numbers.T)
    assert (correlation - torch.eye(8)).abs().max() < 0.1
    assert len(drawn_numbers.unique()) == drawn_numbers.numel()


def test_a_value_head_scores_the_last_token():
    model, batch = engine(TINY, value_head=True), prompts()
    batch["responses"] = torch.ones(4, 3, dtype=torch.int64)
    batch["response_mask"] = torch.tensor([[True, True, True], [True, False, False], [True, True, False], [True] * 3])
    scores = model.scores(batch)
    batch["responses"][1, 1:] = 7  # behind the end
    assert torch.equal(model.scores(batch), scores)
    batch["responses"][1, 0] = 7
    assert model.scores(batch)[1] != scores[1]
    assert model.values(batch).shape == (4, 3)


def test_bf16_runs_and_stays_near_fp32():
    batch = prompts()
    batch["responses"] = torch.ones(4, 3, dtype=torch.int64)
    batch["response_mask"] = torch.ones(4, 3, dtype=torch.bool)
    rounded, exact = (engine(TINY, dtype=dtype).log_probs(batch, 1.0) for dtype in ("bf16", "fp32"))
    assert torch.allclose(rounded, exact, atol=0.05)


def test_random_weights_do_not_depend_on_the_slice():
    config = read_dense(TINY)
    whole = {p.name: drawn(p, config, 7) for p in parameters_of(config, Slice(0, 1, 0, 1), value_head=False)}
    seen = set()
    for stage in range(2):
        for parameter in parameters_of(config, Slice(stage, 2, 0, 2), value_head=False):
            seen.add(parameter.name)
            halves = [cut_out(drawn(parameter, config, 7), parameter, Slice(stage, 2, i, 2)) for i in range(2)]
            joined = halves[0] if parameter.cut is None else torch.cat(halves, parameter.cut)
            assert torch.equal(joined, whole[parameter.name])
    assert seen == whole.keys()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model_type": "gpt2"}, NotYetError, "exist for llama, qwen2, qwen3, qwen3_moe, mixtral, not for 'gpt2'"),
        (
            {"rope_scaling": {"type": "longrope"}},
            NotYetError,
            "'longrope' cannot run yet; linear, dynamic",
        ),
        ({"rope_scaling": {"rope_type": "yarn"}}, FileFormatError, "rope_scaling.factor must be a positive number"),
        ({"attention_bias": True}, NotYetError, "attention_bias"),
        ({"vocab_size": None}, None, ""),
    ],
)
def test_configs_that_cannot_run_say_why(change, error, message):
    document = json.loads(TINY.read_text()) | change
    if error is None:
        document.pop("vocab_size")
        error, message = FileFormatError, "vocab_size is missing"
    with pytest.raises(error, match=message):
        architecture_of(document, "x")


def test_experts_are_left_to_other_engines(tmp_path):
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(json.loads(TINY.read_text()) | experts))
    with pytest.raises(NotYetError, match="'mixtral' has experts, which the torch-native engine cannot run yet"):
        engine(tmp_path)


def test_weights_that_do_not_fit_the_config_are_named(saved, tmp_path):
    folder, _ = saved
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(document | {"intermediate_size": 64}))
    with pytest.raises(InputError, match=r"mlp.* has shape .*, the config asks for"):
        engine(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(document | {"num_hidden_layers": 3}))
    with pytest.raises(InputError, match=r"weights are missing, the first is model.layers.2"):
        engine(tmp_path)


def test_degrees_that_do_not_divide_the_model_are_refused():
    with pytest.raises(InputError, match="num_kv_heads 2 does not divide by tensor-parallel degree 4"):
        require_even(read_dense(TINY), 1, 4)
    with pytest.raises(InputError, match="2 layers do not divide into 4 pipeline stages"):
        require_even(read_dense(TINY), 4, 1)


def test_a_kv_budget_limits_the_sequences_at_once_and_must_hold_one():
    batch = prompts()
    expected = engine(TINY).generate(batch, Sampling(5, seed=1))["responses"]
    one = 2 * 2 * 8 * 2 * 16 * 4  # keys and values, layers, tokens, heads, width, bytes
    limited = engine(TINY, kv_cache_bytes=2 * one)
    limited.to_generation()
    assert wave_of(limited._generating, batch, Sampling(5), limited.spec) == 2  # noqa: SLF001
    assert torch.equal(limited.generate(batch, Sampling(5, seed=1))["responses"], expected)
    with pytest.raises(InputError, match="does not hold one sequence of 8 tokens"):
        engine(TINY, kv_cache_bytes=one - 1).generate(batch, Sampling(5))
