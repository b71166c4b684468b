"""Protects the counts that every price rests on: parameters, KV elements and tensor-parallel fits of a shape.

The expected numbers are worked out by hand here, from matrix shapes, not by the code under test.
"""

from dataclasses import replace

import pytest

from profiles.errors import InputError
from profiles.models.layers import MlaShape, MoeShape
from profiles.models.shape import ModelShape

DENSE = ModelShape(
    name="toy",
    architecture="llama",
    hidden=8,
    num_layers=3,
    vocab=100,
    num_heads=4,
    num_kv_heads=2,
    head_dim=3,
    ffn=20,
    max_position=64,
)
MOE = MoeShape(
    num_experts=4,
    experts_per_token=2,
    expert_ffn=5,
    shared_ffn=6,
    shared_gate=True,
    router_bias=True,
    moe_layers=(False, True, True),
)
MLA = MlaShape(q_lora_rank=7, kv_lora_rank=5, qk_nope_head_dim=2, qk_rope_head_dim=1, v_head_dim=4)


def test_dense_counts() -> None:
    assert (DENSE.q_width, DENSE.kv_width, DENSE.o_width) == (12, 6, 12)
    assert DENSE.attention_params == 8 * 12 + 2 * 8 * 6 + 12 * 8
    assert DENSE.dense_params == 3 * (3 * 8 * 20)
    assert DENSE.norm_params_per_layer == 2 * 8
    assert DENSE.embedding_params == DENSE.head_params == 800
    assert DENSE.num_params == 800 + 3 * (288 + 480 + 16) + 8 + 800
    assert DENSE.active_params_per_token == DENSE.num_params
    assert DENSE.kv_elements_per_token_per_layer == 2 * 2 * 3
    assert (DENSE.expert_params, DENSE.moe_mlp_params, DENSE.router_params, DENSE.shared_expert_params) == (0, 0, 0, 0)
    assert (DENSE.num_dense_layers, DENSE.num_moe_layers) == (3, 0)


def test_experts_of_a_narrower_width() -> None:
    """A token is projected down to 3 elements for its experts and up again; the shared ones see all 8."""
    shape = replace(DENSE, moe=replace(MOE, latent=3))
    assert (shape.expert_width, shape.expert_params) == (3, 3 * 3 * 5)
    assert (shape.latent_params, shape.shared_expert_params) == (2 * 8 * 3, 3 * 8 * 6 + 8)
    assert shape.moe_mlp_params == 4 * (8 + 1) + 4 * 45 + 48 + 152
    assert replace(shape, mlp_bias=True).latent_params == 48 + 8 + 3
    assert (replace(DENSE, moe=MOE).expert_width, DENSE.expert_width, DENSE.latent_params) == (8, 8, 0)
    with pytest.raises(InputError, match="latent=0"):
        replace(MOE, latent=0)


@pytest.mark.parametrize(
    ("change", "per_layer"),
    [
        ({"qkv_bias": True}, 12 + 6 + 6),  # one bias per output of q, k and v
        ({"o_bias": True}, 8),  # the output projection's outputs are hidden
        ({"mlp_bias": True}, 20 + 20 + 8),  # gate, up, down
        ({"qk_norm": True}, 3 + 3),  # one norm over head_dim each, shared by the heads
        ({"norms_per_layer": 4}, 2 * 8),  # Gemma-2: norms after attention and MLP too
        ({"gated_mlp": False}, -8 * 20),  # no gate matrix
    ],
)
def test_options_change_each_layer_by(change: dict[str, object], per_layer: int) -> None:
    assert replace(DENSE, **change).num_params - DENSE.num_params == 3 * per_layer  # type: ignore[arg-type]


def test_ungated_mlp_with_bias_has_two_bias_vectors() -> None:
    assert replace(DENSE, gated_mlp=False, mlp_bias=True).dense_params == 3 * (2 * 8 * 20 + 20 + 8)


@pytest.mark.parametrize("tied", [True, False])
def test_scalar_head_replaces_the_lm_head_and_keeps_the_embedding(tied: bool) -> None:
    shape = replace(DENSE, tied_embeddings=tied)
    assert shape.num_params_of() == shape.num_params_of("lm") == shape.num_params
    assert shape.num_params_of("scalar") == 800 + 3 * (288 + 480 + 16) + 8 + 8


def test_unknown_head_is_refused() -> None:
    with pytest.raises(InputError, match="head='value'"):
        DENSE.num_params_of("value")  # type: ignore[arg-type]


def test_moe_counts() -> None:
    shape = replace(DENSE, moe=MOE)
    assert shape.expert_params == 3 * 8 * 5
    assert shape.router_params == 4 * 8 + 4
    assert shape.shared_expert_params == 3 * 8 * 6 + 8
    assert shape.moe_mlp_params == 4 * 120 + 36 + 152
    assert (shape.num_dense_layers, shape.num_moe_layers) == (1, 2)
    assert MOE.num_moe_layers == 2
    assert shape.num_params == 1600 + 3 * (288 + 16) + 480 + 2 * 668 + 8
    assert shape.active_params_per_token == shape.num_params - 2 * 2 * 120


def test_mla_counts() -> None:
    shape = replace(DENSE, num_kv_heads=4, mla=MLA)
    query = 8 * 7 + 7 * 4 * 3
    latent = 8 * (5 + 1) + 5 * 4 * (2 + 4)
    assert shape.attention_params == query + latent + 4 * 4 * 8
    assert shape.norm_params_per_layer == 2 * 8 + 7 + 5
    assert shape.kv_elements_per_token_per_layer == 5 + 1
    assert (shape.q_width, shape.o_width) == (12, 16)
    biased = replace(shape, qkv_bias=True, o_bias=True)
    assert biased.attention_params - shape.attention_params == 7 + (5 + 1) + 8


def test_mla_without_query_latent() -> None:
    shape = replace(DENSE, num_kv_heads=4, mla=replace(MLA, q_lora_rank=None))
    assert shape.attention_params == 8 * 12 + 8 * 6 + 5 * 4 * 6 + 16 * 8
    assert shape.norm_params_per_layer == 2 * 8 + 5


def test_shapes_are_values() -> None:
    """Equal shapes must be one cache key."""
    assert hash(replace(DENSE, moe=MOE)) == hash(replace(DENSE, moe=replace(MOE)))


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        (DENSE, {1, 2, 4}),  # 4 GPUs replicate the 2 KV heads; 5 divides ffn but not the heads
        (replace(DENSE, ffn=18), {1, 2}),  # 18 does not split four ways
        (replace(DENSE, num_heads=12, num_kv_heads=4, ffn=24), {1, 2, 4, 12}),  # 3 and 6 straddle KV heads
        (replace(DENSE, moe=MOE), {1}),  # expert_ffn 5 does not split
        (replace(DENSE, moe=replace(MOE, expert_ffn=4)), {1, 2}),  # shared_ffn 6 does not split four ways
        (replace(DENSE, moe=replace(MOE, expert_ffn=4, shared_ffn=0, shared_gate=False)), {1, 2, 4}),
        # no dense layer is left, so ffn does not count
        (replace(DENSE, ffn=1, moe=replace(MOE, expert_ffn=4, shared_ffn=4, moe_layers=(True,) * 3)), {1, 2, 4}),
        (replace(DENSE, num_kv_heads=4, mla=MLA), {1, 2, 4}),
    ],
)
def test_tensor_parallel_fits(shape: ModelShape, fits: set[int]) -> None:
    assert {t for t in range(1, 25) if shape.max_tensor_parallel_ok(t)} == fits


def test_tensor_parallel_size_must_be_positive() -> None:
    with pytest.raises(InputError, match="t=0"):
        DENSE.max_tensor_parallel_ok(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 0}, "hidden=0 must be a positive integer"),  # zero
        ({"num_layers": -1}, "num_layers=-1"),  # negative
        ({"vocab": True}, "vocab=True"),  # a bool is no size
        ({"ffn": 1.5}, "ffn=1.5"),  # nor is a fraction
        ({"head_dim": "64"}, "head_dim='64'"),  # nor text
        ({"num_kv_heads": 3}, "num_heads=4 is not a multiple of num_kv_heads=3"),  # uneven query groups
        ({"sliding_window": 0}, "sliding_window=0"),  # a window of nothing
        ({"num_sliding_layers": 1}, "num_sliding_layers=1 must be from 0 to 0"),  # layers without a window
        ({"sliding_window": 4, "num_sliding_layers": 4}, "num_sliding_layers=4 must be from 0 to 3"),  # too many
        ({"moe": replace(MOE, moe_layers=(True,))}, "moe_layers has 1 flags for num_layers=3"),  # wrong length
        ({"mla": MLA}, "num_kv_heads=2 must equal num_heads=4"),  # a latent serves every head
        ({"mla": MLA, "num_kv_heads": 4, "head_dim": 9}, "head_dim=9 must equal mla's qk_head_dim=3"),  # two truths
    ],
)
def test_bad_model_shapes(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        replace(DENSE, **change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": 0}, "num_experts=0"),  # no experts
        ({"experts_per_token": 5}, "experts_per_token=5 exceeds num_experts=4"),  # more than there are
        ({"shared_ffn": -6}, "shared_ffn=-6"),  # 0 means none; negative means nothing
        ({"moe_layers": (False,) * 3}, "moe_layers marks no layer"),  # a dense model in disguise
    ],
)
def test_bad_moe_shapes(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(MOE, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"])
def test_bad_mla_shapes(field: str) -> None:
    with pytest.raises(InputError, match=f"{field}=0"):
        replace(MLA, **{field: 0})
