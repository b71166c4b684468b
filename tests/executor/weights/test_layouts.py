"""Protects the weight maps: every engine's local tensors cover the checkpoint, and stand where the engine puts them."""

import pytest

from benchmarks.architectures import architecture
from benchmarks.data_sliced_layout import DataSlicedLayout
from benchmarks.transition_cases import random_case
from executor.weights.megatron_layout import MegatronLayout
from executor.weights.native_layout import FsdpLayout, NativeLayout
from executor.weights.regions import intersection, volume
from executor.weights.vllm_layout import VllmLayout
from profiles.errors import InputError
from simulator.plan.groups import Degrees, training_coordinates

SIZES = dict(hidden=8, num_layers=4, vocab=10, num_heads=4, num_kv_heads=2, head_dim=2, ffn=8)
GQA = architecture("llama", **SIZES)


def boxes(layout, ranks):
    found = {}
    for rank in ranks:
        for stored in layout.stored(rank):
            for region in stored.regions:
                found.setdefault(region.name, set()).add(region.box)
    return found


def layouts_of(case):
    """Each layout of a case with the ranks that together hold the model once."""
    x = case.degrees
    try:
        source, target = case.layouts()
    except InputError:
        return
    experts = case.ep > 1  # experts are spread over data-parallel replicas
    first = [r for r in range(x.num_ranks) if experts or training_coordinates(r, x)[2] == 0]
    yield source, range(x.num_ranks) if case.source == "fsdp" else first
    yield target, range(x.num_ranks)
    if case.source != "fsdp":
        yield DataSlicedLayout(source, x), range(x.num_ranks)


def test_random_layouts_hold_every_element_of_the_checkpoint_and_none_in_two_ways():
    seen = 0
    for seed in range(300):
        case = random_case(seed, 8)
        for layout, ranks in layouts_of(case):
            seen += 1
            held = boxes(layout, ranks)
            for name, tensor in case.arch.tensors().items():
                parts = list(held[name])
                size = volume(tuple((0, n) for n in tensor.shape))
                assert sum(volume(box) for box in parts) == size or overlapping_copies(parts, size), (case, name)
                assert not any(
                    intersection(a, b) for i, a in enumerate(parts) for b in parts[:i]
                ) or overlapping_copies(parts, size)
    assert seen > 300


def overlapping_copies(parts, size):
    """Whether boxes that overlap still cover the tensor: a whole copy beside slices of it."""
    return max(volume(box) for box in parts) == size


def test_megatron_groups_queries_with_their_key_and_value():
    (qkv,) = (
        s
        for s in MegatronLayout(GQA, Degrees(1, 2, 1, 1, 2)).stored(1)
        if "layers.0.self_attention.linear_qkv" in s.name
    )
    assert qkv.shape == (8, 8)
    rows = [(region.name.split(".")[-2], region.box[0], region.at[0]) for region in qkv.regions]
    assert rows == [("q_proj", (4, 8), 0), ("k_proj", (2, 4), 4), ("v_proj", (2, 4), 6)]


def test_megatron_cuts_a_kv_head_where_there_are_fewer_than_ranks():
    """Its QKV matrix is cut by rows, whatever they are: two KV heads on four ranks are half a group each."""
    rows = []
    for rank in range(4):
        (qkv,) = (
            s
            for s in MegatronLayout(GQA, Degrees(1, 4, 1, 1, 4)).stored(rank)
            if "layers.0.self_attention.linear_qkv" in s.name
        )
        rows.append([(region.name.split(".")[-2][0], region.box[0]) for region in qkv.regions])
    assert rows == [[("q", (0, 4))], [("k", (0, 2)), ("v", (0, 2))], [("q", (4, 8))], [("k", (2, 4)), ("v", (2, 4))]]


def test_vllm_repeats_kv_heads_where_there_are_fewer_than_ranks():
    layout = VllmLayout(GQA, Degrees(1, 4, 1, 1, 4))
    for rank in range(4):
        (qkv,) = (s for s in layout.stored(rank) if s.name == "model.layers.0.self_attn.qkv_proj.weight")
        rows = [(region.name.split(".")[-2][0], region.box[0]) for region in qkv.regions]
        assert rows == [
            ("q", (2 * rank, 2 * rank + 2)),
            ("k", (rank // 2 * 2, rank // 2 * 2 + 2)),
            ("v", (rank // 2 * 2, rank // 2 * 2 + 2)),
        ]


def test_vocabularies_are_padded_as_each_engine_does():
    embedding = next(s for s in MegatronLayout(GQA, Degrees(1, 4, 1, 1, 4)).stored(3) if "embedding" in s.name)
    assert embedding.shape == (3, 8)
    assert [region.box[0] for region in embedding.regions] == [(9, 10)]
    assert embedding.padding == 16
    embedding = next(s for s in VllmLayout(GQA, Degrees(1, 4, 1, 1, 4)).stored(1) if "embed" in s.name)
    assert embedding.shape == (16, 8)
    assert embedding.regions == ()


def test_interleaved_stages_take_turns():
    names = [
        s.regions[0].name
        for s in MegatronLayout(GQA, Degrees(2, 1, 1, 2, 1), vpp=2).stored(0)
        if "linear_fc2" in s.name
    ]
    assert [name.split(".")[2] for name in names] == ["0", "2"]


def test_experts_are_dealt_out_over_data_parallel_ranks():
    arch = architecture("qwen3_moe", **SIZES | {"num_layers": 1, "ffn": 6}, num_experts=4, experts_per_token=2)
    held = []
    for rank in range(4):
        stored = MegatronLayout(arch, Degrees(1, 1, 4, 1, 1), ep=2).stored(rank)
        names = [region.name for tensor in stored for region in tensor.regions if ".experts." in region.name]
        held.append(sorted({name.split(".")[5] for name in names}))
    assert held == [["0", "1"], ["2", "3"], ["0", "1"], ["2", "3"]]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: MegatronLayout(GQA, Degrees(3, 1, 1, 3, 1)), "4 layers do not divide into 3 pipeline stages"),
        (
            lambda: MegatronLayout(GQA, Degrees(1, 8, 1, 1, 8)),
            "num_heads 4 does not divide by tensor-parallel degree 8",
        ),
        (lambda: MegatronLayout(GQA, Degrees(1, 1, 2, 1, 1), ep=2), "0 experts do not divide into 2"),
        (lambda: VllmLayout(GQA, Degrees(1, 3, 1, 1, 3)), "num_heads 4 does not divide by tensor-parallel degree 3"),
        (lambda: NativeLayout(GQA, Degrees(1, 4, 1, 1, 4), "training"), "num_kv_heads 2 does not divide"),
        (lambda: FsdpLayout(GQA, 4, t=4), "num_kv_heads 2 does not divide by tensor-parallel degree 4"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_numbers(make, reason):
    with pytest.raises(InputError, match=reason):
        make()


def test_fsdp_chunks_rows_as_torch_does():
    layout = FsdpLayout(GQA, 4)
    rows = [
        [r.box[0] for s in layout.stored(rank) for r in s.regions if r.name == "lm_head.weight"] for rank in range(4)
    ]
    assert rows == [[(0, 3)], [(3, 6)], [(6, 9)], [(9, 10)]]


def test_fsdp_chunks_the_rows_of_a_tensor_parallel_part():
    layout = FsdpLayout(GQA, 4, t=2)  # ranks (tp, dp) of 0 to 3: (0, 0), (1, 0), (0, 1), (1, 1)
    held = [{r.name: r.box for s in layout.stored(rank) for r in s.regions} for rank in range(4)]
    assert [boxes["lm_head.weight"][0] for boxes in held] == [(0, 3), (5, 8), (3, 5), (8, 10)]
    output = "model.layers.0.self_attn.o_proj.weight"
    assert [boxes[output] for boxes in held] == [((0, 4), (0, 4)), ((0, 4), (4, 8)), ((4, 8), (0, 4)), ((4, 8), (4, 8))]
    assert [boxes["model.norm.weight"] for boxes in held] == [((0, 4),), ((0, 4),), ((4, 8),), ((4, 8),)]
