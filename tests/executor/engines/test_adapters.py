"""Protects adapters: a model with them is the model with merged weights, only they learn, only they are sent."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensordict import TensorDict

from benchmarks.rank_pool import run_on_ranks
from executor.checkpoint.shards import read_shards, write_shards
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.spec import EngineSpec
from executor.records import Identity
from executor.rl.loss_terms import LossTerm
from executor.rl.sampling import Sampling
from executor.rl.sequences import sequences_of
from executor.weights.architecture import Adapters, is_adapter, read_architecture
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY, config_for_all_engines

ONE = Degrees(1, 1, 1, 1, 1)
HAS = Adapters(rank=4, alpha=8.0)
TRAINERS = ("torch-native", "fsdp2")


def batch_of():
    stream = torch.Generator().manual_seed(0)
    columns = {
        "uid": torch.arange(8),
        "prompts": torch.randint(0, 16, (8, 3), generator=stream),
        "prompt_mask": torch.ones(8, 3, dtype=torch.bool),
        "responses": torch.randint(0, 16, (8, 4), generator=stream),
        "response_mask": torch.arange(4)[None] < torch.tensor([4, 3, 2, 4, 1, 4, 4, 2])[:, None],
    }
    return TensorDict(columns, batch_size=[8])


def likelihood(outputs, rows):
    return {"loss": -(outputs["log_probs"] * rows["target_mask"]).sum()}


def made(rank, num, x, training, path=str(TINY), adapters=HAS, generation="torch-native", **changes):
    spec = ModelSpec(path, optimizer=OptimizerConfig(1e-2), micro_batch=4, max_num_seqs=8, adapters=adapters, **changes)
    engine = EngineSpec(spec, training, generation).build(Identity("A", rank, num), "", x)
    engine.engine.load()
    return engine


def learn(engine, x, rank, steps=2):
    mine = batch_of().split(8 // x.d)[rank // (x.p * x.t)]
    return [engine.trainer.update((LossTerm(*sequences_of(mine), likelihood),)) for _ in range(steps)]


def merged(folder, out):
    """The weights that adapters in ``folder`` make of the base, as a model without any."""
    arch = read_architecture(TINY)
    learned = load_file(folder / "adapter_model.safetensors")
    whole = load_file(out / "model.safetensors")
    for name in arch.tensors():
        key = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        if f"{key}A.weight" in learned:
            whole[name] += HAS.scale * learned[f"{key}B.weight"] @ learned[f"{key}A.weight"]
    save_file(whole, out / "model.safetensors")


@pytest.mark.parametrize("training", TRAINERS)
def test_a_model_with_adapters_is_the_one_with_merged_weights(training, tmp_path):
    (plain, fresh, learned, whole), (answers, of_whole) = run_on_ranks(1, with_and_merged, training, tmp_path)[0]
    torch.testing.assert_close(torch.tensor(fresh), torch.tensor(plain))  # a fresh adapter changes nothing
    torch.testing.assert_close(torch.tensor(learned), torch.tensor(whole), rtol=1e-4, atol=1e-5)
    assert (torch.tensor(learned) - torch.tensor(fresh)).abs().max() > 0.1
    assert answers == of_whole


def with_and_merged(_, training, tmp_path):
    """Log-probs without adapters, with fresh ones, with what they learned, and of merged weights; answers of both."""
    plain = made(0, 1, ONE, "torch-native", adapters=None)
    plain.trainer.save(str(tmp_path / "merged"))
    engine, batch = made(0, 1, ONE, training), batch_of()
    fresh = engine.trainer.log_probs(batch, 1.0)
    learn(engine, ONE, 0)
    engine.trainer.save(str(tmp_path / "adapters"))
    merged(tmp_path / "adapters", tmp_path / "merged")
    one = made(0, 1, ONE, "torch-native", str(tmp_path / "merged"), None)
    log_probs = plain.trainer.log_probs(batch, 1.0), fresh, *(m.trainer.log_probs(batch, 1.0) for m in (engine, one))
    answers = [m.generator.generate(batch, Sampling(4, seed=1))["responses"].tolist() for m in (engine, one)]
    return [found.tolist() for found in log_probs], answers


@pytest.mark.parametrize("training", TRAINERS)
def test_only_adapters_learn_and_are_saved_and_have_states(training, tmp_path):
    changed, names, again, expected = run_on_ranks(1, resumed, training, tmp_path)[0]
    assert changed == {name for name in read_architecture(TINY, adapters=HAS).tensors() if is_adapter(name)}
    assert names == {f"{at}{name}" for name in changed for at in ("", "optimizer.exp_avg.", "optimizer.exp_avg_sq.")}
    assert again == expected


def resumed(_, training, tmp_path):
    """Which tensors changed, which were saved, and a step after loading and without."""
    engine = made(0, 1, ONE, training)
    inner = getattr(engine.trainer, "trainer", engine.trainer)
    before = {name: tensor.clone() for name, tensor in inner.tensors().items()}
    learn(engine, ONE, 0)
    changed = {name for name, tensor in inner.tensors().items() if not torch.equal(tensor, before[name])}
    state = engine.trainer.saved_state()
    write_shards(tmp_path, 0, state.chunks)
    fresh = made(0, 1, ONE, training)
    fresh.trainer.load_state(lambda chunks: read_shards(tmp_path, chunks), state.counters)
    names = {chunk.name for chunk in state.chunks}
    return changed, names, learn(fresh, ONE, 0, 1), learn(engine, ONE, 0, 1)


CASES = [  # trainer, degrees
    ("torch-native", Degrees(1, 2, 2, 1, 2)),
    ("torch-native", Degrees(2, 2, 1, 1, 1)),
    ("fsdp2", Degrees(1, 1, 4, 1, 2)),
]


def rounds(rank, num, training, x, path):
    """Losses of three rounds, and the bytes that each transition moved to this rank."""
    engine, found, received = made(rank, num, x, training, path), [], []
    for _ in range(3):
        engine.generator.to_generation()
        received.append(engine.engine.weights_moved().received_bytes)
        found += learn(engine, x, rank, 1)
    return found, received


def alone(rank, path):
    return rounds(rank, 1, "torch-native", ONE, path)


def on_ranks(rank, path):
    return [rounds(rank, 4, *case, path) for case in CASES]


@pytest.mark.slow
def test_layouts_learn_alike_and_send_adapters_alone(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(TINY.read_text()) | {"num_hidden_layers": 4, "num_key_value_heads": 4}))
    expected, _ = run_on_ranks(1, alone, str(file))[0]
    adapters = sum(
        torch.Size(tensor.shape).numel() * 4
        for name, tensor in read_architecture(file, adapters=HAS).tensors().items()
        if is_adapter(name)
    )
    for case in zip(*run_on_ranks(4, on_ranks, str(file)), strict=True):
        for losses, (first, *later) in case:
            for loss, wanted in zip(losses, expected, strict=True):
                assert loss is None or loss == pytest.approx(wanted, rel=1e-5)
            assert all(moved < adapters for moved in later)
            assert first == 0 or first > 5 * max(later) > 0  # in one layout the same memory generates


def generating_on_vllm(rank, path, training, x):
    """Two rounds: bytes that the transition moved here, and log-probs of what was drawn by vLLM and by the trainer."""
    engine, found = made(rank, 2, x, training, path, generation="vllm"), []
    mine = batch_of().split(8 // x.d)[rank // (x.p * x.t)].select("uid", "prompts", "prompt_mask")
    for _ in range(2):
        learn(engine, x, rank, 1)
        drawn = engine.generator.generate(mine, Sampling(4, seed=1))
        moved = engine.engine.weights_moved().received_bytes
        batch = mine.clone().update(drawn)
        found.append((moved, drawn["log_probs"], engine.trainer.log_probs(batch, 1.0)))
    return found


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm: the extra cpu-engines")
@pytest.mark.parametrize(
    ("training", "x"),
    [("torch-native", Degrees(1, 2, 1, 1, 2)), ("fsdp2", Degrees(1, 1, 2, 1, 1))],
)
def test_vllm_generates_with_adapters_and_gets_them_alone(training, x, tmp_path):
    """The second transition brings no base; rank 4 of the 8 that vLLM has room for, at a scale of 2."""
    path = config_for_all_engines(tmp_path)
    learned = [t for n, t in read_architecture(path, adapters=HAS).tensors().items() if is_adapter(n)]
    adapters_bytes = sum(torch.Size(tensor.shape).numel() * 4 for tensor in learned)
    for (first, *_), (later, theirs, ours) in run_on_ranks(2, generating_on_vllm, str(path), training, x):
        torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-3)
        assert later < adapters_bytes and (first == later == 0 or first > 5 * later)
