"""Protects the Megatron-Core engine: log-probs, values, losses and gradient norms are those of the torch-native engine,
in every dimension of parallelism that runs on this machine.
"""

import importlib.util
from dataclasses import replace

import pytest
import torch

from benchmarks.rank_pool import run_on_ranks
from executor.engines.entry import LayoutOptions
from executor.engines.native.engine import TorchNativeEngine
from executor.engines.spec import EngineSpec
from executor.records import Identity
from executor.worker.inject_faults import flip_bit
from simulator.plan.groups import Degrees
from tests.draws import ALL
from tests.executor.rounds import complaint, configs_of, rows, spec_of, trained, trained_and_scored

if importlib.util.find_spec("megatron") is None:
    pytest.skip("needs megatron-core: the extra cpu-engines", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]
LONGER = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 4}
SHORT = {"num_hidden_layers": 2}  # as many as stages: only llama has four of these
FAMILIES = {
    "llama": {},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True, **SHORT},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "vocab_size": 18, **SHORT},  # 18 is no multiple of 4
    "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, **LONGER}, **SHORT},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}, **SHORT},
    "moe": {
        **SHORT,
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    },
}
FOUR = [  # family, (p, t, d), what the layout says beyond degrees
    ("llama", (2, 2, 1), {}),
    ("llama", (2, 2, 1), {"sequence_parallel": True, "recompute": "full"}),
    ("llama", (2, 1, 2), {"vpp": 2}),
    ("qwen3", (1, 2, 2), {"sequence_parallel": True}),
    ("qwen2", (1, 4, 1), {"recompute": "selective"}),
    ("llama", (1, 2, 2), {"offload": ("parameters", "optimizer")}),
    ("yarn", (1, 1, 4), {}),
    ("moe", (1, 2, 2), {"ep": 2}),
]
LATER = [  # of `make check-all`
    ("llama", (1, 4, 1), {}),
    ("llama", (4, 1, 1), {}),
    ("qwen3", (2, 2, 1), {}),
    ("qwen2", (2, 2, 1), {}),
    ("llama", (2, 1, 2), {"offload": ("parameters",)}),
    ("llama3", (2, 1, 2), {}),
    ("moe", (1, 2, 2), {}),
    ("moe", (1, 1, 4), {"ep": 2}),
    ("moe", (2, 2, 1), {}),
]
FOUR += LATER if ALL else []
NO_CRITIC = {3, 4, 5, 6, 7, 12, 13, 14, 16}
"""Of ``FOUR``: the family's critic runs in another layout, or differs in what a value head does not meet (rotary
positions, where the states wait)."""
APART = [  # family, degrees of training and of scoring, what training's layout says beyond degrees
    ("llama", Degrees(1, 2, 2, 1, 2), Degrees(2, 1, 2, 2, 1), {}),
    ("qwen3", Degrees(2, 2, 1, 2, 2), Degrees(1, 1, 4, 1, 1), {"sequence_parallel": True}),
]


def on_ranks(rank, paths, cases):
    from executor.engines.megatron.engine import MegatronEngine

    found = {}
    for i, (family, (p, t, d), options) in enumerate(cases):
        mine = rows().split(8 // d)[rank // (p * t)]
        for value_head in (False, True) if len(cases) == 1 or i not in NO_CRITIC else (False,):
            identity = Identity("A", rank, p * t * d)
            spec = replace(spec_of(paths[family], value_head), offload=options.get("offload", ()))
            beyond = LayoutOptions(**{name: value for name, value in options.items() if name != "offload"})
            engine = MegatronEngine(identity, "", Degrees(p, t, d, p, t), spec, beyond)
            found[i, value_head] = trained(engine, mine, value_head)
            if spec.offload:
                found["offload", i, value_head] = left_on_the_device(engine)
            found[i, value_head, "told"] = checked(engine, spoiled=rank == p * t * d - 1)
    for i, (family, training, scoring, options) in enumerate(APART if len(cases) > 1 else ()):
        frozen = replace(spec_of(paths[family], i > 0), optimizer=None, micro_batch=4)
        model = replace(spec_of(paths[family], i > 0), scoring=scoring)
        apart = EngineSpec(frozen, "megatron-core")
        spec = EngineSpec(model, "megatron-core", options=LayoutOptions(**options), scoring=apart)
        found["apart", i] = trained_and_scored(rank, spec, training, scoring, i > 0)
    return found


def left_on_the_device(engine):
    """Bytes of parameters and optimizer between calls and inside one, and of the copies for one more pass."""
    from executor.engines.megatron.optimizer import state_tensors

    def held():
        kinds = {"parameters": engine.tensors().values(), "optimizer": state_tensors(engine.optimizer)}
        return {
            kind: sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in found}.values())  # noqa: SLF001
            for kind, found in kinds.items()
        }

    away, before = held(), engine.spent.host_bytes
    with engine.host.present("parameters", "optimizer"):
        there = held()
    return away, there, engine.spent.host_bytes - before


def checked(engine, *, spoiled):
    """Compare copies, flip a bit where it is to be ``spoiled``, compare again: what this rank is told then."""
    engine.check_replicas()
    if spoiled:
        with engine.host.present("parameters", changed=True):
            flip_bit(engine.tensors())
    return complaint(engine)


def alone(rank, paths):
    """One process: torch-native where it has the family, Megatron-Core itself for the mixture of experts."""
    found = {}
    for family in FAMILIES:
        if family == "moe":
            of_moe = on_ranks(rank, paths, [("moe", (1, 1, 1), {})])
            found |= {("moe", head): of_moe[0, head] for head in (False, True)}
            continue
        for head in (False, True):
            engine = TorchNativeEngine(Identity("A", 0, 1), "", Degrees(1, 1, 1, 1, 1), spec_of(paths[family], head))
            found[family, head] = trained(engine, rows(), head)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    paths = configs_of(FAMILIES, 4, tmp_path_factory)
    return run_on_ranks(1, alone, paths)[0], run_on_ranks(4, on_ranks, paths, FOUR)


@pytest.mark.parametrize(
    ("i", "value_head"),
    [
        pytest.param(i, head, id=f"{f}-{x}-{o}-{head}")
        for i, (f, x, o) in enumerate(FOUR)
        for head in (False, True)
        if not (head and i in NO_CRITIC)
    ],
)
def test_every_layout_learns_like_one_process(i, value_head, found):
    one, four = found
    family, (p, t, d), _ = FOUR[i]
    before, steps, after, scores = one[family, value_head]
    last = [dp * p * t + (p - 1) * t for dp in range(d)]
    parts = [four[rank][i, value_head] for rank in last]
    assert torch.allclose(torch.cat([part[0] for part in parts]), before, atol=2e-5)
    for part in parts:
        assert part[1][0]["loss"] == pytest.approx(steps[0]["loss"], rel=1e-6)
        for mine, theirs in zip(part[1], steps, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-4)
    assert torch.allclose(torch.cat([part[2] for part in parts]), after, atol=1e-3)
    if value_head:
        assert torch.allclose(torch.cat([part[3] for part in parts]), scores, atol=1e-3)


@pytest.mark.parametrize("i", [i for i, (_, _, options) in enumerate(FOUR) if "offload" in options])
def test_offloaded_states_are_away_between_calls_and_their_copies_counted(i, found):
    _, four = found
    away_names = FOUR[i][2]["offload"]
    for rank in range(4):
        away, there, copied = four[rank]["offload", i, False]
        assert away["parameters"] == 0 < there["parameters"]
        moments = there["optimizer"] - there["parameters"]  # in fp32 the masters are the parameters
        assert moments > 0
        assert away["optimizer"] == (0 if "optimizer" in away_names else moments)
        assert copied == there["parameters"] + (moments if "optimizer" in away_names else 0)


@pytest.mark.parametrize("i", range(len(APART)))
def test_scoring_in_another_layout_gives_what_one_process_gives(i, found):
    one, four = found
    family, _, x, _ = APART[i]
    before, steps, after, _ = one[family, i > 0]
    assert all(four[rank]["apart", i][1] == 0 for rank in range(4))  # bytes of the copy between calls
    last = [four[dp * x.p * x.t + (x.p - 1) * x.t]["apart", i][0] for dp in range(x.d)]
    assert torch.allclose(torch.cat([part[0] for part in last]), before, atol=2e-5)
    assert torch.allclose(torch.cat([part[2] for part in last]), after, atol=1e-3)
    taken = next(part for part in (four[rank]["apart", i][0] for rank in range(3, -1, -1)) if part is not None)[1]
    for mine, theirs in zip(taken, steps, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)


def test_only_the_last_stage_answers(found):
    _, four = found
    assert four[0][0, False] is None
    assert four[3][0, False] is not None


@pytest.mark.parametrize("i", range(len(FOUR)), ids=[f"{f}-{x}-{o}" for f, x, o in FOUR])
def test_a_flipped_bit_in_a_data_parallel_copy_is_noticed_by_its_group(i, found):
    _, four = found
    _, (p, t, d), _ = FOUR[i]
    told = [four[rank][i, False, "told"] for rank in range(4)]
    members = {rank for rank in range(4) if rank % (p * t) == 3 % (p * t)} if d > 1 else set()
    assert {rank for rank in range(4) if told[rank]} == members
    assert all("is not the same on all its replicas: rank" in told[rank] for rank in members)
