"""Protects the torch-native engine's own transition on eight gloo ranks: no byte of a weight is held twice, the bytes
that were counted are those of Table 2 of the HybridFlow paper, and training does not notice.
"""

import json

import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict

from benchmarks.rank_pool import run_on_ranks
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.native.engine import TorchNativeEngine
from executor.records import Identity, WeightsMoved
from executor.rl.loss_terms import LossTerm
from executor.rl.sequences import sequences_of
from executor.weights.plan import EVEN
from profiles.errors import InputError
from simulator.plan.groups import Degrees, transition_shares
from tests.executor.plans import TINY
from tests.executor.transfers import even_elements

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NUM_RANKS = 8
WAYS = ("sent", "received")
GQA = {"hidden_size": 32, "num_hidden_layers": 4, "num_key_value_heads": 4, "num_attention_heads": 8, "head_dim": 4}
MODELS = {
    "gqa": GQA,
    "tied": {**GQA, "model_type": "qwen2", "tie_word_embeddings": True},
    "normed": {**GQA, "model_type": "qwen3"},
}
CASES = [  # degrees, model, weights' type, offload, ZeRO stage
    (Degrees(1, 4, 2, 1, 2), "gqa", "fp32", (), 1),
    (Degrees(1, 4, 2, 1, 2), "tied", "bf16", (), 1),
    (Degrees(2, 2, 2, 1, 1), "tied", "fp32", (), 0),
    (Degrees(4, 1, 2, 2, 1), "gqa", "fp32", (), 1),
    (Degrees(4, 2, 1, 1, 2), "normed", "fp32", (), 1),
    (Degrees(2, 2, 2, 1, 1), "gqa", "fp32", ("parameters", "optimizer"), 1),
    (Degrees(2, 4, 1, 2, 4), "tied", "fp32", (), 1),
    (Degrees(2, 2, 2, 1, 1), "gqa", "fp32", (), 1),
    (Degrees(4, 1, 2, 2, 1), "tied", "bf16", (), 1),
    (Degrees(2, 4, 1, 2, 1), "normed", "fp32", (), 1),
]
SOON = 7
"""So many cases; the others, of degrees, models and types that these have too, belong to `make check-all`."""
NAMES = ["-".join([f"p{x.p}t{x.t}d{x.d}-pg{x.pg}tg{x.tg}", *map(str, rest)]) for x, *rest in CASES]
EACH = [pytest.param(i, id=name, marks=[] if i < SOON else pytest.mark.long) for i, name in enumerate(NAMES)]


def engine_of(rank, num, path, x, dtype, offload, zero_stage):
    spec = ModelSpec(
        path, optimizer=OptimizerConfig(1e-2), micro_batch=4, dtype=dtype, offload=offload, zero_stage=zero_stage
    )
    made = TorchNativeEngine(Identity("A", rank, num), "", x, spec)
    made.load()
    return made


def likelihood(outputs, part):
    return {"loss": -(outputs["log_probs"] * part["target_mask"]).sum()}


def learn(engine, rank, x):
    """One update on rows that depend on the data-parallel rank."""
    stream = torch.Generator().manual_seed(rank // (x.p * x.t))
    tokens = torch.randint(0, 16, (4, 7), generator=stream)
    rows = {"prompts": tokens[:, :3], "responses": tokens[:, 3:]}
    masks = {"prompt_mask": torch.ones(4, 3).bool(), "response_mask": torch.ones(4, 4).bool()}
    part, first = sequences_of(TensorDict(rows | masks, batch_size=[4]))
    return engine.update((LossTerm(part, first, likelihood),))


def boxes(layout, rank, tensors):
    """Whole or cut tensors by checkpoint name and box, in the checkpoint's orientation."""
    found = {}
    for stored in layout.stored(rank):
        (region,) = stored.regions
        found[region.name, region.box] = tensors[stored.name].detach().clone(memory_format=torch.contiguous_format)
    return found


def wrong(engine, rank):
    """Generation tensors that are not what all ranks together train, told apart by a way of their own."""
    plan = engine.transition.plan
    everyone = [None] * plan.source.num_ranks
    dist.all_gather_object(everyone, boxes(plan.source, rank, engine.tensors()))
    whole = {name: torch.full(t.shape, float("nan"), dtype=engine.dtype) for name, t in engine.arch.tensors().items()}
    for found in everyone:
        for (name, box), part in found.items():
            whole[name][tuple(slice(a, b) for a, b in box)] = part
    theirs = boxes(plan.target, rank, engine.transition.generation)
    return [
        name
        for (name, box), part in theirs.items()
        if not torch.equal(part, whole[name][tuple(slice(a, b) for a, b in box)])
    ]


def views_elsewhere(engine):
    """Training tensors that are no views of a generation tensor, and parameters that look at anything else."""
    generating = {t.untyped_storage().data_ptr() for t in engine.transition.generation.values()}
    trained = engine.transition.training
    apart = [name for name, tensor in trained.items() if tensor.untyped_storage().data_ptr() not in generating]
    lost = [n for n, weight in engine.flat.weights.items() if weight.data_ptr() != trained[n].data_ptr()]
    return apart + lost


def remainder(plan, rank, itemsize):
    """What a rank holds of generation, of even slots and of the rest; and most at once while boxes are exchanged."""
    whole = sum(stored.numel for stored in plan.target.stored(rank))
    mine = [stored for bucket in plan.gathers.get(plan.group_of(rank), ()) for stored in bucket.members[0]]
    num = len(plan.group_of(rank))
    even = sum(num * stored.numel for stored in mine if stored.slot in plan.even_slots)
    not_grown = sum((num - 1) * stored.numel for stored in mine)
    exchanged = [
        sum(
            p.num_elements * ((p.source.rank == rank) + (p.target.rank == rank))
            for p in bucket.pieces
            if p.source.rank != p.target.rank
        )
        for bucket in plan.exchanges
    ]
    during = whole - not_grown + max(exchanged, default=0)
    return {key: n * itemsize for key, n in (("whole", whole), ("even", even), ("during", during))}


def one_case(rank, path, x, dtype, offload, zero_stage):
    engine = engine_of(rank, NUM_RANKS, path, x, dtype, offload, zero_stage)
    weights, plan = engine.transition.weights, engine.transition.plan
    itemsize, objects = engine.dtype.itemsize, {name: id(w) for name, w in engine.flat.weights.items()}
    found = {"held": [weights.held_bytes], "wrong": [], "apart": [], "steps": [], "same": [], "rounds": []}
    for _ in range(2):
        engine.to_generation()
        found["held"].append(weights.held_bytes)
        found["wrong"] += wrong(engine, rank)
        found["apart"] += views_elsewhere(engine)
        found["rounds"].append(engine.weights_moved())
        found["told"] = engine.weights_moved()
        with engine.present():  # what is trained can be read and scored with meanwhile
            before = {name: weight.detach().clone() for name, weight in engine.flat.weights.items()}
            engine.check_replicas()
        engine.to_training()
        found["held"].append(weights.held_bytes)
        with engine.present():
            found["same"].append(all(torch.equal(before[n], w.detach()) for n, w in engine.flat.weights.items()))
        found["steps"].append(learn(engine, rank, x))
    # the lesser of two: a thread of gloo may hold a tensor for a moment after the exchange is through
    found["moved"] = min(found.pop("rounds"), key=lambda one: one.peak_bytes)
    found["objects"] = objects == {name: id(w) for name, w in engine.flat.weights.items()}
    found["gradient"] = float(engine.flat.gradient.abs().sum())
    found["trains"] = sum(stored.numel for stored in plan.source.stored(rank)) * itemsize
    found["even_model"] = even_elements(plan) * itemsize
    found["by_cause"] = {cause: num * itemsize for cause, num in plan.received_elements(rank).items()}
    return found | remainder(plan, rank, itemsize)


def everything(rank, folder, first, last):
    """By case."""
    cases = list(enumerate(CASES))[first:last]
    return {i: one_case(rank, f"{folder}/{model}.json", x, *options) for i, (x, model, *options) in cases}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    for name, changes in MODELS.items():
        (made / f"{name}.json").write_text(json.dumps(json.loads(TINY.read_text()) | changes))
    return str(made)


@pytest.fixture(scope="module")
def soon(folder):
    return run_on_ranks(NUM_RANKS, everything, folder, 0, SOON)


@pytest.fixture(scope="module")
def later(folder):
    return run_on_ranks(NUM_RANKS, everything, folder, SOON, len(CASES))


@pytest.fixture
def found(request, i):
    return request.getfixturevalue("soon" if i < SOON else "later")


@pytest.mark.parametrize("i", EACH)
def test_everything_arrives_around_training_shards_that_stay(i, found):
    for of_rank in found:
        case = of_rank[i]
        assert not case["wrong"]
        assert not case["apart"]
        assert case["same"] == [True, True]
        assert case["objects"]
        assert case["gradient"] == 0.0  # it lent its memory


@pytest.mark.parametrize("i", EACH)
def test_memory_is_the_training_shard_or_the_generation_shard(i, found):
    """M / (t p) while the model trains, M / (t_g p_g) while it generates; offloaded, nothing between calls."""
    _, _, _, offload, _ = CASES[i]
    for of_rank in found:
        case = of_rank[i]
        resting = 0 if offload else case["trains"]
        assert case["held"] == [resting, case["whole"], resting, case["whole"], resting]


@pytest.mark.parametrize("i", EACH)
def test_bytes_and_peak_are_table_2(i, found):
    """On evenly sharded parameters; the remainder is what the weight map says, by name."""
    x = CASES[i][0]
    shares = transition_shares("hybridflow", x)
    for of_rank in found:
        case = of_rank[i]
        moved = case["moved"]
        assert sum(case["by_cause"].values()) == moved.received_bytes
        assert case["by_cause"].get(EVEN, 0) == shares.moved * case["even_model"]
        assert case["even"] == shares.peak * case["even_model"]
        others = case["whole"] - case["even"]  # whole copies, and what not every stage has
        assert moved.peak_bytes == max(shares.peak * case["even_model"] + others, case["during"])
        assert moved.bucket_bytes == max(case["during"] - case["whole"], 0)
        assert case["told"] == WeightsMoved()
    sent, received = (sum(getattr(of_rank[i]["moved"], f"{way}_bytes") for of_rank in found) for way in WAYS)
    assert sent == received
    assert (received > 0) == (x.dg > 1)
    if x.p == 1:
        assert all(of_rank[i]["moved"].bucket_bytes == 0 for of_rank in found)


def test_layouts_that_do_not_nest_are_refused():
    engine = TorchNativeEngine(Identity("A", 0, 1), "", Degrees(1, 2, 1, 2, 1), ModelSpec(str(TINY)))
    with pytest.raises(InputError, match=r"strided groups need t_g \| t and p_g \| p"):
        engine.load()
