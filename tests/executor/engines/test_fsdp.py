"""Protects FSDP2 with tensor parallelism by DTensor: outputs, losses and gradient norms are those of one process,
states wait in host memory where they shall, and one process of either engine reads what four ranks saved.
"""

import json
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from benchmarks.rank_pool import run_on_ranks
from executor import collectives
from executor.checkpoint.shards import Chunk, read_shards, write_shards
from executor.engines.entry import LayoutOptions
from executor.engines.fsdp.engine import FsdpEngine
from executor.engines.fsdp.optimizer import state_tensors
from executor.engines.native.engine import TorchNativeEngine
from executor.engines.offload import spans_of
from executor.engines.spec import EngineSpec
from executor.records import Identity
from executor.rl.loss_terms import LossTerm
from executor.rl.sequences import sequences_of
from executor.weights.architecture import read_architecture
from executor.worker.inject_faults import flip_bit
from profiles.errors import InputError
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY
from tests.executor.rounds import complaint, configs_of, likelihood, rows, spec_of, trained, trained_and_scored

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
FAMILIES = {
    "llama": {},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "vocab_size": 18},  # 9 rows in chunks of 5 and 4
}
BOTH = ("parameters", "optimizer")
CASES = [  # family, (t, d), what waits in host memory, value heads
    ("llama", (2, 1), (), (False,)),
    ("llama", (1, 2), BOTH, (True,)),
    ("llama", (2, 2), BOTH, (False, True)),
    ("qwen3", (2, 2), (), (False,)),
    ("llama", (2, 1), BOTH, (True,)),
    ("llama", (1, 2), (), (False,)),
    ("llama", (2, 2), (), (False, True)),
    ("qwen3", (4, 1), ("parameters",), (False, True)),
    ("qwen2", (2, 2), ("optimizer",), (False, True)),
]
SOON = 4
"""So many cases; the others belong to `make check-all`."""
SAVED = 2
RECOMPUTE = {0: "selective", 3: "full"}
"""By case; none in the others."""
SEQUENCE_PARALLEL = (0, 1)
TOKEN_BUDGETS = {0: 9, 2: 11}
"""By case: ranks hold different numbers of micro-batches; the others have two rows in each."""
ALONE = Degrees(1, 1, 1, 1, 1)
TRAINS, SCORES = Degrees(1, 2, 2, 1, 2), Degrees(1, 4, 1, 1, 4)


def built(rank, path, i, value_head):
    _, (t, d), away, _ = CASES[i]
    changes = {"offload": away, "recompute": RECOMPUTE.get(i, "none"), "token_budget": TOKEN_BUDGETS.get(i, 0)}
    options = LayoutOptions(sequence_parallel=i in SEQUENCE_PARALLEL)
    spec = replace(spec_of(path, value_head), **changes)
    return FsdpEngine(Identity("A", rank, t * d), "", Degrees(1, t, d, 1, t), spec, options)


def share(rank, case):
    """The rows of a rank."""
    t, d = case[1]
    return rows().split(8 // d)[rank // t]


def on_ranks(rank, paths, folder, first, last):
    """Cases of four ranks together, then those of two ranks in two pairs at once, then one rank alone."""
    found, pairs = {}, []
    for i, (family, (t, d), *_) in enumerate(CASES):
        if first <= i < last and t * d == 4:
            found |= tried(rank, paths[family], i, folder)
        elif first <= i < last:
            pairs.append(i)
    found["scored"] = trained_and_scored(rank, scoring_apart(paths["llama"]), TRAINS, SCORES, value_head=False)
    meet_anew(folder, f"pair-{rank // 2}", rank % 2, 2)
    found |= tried(rank % 2, paths["llama"], pairs[rank // 2], folder)
    meet_anew(folder, f"alone-{rank}", 0, 1)
    found["read"] = read_alone(paths["llama"], folder, found["saved"][0]) if rank == 0 and "saved" in found else {}
    found["kept"] = kept_bytes(paths["llama"]) if rank == 0 else {}
    return found


def meet_anew(folder, name, rank, num):
    """Leave all ranks and meet others, in a world of ``num``."""
    dist.barrier()
    dist.destroy_process_group()
    collectives._HANDLES.clear()  # noqa: SLF001
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=num)


def tried(rank, path, i, folder):
    """Case ``i`` on one rank: outputs and losses with either head, what offload moves, whether copies are compared."""
    found, num = {}, CASES[i][1][0] * CASES[i][1][1]
    for value_head in CASES[i][3]:
        engine = built(rank, path, i, value_head)
        found[i, value_head] = trained(engine, share(rank, CASES[i]), value_head)
        if i == SAVED and not value_head:
            found["saved"] = saved(engine, rank, folder)
    return {**found, (i, "moved"): moved(engine), (i, "told"): told(engine, spoiled=rank == num - 1)}


def saved(engine, rank, folder):
    """Save; counters, one step more, and the elements that this rank wrote."""
    state = engine.saved_state()
    write_shards(folder, rank, state.chunks)
    return state.counters, step(engine, share(rank, CASES[SAVED])), sizes(state)


def scoring_apart(path):
    """A model that trains in one layout and scores in another, its parameters in host memory between calls."""
    frozen = replace(spec_of(path, value_head=False), optimizer=None, micro_batch=4)
    model = replace(spec_of(path, value_head=False), scoring=SCORES, offload=("parameters",))
    return EngineSpec(model, "fsdp2", scoring=EngineSpec(frozen, "fsdp2"))


def step(engine, mine):
    part, first = sequences_of(mine)
    return engine.update((LossTerm(part, first, likelihood),))


def sizes(state):
    found: dict[str, int] = {}
    for chunk in state.chunks:
        found[chunk.name] = found.get(chunk.name, 0) + chunk.values.numel()
    return found


def moved(engine):
    """Bytes of parameters and optimizer between calls and inside one, and of the copies for one more pass."""

    def held():
        kinds = {"parameters": engine.model.parameters(), "optimizer": state_tensors(engine.optimizer)}
        local = {kind: [getattr(x, "_local_tensor", x) for x in tensors] for kind, tensors in kinds.items()}
        return {kind: sum(span.nbytes for span in spans_of(tensors)) for kind, tensors in local.items()}

    away, before = held(), engine.spent.host_bytes
    with engine.host.present(*BOTH):
        there = held()
    return away, there, engine.spent.host_bytes - before


def told(engine, *, spoiled):
    """Compare copies, flip a bit of a norm where it is to be ``spoiled``, compare again: what this rank is told."""
    engine.check_replicas()
    if spoiled:
        with engine.host.present("parameters", changed=True), torch.no_grad():
            flip_bit({"norm": dict(engine.model.named_parameters())["model.norm.weight"].to_local()})
    return complaint(engine)


def read_alone(path, folder, counters):
    """What one process of each engine makes of the checkpoint: its states, and the step that it takes then."""
    found = {}
    for kind, engine_class in (("fsdp", FsdpEngine), ("native", TorchNativeEngine)):
        engine = engine_class(Identity("A", 0, 1), "", ALONE, spec_of(path, value_head=False))
        engine.load()
        engine.load_state(lambda chunks: read_shards(folder, chunks), counters)
        found[kind] = {chunk.name: chunk.values for chunk in engine.saved_state().chunks}, step(engine, rows())
    return found


def kept_bytes(path):
    """Bytes that a forward pass of one process keeps for the backward pass, by what is computed again there."""
    found = {}
    for recompute in ("none", "selective", "full"):
        engine = FsdpEngine(Identity("A", 0, 1), "", ALONE, replace(spec_of(path, False), recompute=recompute))
        engine.load()
        kept: dict[int, torch.UntypedStorage] = {}  # held, so that no memory is given out twice and counted once

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            step(engine, rows())
        found[recompute] = sum(storage.nbytes() for storage in kept.values())
    return found


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return configs_of(FAMILIES, 2, tmp_path_factory)


@pytest.fixture(scope="module")
def one(paths):
    """What one torch-native process gives, by family and head."""
    return {
        (family, head): trained(TorchNativeEngine(Identity("A", 0, 1), "", ALONE, spec_of(path, head)), rows(), head)
        for family, path in paths.items()
        for head in (False, True)
    }


def of_ranks(paths, folder, first, last):
    """By case: what each of its ranks found."""
    ranks = run_on_ranks(4, on_ranks, paths, folder, first, last)
    keys = {key for rank in ranks for key in rank}
    return {"folder": folder, **{key: [rank[key] for rank in ranks if key in rank] for key in keys}}


@pytest.fixture(scope="module")
def soon(paths, tmp_path_factory):
    return of_ranks(paths, tmp_path_factory.mktemp("soon"), 0, SOON)


@pytest.fixture(scope="module")
def later(paths, tmp_path_factory):
    return of_ranks(paths, tmp_path_factory.mktemp("later"), SOON, len(CASES))


@pytest.fixture
def found(request, i):
    return request.getfixturevalue("soon" if i < SOON else "later")


def each(cases):
    """Parameters of tests, those of late cases marked."""
    names = [f"{CASES[i][0]}-t{CASES[i][1][0]}d{CASES[i][1][1]}-{'+'.join(CASES[i][2])}" for i, *_ in cases]
    marks = [[] if i < SOON else pytest.mark.long for i, *_ in cases]
    return [pytest.param(*case, id=name, marks=mark) for case, name, mark in zip(cases, names, marks, strict=True)]


HEADS = [(i, head) for i, case in enumerate(CASES) for head in case[3]]
ALL = [(i,) for i in range(len(CASES))]


@pytest.mark.parametrize(("i", "value_head"), each(HEADS))
def test_every_layout_learns_like_one_process(i, value_head, found, one):
    family, (t, _), *_ = CASES[i]
    before, steps, after, scores = one[family, value_head]
    ranks = found[i, value_head]
    for tp in range(t):  # all tensor-parallel ranks have the whole answer
        parts = ranks[tp::t]
        assert torch.allclose(torch.cat([part[0] for part in parts]), before, atol=2e-5)
        for part in parts:
            assert part[1][0]["loss"] == pytest.approx(steps[0]["loss"], rel=1e-6)
            for mine, theirs in zip(part[1], steps, strict=True):
                assert mine == pytest.approx(theirs, rel=1e-4)
        assert torch.allclose(torch.cat([part[2] for part in parts]), after, atol=1e-3)
        if value_head:
            assert torch.allclose(torch.cat([part[3] for part in parts]), scores, atol=1e-3)


@pytest.mark.parametrize("i", each(ALL))
def test_offloaded_states_are_away_between_calls_and_their_copies_counted(i, found):
    for away, there, copied in found[i, "moved"]:
        assert there["optimizer"] >= 1.9 * there["parameters"] > 0  # two moments; parameters are padded
        for name in BOTH:
            assert away[name] == (0 if name in CASES[i][2] else there[name])
        assert copied == sum(there[name] for name in CASES[i][2])


@pytest.mark.parametrize("i", each(ALL))
def test_a_flipped_bit_in_a_whole_copy_is_noticed_by_its_tensor_parallel_group(i, found):
    t, d = CASES[i][1]
    noticing = set(range(t * (d - 1), t * d)) if t > 1 else set()
    messages = found[i, "told"]
    assert {rank for rank, message in enumerate(messages) if message} == noticing
    assert all("model.norm.weight is not the same on all its replicas: rank" in messages[rank] for rank in noticing)


def test_what_is_computed_again_is_not_kept(soon):
    kept = soon["kept"][0]
    assert kept["full"] < kept["selective"] < kept["none"]


def test_scoring_in_another_layout_gives_what_one_process_gives(soon, one):
    before, steps, after, _ = one["llama", False]
    for found, left in soon["scored"]:
        assert left == 0  # between calls
        assert torch.allclose(found[0], before, atol=2e-5)
        assert torch.allclose(found[2], after, atol=1e-3)
        for mine, theirs in zip(found[1], steps, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-4)


def test_what_two_by_two_ranks_saved_is_read_by_one_process_of_either_engine(soon, paths):
    written, alone = [of_rank[2] for of_rank in soon["saved"]], soon["read"][0]
    expected = soon["saved"][0][1]
    whole = [
        Chunk(prefix + tensor.name, tuple((0, n) for n in tensor.shape), torch.full(tensor.shape, torch.nan))
        for tensor in read_architecture(paths["llama"]).tensors().values()
        for prefix in ("", "optimizer.exp_avg.", "optimizer.exp_avg_sq.")
    ]
    read_shards(soon["folder"], whole)
    for chunk in whole:
        assert sum(sizes.get(chunk.name, 0) for sizes in written) == chunk.values.numel(), chunk.name
        assert torch.isfinite(chunk.values).all(), chunk.name
        for states, _ in alone.values():
            assert torch.equal(states[chunk.name].view(chunk.values.shape), chunk.values), chunk.name
    for _, taken in alone.values():
        assert taken == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(
    ("degrees", "changes", "reason"),
    [
        (
            Degrees(1, 4, 1, 1, 4),
            {"num_key_value_heads": 2},
            "num_kv_heads 2 does not divide by tensor-parallel degree 4",
        ),
        (Degrees(1, 2, 1, 1, 2), {"vocab_size": 17}, "vocab 17 does not divide by tensor-parallel degree 2"),
        (Degrees(2, 1, 1, 2, 1), {}, "FSDP2 has data and tensor parallelism and no pipeline: p 2 must be 1"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_numbers(degrees, changes, reason, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(TINY.read_text()) | changes))
    engine = FsdpEngine(Identity("A", 0, degrees.num_ranks), "", degrees, spec_of(str(file), value_head=False))
    with pytest.raises(InputError, match=reason):
        engine.load()
    assert not dist.is_initialized()  # before ranks meet
