"""Protects the transition itself, on eight gloo ranks: every parameter arrives whole and equal, and the bytes that were
counted are those of Table 2 of the HybridFlow paper and of the weight map.
"""

import pytest

from benchmarks.architectures import architecture
from benchmarks.rank_pool import run_on_ranks
from benchmarks.transition_cases import Case, InPlace, random_case, run_case
from executor.weights.native_layout import NativeLayout, cut_dimension
from executor.weights.plan import EVEN
from simulator.plan.groups import METHODS, Degrees, training_coordinates, transition_shares

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.thorough]
NUM_RANKS = 8
SIZES = dict(hidden=16, num_layers=4, vocab=32, num_heads=16, num_kv_heads=8, head_dim=2, ffn=24)
GQA = architecture("llama", **SIZES)
MODELS = {
    "gqa": GQA,
    "tied": architecture("qwen2", **SIZES, tied=True),
    "moe": architecture("qwen3_moe", **SIZES | {"ffn": 8}, num_experts=2),
}
LAYOUTS = [
    Degrees(p, t, NUM_RANKS // (p * t), pg, tg)
    for p in (1, 2, 4)
    for t in (1, 2, 4, 8)
    if p * t <= NUM_RANKS
    for pg in (1, 2, 4)
    for tg in (1, 2, 4, 8)
    if p % pg == 0 and t % tg == 0 and p * t > 1
]
RANDOM = range(1000, 1024)
WHOLE = ("hybridflow-v", "ds-chat")
"""Methods that gather the whole model, whatever layout is to generate: from each training layout once, and where
another check depends on it."""
WIDE = architecture("llama", **SIZES | dict(hidden=64, num_layers=8, vocab=256, head_dim=4, ffn=192))
BUCKET_ELEMENTS = 1 << 12
TO_VLLM = [
    Case(WIDE, x, source, "vllm", bucket_elements=BUCKET_ELEMENTS)
    for source, degrees in {
        "megatron": [Degrees(1, 4, 2, 1, 2), Degrees(2, 2, 2, 1, 1), Degrees(1, 2, 4, 1, 4), Degrees(4, 1, 2, 1, 4)],
        "fsdp": [Degrees(1, 1, 8, 1, 1), Degrees(1, 1, 8, 1, 4), Degrees(1, 2, 4, 1, 2), Degrees(1, 1, 8, 1, 8)],
    }.items()
    for x in degrees
]
"""Shards of many buckets."""


def run_in_place(case, rank):
    made = InPlace(case, rank)
    made.once()
    return made.outcome()


def even_bytes(outcome):
    """Of what a rank received, what Table 2 speaks of."""
    return outcome.by_cause.get(EVEN, 0)


def methods_of(i):
    """Of a layout: all of its training layout's first one, and those whose redundancy hangs on who generates."""
    x = LAYOUTS[i]
    first = all((x.p, x.t) != (other.p, other.t) for other in LAYOUTS[:i])
    return [m for m in METHODS if first or m not in WHOLE or (m == "hybridflow-v" and x.p == 1)]


def everything(rank):
    tables = {
        (name, i, method): run_in_place(Case(MODELS[name], x, method=method), rank)
        for i, x in enumerate(LAYOUTS)
        for name in (list(MODELS) if i % 6 == 0 else [list(MODELS)[i % 2]])
        for method in methods_of(i)
    }
    return (
        tables,
        {seed: run_case(random_case(seed, NUM_RANKS), rank) for seed in RANDOM},
        [run_case(case, rank) for case in TO_VLLM],
    )


@pytest.fixture(scope="module")
def outcomes():
    return run_on_ranks(NUM_RANKS, everything)


def cut_elements(arch, outside):
    """Elements of the tensors that Table 2 speaks of; ``outside``: with embedding and head."""
    total = 0
    for tensor in arch.tensors().values():
        if cut_dimension(tensor.name) is not None and (outside or 0 <= tensor.layer < arch.num_layers):
            total += tensor.shape[0] * tensor.shape[1] if len(tensor.shape) == 2 else tensor.shape[0]
    return total


def test_there_are_enough_layouts():
    assert len(LAYOUTS) >= 20


def test_everything_arrives_and_training_shards_stay(outcomes):
    for tables, _, _ in outcomes:
        assert not [(key, found.wrong) for key, found in tables.items() if found.wrong]


def test_strided_bytes_are_table_2_to_the_byte(outcomes):
    """On evenly sharded tensors; what else is received is named by cause, and the causes add up."""
    seen = 0
    for rank, (tables, _, _) in enumerate(outcomes):
        for (name, i, method), found in tables.items():
            x = LAYOUTS[i]
            assert sum(found.by_cause.values()) == found.received_bytes
            if method != "hybridflow":
                continue
            whole = cut_elements(MODELS[name], outside=x.p == 1) * 4
            if x.t == 1:  # nothing is cut, so norms are as evenly sharded over stages as the rest
                whole = sum(volume_of(t) for t in MODELS[name].tensors().values() if inside(MODELS[name], t)) * 4
            assert even_bytes(found) == transition_shares(method, x).moved * whole, (name, x, rank)
            seen += 1
    assert seen > 20 * NUM_RANKS


def inside(arch, tensor):
    return 0 <= tensor.layer < arch.num_layers


def volume_of(tensor):
    size = 1
    for n in tensor.shape:
        size *= n
    return size


def test_the_other_methods_gather_the_whole_model(outcomes):
    """ds-chat from shards of 1/(tpd) over all ranks, hybridflow-v inside the training replica; whole copies apart."""
    for tables, _, _ in outcomes:
        for (name, i, method), found in tables.items():
            x, arch = LAYOUTS[i], MODELS[name]
            if method == "ds-chat":
                whole = sum(volume_of(t) for t in arch.tensors().values() if t.shape[0] % NUM_RANKS == 0) * 4
                assert even_bytes(found) == transition_shares(method, x).moved * whole
            elif method == "hybridflow-v" and x.t > 1:
                whole = cut_elements(arch, outside=x.p == 1) * 4
                assert even_bytes(found) == transition_shares(method, x).moved * whole


def test_peaks_are_table_2_and_what_the_weight_map_repeats(outcomes):
    """No second copy: the peak is the generation shard, or the whole model, and the exchange's two buffers."""
    for rank, (tables, _, _) in enumerate(outcomes):
        for (name, i, method), found in tables.items():
            x, arch = LAYOUTS[i], MODELS[name]
            exchanged = found.peak_bytes - found.held_bytes
            others = sum(n for cause, n in found.by_cause.items() if cause != EVEN)
            assert 0 <= exchanged <= others + found.sent_bytes
            if x.p == 1:
                assert exchanged == 0 or method == "ds-chat"
            if method == "hybridflow":
                shard = sum(s.numel for s in NativeLayout(arch, x, "generation").stored(rank)) * 4
                copies = sum(
                    s.numel for s in NativeLayout(arch, x, "generation").stored(rank) if cut_dimension(s.name) is None
                )
                assert found.held_bytes == shard
                assert found.redundant_bytes == 0
                if x.p == 1:
                    whole = cut_elements(arch, outside=True)
                    assert found.peak_bytes == 4 * (whole * transition_shares(method, x).peak + copies)


def test_redundancy_is_table_2(outcomes):
    """What stays of the training shard beside the generation shard: M/(tp) and M/(tpd) on tensors cut evenly."""
    for rank, (tables, _, _) in enumerate(outcomes):
        for (name, i, method), found in tables.items():
            x, arch = LAYOUTS[i], MODELS[name]
            if method != "hybridflow-v" or x.p > 1:
                continue
            copies = sum(volume_of(t) for t in arch.tensors().values() if cut_dimension(t.name) is None)
            whole = cut_elements(arch, outside=True)
            assert found.redundant_bytes == 4 * (whole * transition_shares(method, x).redundant + copies)
            assert training_coordinates(rank, x)[1] == 0


def test_strided_moves_the_fewest_bytes(outcomes):
    """Of what Table 2 speaks of; embedding and head of one stage, and whole copies, come on top for every method."""
    for tables, _, _ in outcomes:
        for (name, i, method), found in tables.items():
            if method != "hybridflow":
                assert even_bytes(tables[name, i, "hybridflow"]) <= even_bytes(found)


def test_random_models_through_random_layouts_arrive_or_are_refused(outcomes):
    """Heads, KV heads, experts, layers, vocabularies, ties; native, Megatron-Core and FSDP to native and vLLM."""
    moved = 0
    for seed in RANDOM:
        of_ranks = [cases[seed] for _, cases, _ in outcomes]
        assert len({found.refused for found in of_ranks}) == 1  # all ranks refuse, before anything moves
        if of_ranks[0].refused:
            assert of_ranks[0].received_bytes == 0
            continue
        moved += 1
        for found in of_ranks:
            assert not found.wrong, (seed, random_case(seed, NUM_RANKS))
            assert sum(found.by_cause.values()) == found.received_bytes  # the weight map knew
        assert sum(f.sent_bytes for f in of_ranks) == sum(f.received_bytes for f in of_ranks)
    assert moved >= 10


@pytest.mark.parametrize("i", range(len(TO_VLLM)), ids=lambda i: f"{TO_VLLM[i].source}-{TO_VLLM[i].degrees}")
def test_a_transition_to_vllm_holds_its_shards_and_a_bucket(i, outcomes):
    """Besides the training shard no more than 1.2 generation shards and a bucket; and receives no more than a shard."""
    case, bucket_bytes = TO_VLLM[i], BUCKET_ELEMENTS * 4
    source, target = case.layouts()
    for rank, (_, _, moved) in enumerate(outcomes):
        trained, generates = (sum(s.numel for s in layout.stored(rank)) * 4 for layout in (source, target))
        assert not moved[i].wrong and generates > 10 * bucket_bytes
        assert moved[i].received_bytes <= generates
        assert trained + generates <= moved[i].peak_bytes <= trained + 1.2 * generates + bucket_bytes
