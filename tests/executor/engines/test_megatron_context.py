"""Protects context parallelism on Megatron-Core: ranks that share sequences learn what one process learns, to 1e-6.

Log-probs, values, scores, losses, gradient norms and every weight after three steps, in fp32. Adam divides by a root
that ``EPS`` keeps away from zero: without it a gradient that is nothing but rounding moves a weight like any other.
"""

import importlib.util
from dataclasses import replace

import pytest
import torch

from benchmarks.rank_pool import run_on_ranks
from executor.engines.entry import LayoutOptions
from executor.engines.model_spec import OptimizerConfig
from executor.records import Identity
from executor.worker.inject_faults import flip_bit
from simulator.plan.groups import Degrees, training_coordinates
from tests.executor.rounds import complaint, configs_of, rows, spec_of, trained

if importlib.util.find_spec("megatron") is None:
    pytest.skip("needs megatron-core: the extra cpu-engines", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]
EPS = 1e-2
FAMILIES = {
    "llama": {"num_key_value_heads": 2, "num_hidden_layers": 2},  # its layouts have one stage
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}},
    "moe": {
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    },
}
CASES = [  # family, (p, t, d, c), whether it has a value head, what the layout and the model say beyond
    ("llama", (1, 2, 1, 2), False, {"sequence_parallel": True}, {}),
    ("llama", (1, 1, 2, 2), True, {"recompute": "selective"}, {"token_budget": 12}),
    ("qwen3", (2, 1, 1, 2), False, {"vpp": 2}, {"zero_stage": 0}),
    ("llama", (1, 2, 1, 2), True, {}, {"offload": ("parameters", "optimizer")}),
    ("qwen3", (2, 1, 1, 2), False, {"recompute": "full"}, {}),
    ("yarn", (1, 1, 1, 4), False, {}, {}),
    ("moe", (1, 1, 2, 2), False, {"ep": 4}, {}),
    ("moe", (1, 2, 1, 2), False, {}, {}),
]
NUM_SOON = 3
"""The first ones; the others belong to `make check-all`."""
EACH = [
    pytest.param(i, id=f"{f}-{x}-{h}-{o | m}", marks=[pytest.mark.long] if i >= NUM_SOON else [])
    for i, (f, x, h, o, m) in enumerate(CASES)
]


def on_ranks(rank, paths, cases):
    from executor.engines.megatron.engine import MegatronEngine

    found = []
    for family, (p, t, d, c), value_head, options, changes in cases:
        degrees = Degrees(p, t, d, p, t, c)
        adam = OptimizerConfig(1e-3, max_grad_norm=0.5, eps=EPS)
        spec = replace(spec_of(paths[family], value_head), optimizer=adam, **changes)
        engine = MegatronEngine(Identity("A", rank, degrees.num_ranks), "", degrees, spec, LayoutOptions(**options))
        mine = rows().split(8 // d)[training_coordinates(rank, degrees)[2]]
        outputs = trained(engine, mine, value_head)
        with engine.present():
            parts = [part for stored in engine.layout.stored(rank) for part in regions_of(engine.tensors(), stored)]
        engine.check_replicas()
        with engine.host.present("parameters", changed=True):
            if rank == degrees.num_ranks - 1:
                flip_bit(engine.tensors())
        found.append((outputs, parts, complaint(engine)))
    return found


def regions_of(tensors, stored):
    """Name, place and values of each part of a checkpoint's tensor that a local tensor holds."""
    return [(r.name, r.box, tensors[stored.name][r.place(r.box)].clone()) for r in stored.regions]


def whole(parts):
    """Tensors of the whole model from the parts that one process holds."""
    sizes, found = {}, {}
    for name, box, _ in parts:
        sizes[name] = [max(pair) for pair in zip(sizes.get(name, [0] * len(box)), [b for _, b in box], strict=True)]
    for name, box, values in parts:
        into = found.setdefault(name, torch.zeros(sizes[name]))
        into[tuple(slice(*ends) for ends in box)] = values
    return found


def learned(cases, tmp_path_factory):
    """What one process found, by family and head, and what four ranks found of each case."""
    paths = configs_of(FAMILIES, 4, tmp_path_factory)
    alone = list(dict.fromkeys((family, head) for family, _, head, _, _ in cases))
    one = run_on_ranks(1, on_ranks, paths, [(family, (1, 1, 1, 1), head, {}, {}) for family, head in alone])[0]
    four = run_on_ranks(4, on_ranks, paths, cases)
    return [
        (one[alone.index((family, head))], [rank[i] for rank in four])
        for i, (family, _, head, _, _) in enumerate(cases)
    ]


@pytest.fixture(scope="module")
def soon(tmp_path_factory):
    return learned(CASES[:NUM_SOON], tmp_path_factory)


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    return learned(CASES[NUM_SOON:], tmp_path_factory)


@pytest.fixture
def found(i, request):
    """One process and the four ranks of case ``i``."""
    name, first = ("soon", 0) if i < NUM_SOON else ("later", NUM_SOON)
    return request.getfixturevalue(name)[i - first]


@pytest.mark.parametrize("i", EACH)
def test_ranks_that_share_sequences_learn_like_one_process(i, found):
    one, four = found
    _, (p, t, d, c), value_head, _, _ = CASES[i]
    (before, steps, after, scores), parts, _ = one
    answers = [four[(dp * p + p - 1) * t * c][0] for dp in range(d)]
    assert torch.allclose(torch.cat([answer[0] for answer in answers]), before, rtol=0, atol=1e-6)
    assert torch.allclose(torch.cat([answer[2] for answer in answers]), after, rtol=0, atol=1e-6)
    for answer in answers:
        for mine, theirs in zip(answer[1], steps, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-6)
    if value_head:
        assert torch.allclose(torch.cat([answer[3] for answer in answers]), scores, rtol=0, atol=1e-6)
    model = whole(parts)
    for rank in range(4):
        for name, box, values in four[rank][1]:
            expected = model[name][tuple(slice(*ends) for ends in box)]
            assert torch.allclose(values.view(expected.shape), expected, rtol=0, atol=1e-6), name


@pytest.mark.parametrize("i", EACH)
def test_a_flipped_bit_in_the_copy_of_a_context_rank_is_noticed(i, found):
    """Copies are those of data and context parallel ranks; experts of ``ep`` 4 have no copy, but the rest has."""
    _, four = found
    _, (p, t, _, c), _, _, _ = CASES[i]
    place = lambda rank: (rank % t, rank // (t * c) % p)  # noqa: E731
    told = {rank for rank in range(4) if four[rank][2]}
    assert told == {rank for rank in range(4) if place(rank) == place(3)}
