"""Protects checkpoints between engines: what any engine wrote in any layout, every other one reads to the last bit, and
takes the step that the first one would have taken.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.rank_pool import run_on_ranks
from executor.checkpoint.shards import Chunk, read_shards, write_shards
from executor.engines.entry import LayoutOptions
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.native.engine import TorchNativeEngine
from executor.records import Identity
from executor.rl.loss_terms import LossTerm
from executor.rl.sequences import sequences_of
from executor.weights.architecture import read_architecture
from simulator.plan.groups import Degrees, training_coordinates
from tests.executor.plans import TINY
from tests.executor.rounds import likelihood, rows

if importlib.util.find_spec("megatron") is None:
    pytest.skip("needs megatron-core: the extra cpu-engines", allow_module_level=True)

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
MOE = {
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
TIED = {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True, "vocab_size": 20}
CASES = {  # config, type, and a ring of engines: kind, (p, t, d), ZeRO stage, what Megatron's layout has besides
    "llama": (
        {},
        "fp32",
        [
            ("native", (1, 2, 2), 1, {}),
            ("megatron", (1, 2, 2), 1, {}),
            ("native", (2, 2, 1), 0, {}),
            ("megatron", (2, 1, 2), 0, {"vpp": 2}),
            ("fsdp", (1, 1, 4), 3, {}),
            ("megatron", (1, 1, 2), 1, {"c": 2}),
            ("native", (1, 1, 4), 1, {}),
            ("fsdp", (1, 2, 2), 3, {}),
        ],
    ),
    "tied": (
        TIED,
        "fp32",
        [
            ("megatron", (2, 2, 1), 1, {}),
            ("native", (2, 1, 2), 1, {}),
            ("fsdp", (1, 1, 4), 3, {}),
            ("megatron", (2, 1, 2), 1, {}),
            ("megatron", (2, 1, 1), 1, {"c": 2}),
            ("fsdp", (1, 4, 1), 3, {}),
        ],
    ),
    "moe": (
        MOE,
        "fp32",
        [
            ("megatron", (1, 1, 2), 1, {"c": 2, "ep": 2}),
            ("megatron", (1, 1, 4), 1, {"ep": 2}),
            ("megatron", (1, 2, 2), 0, {}),
            ("megatron", (2, 2, 1), 1, {}),
        ],
    ),
    "bf16": (
        {},
        "bf16",
        [("megatron", (1, 2, 2), 1, {}), ("megatron", (1, 2, 2), 0, {}), ("native", (1, 2, 2), 1, {})],
    ),
}


def built(path, dtype, rank, kind, degrees, zero, options):
    from executor.engines.fsdp.engine import FsdpEngine
    from executor.engines.megatron.engine import MegatronEngine

    p, t, d = degrees
    adam = OptimizerConfig(1e-2, max_grad_norm=0.5)
    spec = ModelSpec(path, dtype=dtype, optimizer=adam, micro_batch=2, zero_stage=zero)
    degrees = Degrees(p, t, d, p, t, options.get("c", 1))
    given = (Identity("A", rank, degrees.num_ranks), "", degrees, spec)
    if kind == "megatron":
        return MegatronEngine(*given, LayoutOptions(**{name: n for name, n in options.items() if name != "c"}))
    return TorchNativeEngine(*given) if kind == "native" else FsdpEngine(*given)


def step(engine, rank):
    dp = training_coordinates(rank, engine.degrees)[2]
    part, first = sequences_of(rows().split(8 // engine.degrees.d)[dp])
    return engine.update((LossTerm(part, first, likelihood),))


def written(engine, rank, folder):
    """Save into a folder; counters and, of this rank, the names and elements written."""
    state = engine.saved_state()
    folder.mkdir(parents=True, exist_ok=True)
    write_shards(folder, rank, state.chunks)
    dist.barrier()
    sizes: dict[str, int] = {}
    for chunk in state.chunks:
        sizes[chunk.name] = sizes.get(chunk.name, 0) + chunk.values.numel()
    return state.counters, sizes


def on_ranks(rank, paths, folder):
    found = {}
    for case, (_, dtype, ring) in CASES.items():
        for i, made in enumerate(ring):
            engine = built(paths[case], dtype, rank, *made)
            engine.load()
            for _ in range(2):
                step(engine, rank)
            counters, sizes = written(engine, rank, folder / case / f"{i}-written")
            expected = step(engine, rank)
            other = ring[(i + 1) % len(ring)]
            reader = built(paths[case], dtype, rank, *other)
            reader.load()
            reader.load_state(
                lambda chunks, i=i, case=case: read_shards(folder / case / f"{i}-written", chunks), counters
            )
            again, _ = written(reader, rank, folder / case / f"{i}-again")
            found[case, i] = counters, again, sizes, expected, step(reader, rank)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    paths, folder = {}, tmp_path_factory.mktemp("checkpoints")
    for case, (changes, _, _) in CASES.items():
        file = tmp_path_factory.mktemp(case) / "config.json"
        layers = {"num_hidden_layers": 4, "num_key_value_heads": 4}
        file.write_text(json.dumps(json.loads(TINY.read_text()) | layers | changes))
        paths[case] = str(file)
    return paths, folder, run_on_ranks(4, on_ranks, paths, folder)


def whole(folder: Path, path: str) -> dict[str, torch.Tensor]:
    """Master weights and moments of the whole model."""
    chunks = [
        Chunk(prefix + tensor.name, tuple((0, n) for n in tensor.shape), torch.full(tensor.shape, torch.nan))
        for tensor in read_architecture(path).tensors().values()
        for prefix in ("", "optimizer.exp_avg.", "optimizer.exp_avg_sq.")
    ]
    read_shards(folder, chunks)
    return {chunk.name: chunk.values for chunk in chunks}


RINGS = [(case, i) for case, (_, _, ring) in CASES.items() for i in range(len(ring))]


@pytest.mark.parametrize(("case", "i"), RINGS)
def test_the_next_engine_has_the_same_state_to_the_last_bit(case, i, found):
    paths, folder, ranks = found
    assert all(rank[case, i][0] == rank[case, i][1] == {"optimizer_steps": 2} for rank in ranks)
    before, after = whole(folder / case / f"{i}-written", paths[case]), whole(folder / case / f"{i}-again", paths[case])
    for name, values in before.items():
        assert torch.isfinite(values).all(), name
        assert torch.equal(values, after[name]), name
    moved = [name for name, values in before.items() if name.startswith("optimizer.exp_avg_sq.") and values.any()]
    assert len(moved) == len(before) // 3


@pytest.mark.parametrize(("case", "i"), RINGS)
def test_all_ranks_together_write_each_element_once(case, i, found):
    paths, folder, ranks = found
    for name, values in whole(folder / case / f"{i}-written", paths[case]).items():
        assert sum(rank[case, i][2].get(name, 0) for rank in ranks) == values.numel(), name


@pytest.mark.parametrize(("case", "i"), RINGS)
def test_it_takes_the_step_that_the_first_would_have_taken(case, i, found):
    _, _, ranks = found
    expected = next(rank[case, i][3] for rank in ranks if rank[case, i][3] is not None)
    taken = next(rank[case, i][4] for rank in ranks if rank[case, i][4] is not None)
    assert taken == pytest.approx(expected, rel=2e-2 if case == "bf16" else 2e-4)
