"""Protects the reading of Hugging Face configs: each family's own defaults, and a clear refusal of anything else.

Configs come from users and from the network, so nothing in one may surface as a traceback.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.models.hf_config import MAX_CONFIG_BYTES, load_hf_config, shape_from_hf_config
from profiles.models.shape import ModelShape
from tests.draws import draws


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k != key}


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}
QWEN3_MOE: dict[str, Any] = LLAMA | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
QWEN2_MOE: dict[str, Any] = QWEN3_MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 32}
MIXTRAL: dict[str, Any] = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK: dict[str, Any] = LLAMA | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
}
QWEN3_NEXT: dict[str, Any] = QWEN2_MOE | {
    "model_type": "qwen3_next",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
}
NEMOTRON_H: dict[str, Any] = LLAMA | {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-*E",
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "ssm_state_size": 4,
    "n_groups": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 32,
}
DSA: dict[str, Any] = DEEPSEEK | {
    "model_type": "deepseek_v32",
    "index_n_heads": 3,
    "index_head_dim": 4,
    "index_topk": 5,
}
GPT_OSS: dict[str, Any] = MIXTRAL | {"model_type": "gpt_oss", "head_dim": 8}
GLM: dict[str, Any] = without(DEEPSEEK, "q_lora_rank") | {"model_type": "glm4_moe", "num_key_value_heads": 2}
LLAMA4: dict[str, Any] = MIXTRAL | {"model_type": "llama4_text", "intermediate_size_mlp": 128}
KIMI_LINEAR: dict[str, Any] = without(without(DEEPSEEK, "q_lora_rank"), "n_routed_experts") | {
    "model_type": "kimi_linear",
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 2,
    "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 4, "head_dim": 6},
}
GEMMA4: dict[str, Any] = LLAMA | {
    "model_type": "gemma4_text",
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
}
MINIMAX_M3: dict[str, Any] = MIXTRAL | {
    "model_type": "minimax_m3",
    "moe_layer_freq": [0, 1, 1, 1],
    "sparse_attention_config": {"sparse_attention_freq": [0, 1, 1, 1], "sparse_block_size": 4, "sparse_topk_blocks": 2},
}
NEMOTRON_NAS: dict[str, Any] = LLAMA | {
    "model_type": "nemotron-nas",
    "hidden_size": 768,
    "intermediate_size": None,
    "num_key_value_heads": None,
    "block_configs": [
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.0}},
        {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 0.6}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": None, "no_op": True}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"intermediate_size": 512}},
    ],
}
QWEN_VL: dict[str, Any] = {"model_type": "qwen3_vl", "text_config": LLAMA, "vision_config": {"depth": 2}}
QWEN_OMNI: dict[str, Any] = {
    "model_type": "qwen3_omni_moe",
    "thinker_config": {
        "text_config": without(QWEN3_MOE, "model_type"),
        "vision_config": {"depth": 2, "hidden_size": 8, "intermediate_size": 16},
        "audio_config": {"encoder_layers": 3, "d_model": 4, "encoder_ffn_dim": 8},
    },
    "talker_config": {"text_config": LLAMA},
}
ALL = [
    NEMOTRON_NAS,
    QWEN_OMNI,
    KIMI_LINEAR,
    GEMMA4,
    MINIMAX_M3,
    QWEN3_NEXT,
    NEMOTRON_H,
    DSA,
    GPT_OSS,
    GLM,
    LLAMA4,
    QWEN_VL,
    LLAMA,
    QWEN3_MOE,
    QWEN2_MOE,
    MIXTRAL,
    DEEPSEEK,
] + [
    LLAMA | {"model_type": family} for family in ("mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3")
]


def read(config: Any, **changes: Any) -> ModelShape:
    return shape_from_hf_config(config | changes if changes else config, "toy", "toy.json")


def test_what_a_search_left_of_llama() -> None:
    """Widths 1024, 512 and 512 (to 256): priced as three of 512, counted as they are; one layer has no attention."""
    shape = read(NEMOTRON_NAS)
    assert (shape.num_kv_heads, shape.num_attention_layers, shape.num_dense_layers) == (2, 3, 3)
    assert (shape.ffn, shape.ffn_beyond) == (512, 512)
    attention = 768 * (768 + 2 * 192) + 768 * 768
    mlps = 3 * 768 * (1024 + 512 + 512)
    norms = 768 * (3 + 3 + 1)
    assert shape.num_params == 3 * attention + mlps + norms + 2 * 100 * 768
    assert shape.kv_elements_per_token == 3 * 2 * 192


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 1.0}}, "one n_heads_in_group that divides"),
        ({"attention": {"n_heads_in_group": 4}, "ffn": {}}, "needs ffn_mult or intermediate_size"),
        ({"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1.0}}, "replace_with_linear is not"),
    ],
)
def test_blocks_that_no_layer_can_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read(NEMOTRON_NAS, block_configs=[*NEMOTRON_NAS["block_configs"][:3], change])
    with pytest.raises(FileFormatError, match="block_configs has 1 entries for num_hidden_layers=4"):
        read(NEMOTRON_NAS, block_configs=[change])


def test_a_model_that_speaks_is_the_part_that_writes_text() -> None:
    shape, text = read(QWEN_OMNI), read(QWEN3_MOE)
    assert shape.num_params == text.num_params and shape.architecture == "qwen3_moe"
    assert shape.vision_params == 2 * (4 * 8**2 + 2 * 8 * 16) + 3 * (4 * 4**2 + 2 * 4 * 8)
    with pytest.raises(FileFormatError, match="thinker_config must be an object"):
        read(without(QWEN_OMNI, "thinker_config"))


def test_llama() -> None:
    shape = read(LLAMA)
    assert (shape.name, shape.architecture, shape.head_dim, shape.num_kv_heads) == ("toy", "llama", 8, 2)
    assert not (shape.tied_embeddings or shape.qkv_bias or shape.o_bias or shape.mlp_bias or shape.qk_norm)
    biased = read(LLAMA, attention_bias=True, mlp_bias=True)
    assert biased.qkv_bias and biased.o_bias and biased.mlp_bias
    assert read(LLAMA, num_key_value_heads=None).num_kv_heads == 8  # as configs before grouped queries mean it
    assert read(LLAMA, head_dim=16).head_dim == 16


@pytest.mark.parametrize(
    ("family", "qkv_bias", "qk_norm", "tied", "norms", "head_dim"),
    [
        ("qwen2", True, False, False, 2, 8),
        ("qwen3", False, True, False, 2, 8),
        ("mistral", False, False, False, 2, 8),
        ("phi3", False, False, False, 2, 8),
        ("gemma", False, False, True, 2, 256),
        ("gemma2", False, False, True, 4, 256),
        ("gemma3_text", False, True, True, 4, 256),
    ],
)
def test_family_defaults(family: str, qkv_bias: bool, qk_norm: bool, tied: bool, norms: int, head_dim: int) -> None:
    shape = read(LLAMA, model_type=family)
    assert (shape.qkv_bias, shape.qk_norm, shape.tied_embeddings) == (qkv_bias, qk_norm, tied)
    assert (shape.norms_per_layer, shape.head_dim, shape.o_bias) == (norms, head_dim, False)


@pytest.mark.parametrize(
    ("changes", "window", "layers"),
    [
        ({"model_type": "llama", "sliding_window": 9}, None, 0),  # Llama's code has no window
        ({"model_type": "mistral"}, 4096, 4),  # Mistral's default
        ({"model_type": "mistral", "sliding_window": None}, None, 0),  # as v0.3 turns it off
        ({"model_type": "qwen2", "sliding_window": 9}, None, 0),  # off until use_sliding_window
        ({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}, 9, 3),
        ({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True}, None, 0),  # 28 full layers first
        ({"model_type": "gemma2", "num_hidden_layers": 5}, 4096, 3),  # layers 0, 2 and 4
        ({"model_type": "gemma3_text", "num_hidden_layers": 13, "sliding_window": 9}, 9, 11),  # 5 of every 6
        ({"model_type": "gemma3_text", "layer_types": ["sliding_attention"] + ["full_attention"] * 3}, 4096, 1),
        ({"model_type": "phi3", "sliding_window": 9}, 9, 4),
    ],
)
def test_sliding_window(changes: dict[str, Any], window: int | None, layers: int) -> None:
    shape = read(LLAMA, **changes)
    assert (shape.sliding_window, shape.num_sliding_layers) == (window, layers)


def test_mixtral_is_sparse_in_every_layer() -> None:
    moe = read(MIXTRAL).moe
    assert moe is not None
    assert (moe.num_moe_layers, moe.num_experts, moe.experts_per_token, moe.expert_ffn) == (4, 8, 2, 96)
    assert (moe.shared_ffn, moe.shared_gate, moe.router_bias) == (0, False, False)


def test_qwen_moe_layers() -> None:
    moe = read(QWEN3_MOE, decoder_sparse_step=2, mlp_only_layers=[3]).moe
    assert moe is not None
    assert moe.moe_layers == (False, True, False, False)
    assert (moe.shared_ffn, moe.shared_gate) == (0, False)
    assert read(QWEN3_MOE, mlp_only_layers=[0, 1, 2, 3]).moe is None


def test_qwen2_moe_has_a_gated_shared_expert_and_biases() -> None:
    shape = read(QWEN2_MOE)
    assert shape.moe is not None
    assert (shape.moe.shared_ffn, shape.moe.shared_gate) == (32, True)
    assert (shape.qkv_bias, shape.qk_norm, read(QWEN2_MOE, qkv_bias=False).qkv_bias) == (True, False, False)


def test_deepseek() -> None:
    shape = read(DEEPSEEK)
    assert shape.mla is not None and shape.moe is not None
    assert (shape.head_dim, shape.mla.kv_lora_rank, shape.kv_elements_per_token_per_layer) == (8, 10, 12)
    assert shape.moe.moe_layers == (False, True, True, True)
    assert (shape.moe.shared_ffn, shape.moe.router_bias) == (2 * 16, True)
    # The multi-token-prediction layer is not a layer of the model.
    without_it = read({key: value for key, value in DEEPSEEK.items() if key != "num_nextn_predict_layers"})
    assert (shape.num_mtp_layers, without_it.num_mtp_layers) == (1, 0)
    assert replace(shape, num_mtp_layers=0) == without_it
    greedy = read(DEEPSEEK, model_type="deepseek_v2", q_lora_rank=None, moe_layer_freq=2)
    assert greedy.moe is not None and greedy.mla is not None
    assert (greedy.moe.router_bias, greedy.mla.q_lora_rank) == (False, None)
    assert greedy.moe.moe_layers == (False, False, True, False)
    assert read(DEEPSEEK, n_routed_experts=None).moe is None


def test_class_name_stands_in_for_a_missing_model_type() -> None:
    config = {key: value for key, value in QWEN2_MOE.items() if key != "model_type"}
    assert read(config, architectures=["Qwen2MoeForCausalLM"]) == read(QWEN2_MOE)


def test_gemma3_text_part() -> None:
    text = LLAMA | {"model_type": "gemma3_text"}
    assert read({"model_type": "gemma3", "text_config": text}) == read(text)
    assert read({"model_type": "gemma3", "text_config": text, "vision_config": {}}) == read(text)


def test_text_part_of_a_multimodal_model() -> None:
    """Keys of the text model win over the outer ones; a tower without stated size counts its blocks alone."""
    tower = {"depth": 2, "hidden_size": 8, "intermediate_size": 10}
    outer = {"model_type": "qwen3_vl", "tie_word_embeddings": True, "vocab_size": 7, "vision_config": tower}
    shape = read({**outer, "text_config": without(LLAMA, "model_type")})
    assert (shape.architecture, shape.vocab, shape.tied_embeddings, shape.qk_norm) == ("qwen3", 100, True, True)
    assert shape.vision_params == 2 * (4 * 8 * 8 + 2 * 8 * 10)
    stated = {**outer, "text_config": LLAMA, "_hybridmap": {"vision_num_params": 3}}
    assert read(stated).vision_params == 3
    assert read({**LLAMA, "model_type": "qwen2_vl"}).num_params == read(LLAMA, model_type="qwen2").num_params


def test_unknown_keys_do_not_matter() -> None:
    assert read(LLAMA, rope_scaling=None, novelty=[1]) == read(LLAMA)


def test_gated_delta_net() -> None:
    shape = read(QWEN3_NEXT)
    assert shape.linear is not None and shape.attention_gate and shape.qk_norm
    assert (shape.num_linear_layers, shape.num_attention_layers) == (3, 1)
    assert (shape.linear.conv_width, shape.linear.in_width) == (2 * 2 * 4 + 4 * 6, 2 * 2 * 4 + 2 * 4 * 6 + 2 * 4)
    assert (shape.linear.state_elements, shape.linear.conv_elements) == (4 * 4 * 6, 3 * 40)
    all_full = read(QWEN3_NEXT, layer_types=["full_attention"] * 4)
    assert all_full.linear is None and all_full.num_linear_layers == 0


def test_kimi_linear() -> None:
    shape = read(KIMI_LINEAR)
    assert shape.linear is not None and shape.mla is not None and shape.moe is not None
    assert (shape.num_linear_layers, shape.num_attention_layers, shape.num_moe_layers) == (3, 1, 3)
    assert (shape.linear.kind, shape.linear.in_width, shape.linear.gate_width) == ("kimi_delta", 3 * 24 + 4, 48)
    by_rule = without(KIMI_LINEAR, "linear_attn_config")
    assert read(by_rule, num_hidden_layers=9).num_linear_layers == 7  # the fifth and the ninth see everything
    words = ["linear_attention", "full_attention"] * 2
    assert read(by_rule, layer_types=words).num_linear_layers == 2


def test_gemma4_heads_of_the_layers_that_see_everything() -> None:
    shape = read(GEMMA4)
    kinds = [(kind.layers, kind.num_kv_heads, kind.head_dim, kind.window) for kind in shape.softmax_kinds]
    assert kinds == [(1, 1, 16, 0), (3, 2, 8, 512)]
    windowed, full = 64 * (8 * 8 + 2 * 2 * 8) + 64 * 64, 64 * (8 * 16 + 16) + 8 * 16 * 64  # values are the keys
    norms = 4 * 4 * 64 + 3 * 2 * 8 + 2 * 16
    assert shape.layer_params == 3 * windowed + full + norms + 4 * 3 * 64 * 96
    moe = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    mixed = read(GEMMA4, **moe)
    assert mixed.moe is not None and mixed.moe.shared_ffn == 96 and mixed.num_dense_layers == 0
    assert read(without(GEMMA4, "layer_types"), num_hidden_layers=13).num_sliding_layers == 10


def test_minimax_m3_indexer() -> None:
    shape = read(MINIMAX_M3)
    assert shape.sparse is not None and (shape.sparse.topk, shape.sparse.num_layers, shape.sparse.block) == (8, 3, 4)
    assert [(kind.layers, kind.topk) for kind in shape.softmax_kinds] == [(1, 0), (3, 8)]
    assert (shape.num_dense_layers, shape.num_moe_layers, shape.ffn) == (1, 3, 12_288)
    assert read(without(MINIMAX_M3, "sparse_attention_config")).sparse is None


def test_nemotron_h_blocks() -> None:
    shape = read(NEMOTRON_H)
    assert (shape.num_layers, shape.num_attention_layers, shape.num_linear_layers) == (4, 1, 1)
    assert (shape.num_dense_layers, shape.num_moe_layers, shape.norms_per_layer) == (1, 1, 1)
    words = without(NEMOTRON_H, "hybrid_override_pattern") | {"layers_block_type": ["mamba", "mlp", "attention", "moe"]}
    assert read(without(words, "num_hidden_layers")) == shape
    newer = words | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"]}
    assert read(newer) == shape
    narrow = read(NEMOTRON_H, moe_latent_size=12)
    assert shape.moe is not None and narrow.moe == replace(shape.moe, latent=12)


@pytest.mark.parametrize(
    ("config", "experts", "attention"),
    [
        ({"quant_method": "fp8"}, "fp8", "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", "fp8_block"),
        ({"quant_method": "awq", "bits": 4}, "int4", "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}, "nvfp4", "bf16"),
        ({"quant_algo": "NVFP4", "exclude_modules": ["re:.*experts.*", "lm_head"]}, "bf16", "nvfp4"),
        ({"quant_method": "mxfp4"}, "mxfp4", "bf16"),
        ({"config_groups": {"a": {"weights": {"num_bits": 4, "type": "int"}}}, "ignore": ["mlp"]}, "bf16", "int4"),
        ({"config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8", "fp8"),
        ({"config_groups": {"a": {"weights": {"num_bits": 4, "type": "float"}}}}, "nvfp4", "nvfp4"),
        (
            {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"model.layers.2.mlp.experts": {"quant_algo": "FP8"}},
            },
            "fp8",
            "bf16",
        ),
    ],
)
def test_number_formats(config: dict[str, Any], experts: str, attention: str) -> None:
    weights = read(QWEN3_MOE, quantization_config=config).weights
    assert weights is not None and (weights.experts, weights.attention) == (experts, attention)


@pytest.mark.parametrize(
    "config",
    [None, 3, [], {}, {"quant_method": "bitsandbytes"}, {"quant_method": "fp8", "ignore": ["re:(a+)+$", 5, "re:("]}],
)
def test_formats_that_are_not_known_are_no_error(config: Any) -> None:
    weights = read(QWEN3_MOE, quantization_config=config).weights
    assert weights is None or weights.experts == "fp8"


BAD_CONFIGS: list[tuple[Any, str]] = [
    (KIMI_LINEAR | {"attn_res_block_size": 12}, "attn_res_block_size=12"),
    ({"model_type": "kimi_k3", "text_config": KIMI_LINEAR | {"attn_res_block_size": 12}}, "attn_res_block_size=12"),
    (LLAMA | {"model_type": "deepseek_v4"}, "deepseek_v4 is not supported: caches compressed at two rates"),
    (GEMMA4 | {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input=256"),
    (GEMMA4 | {"num_kv_shared_layers": 2}, "num_kv_shared_layers=2"),
    (GEMMA4 | {"enable_moe_block": True}, "enable_moe_block"),
    (MINIMAX_M3 | {"sparse_attention_config": {"sparse_attention_freq": [1]}}, "1 kinds of attention"),
    ([LLAMA], "must be a JSON object, not a list"),  # a list in place of a mapping
    ("llama", "must be a JSON object, not 'llama'"),  # a string
    (None, "must be a JSON object, not None"),  # nothing
    ({}, "model_type must be a string, got None"),  # an empty file of braces
    (LLAMA | {"model_type": 3}, "model_type must be a string, got 3"),  # a number for a name
    (LLAMA | {"model_type": ["llama"]}, "got a list"),  # a list for a name
    (without(LLAMA, "hidden_size"), "hidden_size is missing, which a llama config needs"),  # a required key
    (without(QWEN3_MOE, "num_experts"), "num_experts is missing"),  # a key that only this family needs
    (without(DEEPSEEK, "q_lora_rank"), "q_lora_rank is missing"),  # null is a choice, absence is not
    (without(DEEPSEEK, "moe_intermediate_size"), "n_routed_experts needs"),  # needed only beside experts
    (LLAMA | {"hidden_size": 0}, "hidden_size=0: Input should be greater than 0"),  # zero
    (LLAMA | {"vocab_size": -5}, "vocab_size=-5"),  # negative
    (LLAMA | {"intermediate_size": 10**8}, "intermediate_size=100000000"),  # beyond any model
    (LLAMA | {"vocab_size": 10**5000}, "an integer of more than 128 bits"),  # more digits than Python prints
    (LLAMA | {"num_hidden_layers": 10_001}, "num_hidden_layers=10001"),  # layers have a lower cap
    (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers=True"),  # a bool for an int
    (LLAMA | {"num_hidden_layers": 4.0}, "num_hidden_layers=4.0"),  # a float for an int
    (LLAMA | {"num_hidden_layers": "4"}, "num_hidden_layers='4'"),  # text for an int
    (LLAMA | {"hidden_size": float("nan")}, "hidden_size=nan"),  # JSON as Python reads it allows NaN
    (LLAMA | {"hidden_size": None}, "hidden_size=None"),  # null for a required size
    (LLAMA | {"tie_word_embeddings": 1}, "tie_word_embeddings=1"),  # an int for a bool
    (LLAMA | {"vocab_size": "x" * 1000}, "vocab_size='xxx"),  # a long value is cut
    (LLAMA | {"num_attention_heads": 7}, "hidden_size=64 is not a multiple of num_attention_heads=7"),
    (LLAMA | {"num_key_value_heads": 3}, "num_heads=8 is not a multiple of num_kv_heads=3"),  # uneven groups
    (LLAMA | {"model_type": "phi3", "sliding_window": 0}, "sliding_window=0"),  # a window of nothing
    (LLAMA | {"model_type": "phi3", "sliding_window": 9, "layer_types": ["full_attention"]}, "layer_types has 1"),
    (LLAMA | {"model_type": "qwen3", "layer_types": ["linear_attention"] * 4}, "layer_types.0="),  # another attention
    (LLAMA | {"model_type": "gemma3_text", "sliding_window_pattern": 0}, "sliding_window_pattern=0"),
    (QWEN3_MOE | {"num_experts_per_tok": 9}, "experts_per_token=9 exceeds num_experts=8"),  # more than there are
    (QWEN3_MOE | {"mlp_only_layers": "0"}, "mlp_only_layers='0'"),  # text for a list
    (QWEN3_MOE | {"mlp_only_layers": [-1]}, "mlp_only_layers.0=-1"),  # a negative layer
    (QWEN3_MOE | {"decoder_sparse_step": 0}, "decoder_sparse_step=0"),  # would divide by zero
    (DEEPSEEK | {"moe_layer_freq": 0}, "moe_layer_freq=0"),  # would divide by zero
    (DSA | {"indexer_types": ["full"]}, "indexer_types has 1"),
    (NEMOTRON_H | {"hybrid_override_pattern": "M-X"}, "unknown kinds ['X']"),
    (NEMOTRON_H | {"hybrid_override_pattern": "M-"}, "layers_block_type has 2 entries"),
    (without(NEMOTRON_H, "hybrid_override_pattern"), "layers_block_type has 0 entries"),
    (QWEN3_NEXT | {"layer_types": ["linear_attention"]}, "layer_types has 1"),
    (QWEN3_NEXT | {"linear_num_value_heads": 3}, "v_heads=3 is not a multiple of k_heads=2"),
    (GPT_OSS | {"num_local_experts": 0}, "num_local_experts=0"),
    (DEEPSEEK | {"num_key_value_heads": 2}, "num_kv_heads=2 must equal num_heads=8"),  # MLA has no groups
]


@pytest.mark.parametrize(("config", "message"), BAD_CONFIGS)
def test_bad_configs_are_refused_in_one_line(config: Any, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        read(config)
    text = str(caught.value)
    assert text.startswith("toy.json: ") and message in text
    assert "\n" not in text and len(text) < 250


@pytest.mark.parametrize("family", ["gpt2", "jamba", "Llama\n", "x" * 5000, "\ud800"])
def test_unknown_architecture_lists_the_supported_ones(family: str) -> None:
    with pytest.raises(UnknownNameError, match=r"deepseek_v3.*llama.*qwen3_moe") as caught:
        read(LLAMA, model_type=family)
    around, _, supported = str(caught.value).partition("supported: ")
    assert "\n" not in around + supported and len(around) < 200  # however many are supported


def test_load_from_file_and_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "other.json").write_text(json.dumps(LLAMA))
    assert load_hf_config(folder).name == load_hf_config(folder / "config.json").name == "my-model"
    assert load_hf_config(tmp_path / "other.json").name == "other"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a JSON file"),  # empty
        (b'{"hidden_size": 64', "not a JSON file"),  # cut off
        (b"\xff\xfe\x00\x81", "not a JSON file"),  # not text
        (b"[" * 100_000, "not a JSON file"),  # nested beyond the parser's stack
        (b'{"vocab_size": ' + b"9" * 10_000 + b"}", "not a JSON file"),  # more digits than Python reads
        (b"[1, 2]", "must be a JSON object, not a list"),  # JSON, but no object
        (b'{"model_type": "llama"}', "hidden_size is missing"),  # an object, but no config
        (b" " * (MAX_CONFIG_BYTES + 1), "larger than"),  # weights in place of a config
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_hf_config(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ["absent.json", "empty-folder", "null\0byte.json", "n" * 5000])
def test_unreadable_paths(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty-folder").mkdir()
    with pytest.raises(InputError, match="cannot read the model config"):
        load_hf_config(tmp_path / name)


KEYS = sorted(
    {key for config in ALL for key in config}
    | {"architectures", "head_dim", "layer_types", "text_config", "quantization_config"}
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.integers(1, 64),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=draws(300), deadline=None)
@given(
    base=st.sampled_from([{}, *ALL]),
    changes=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), JSON_VALUES, max_size=4),
    dropped=st.sets(st.sampled_from(KEYS), max_size=2),
)
def test_any_mapping_gives_a_shape_or_an_input_error(
    base: dict[str, Any], changes: dict[str, Any], dropped: set[str]
) -> None:
    config = {key: value for key, value in (base | changes).items() if key not in dropped}
    try:
        shape = read(config)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert 0 < shape.active_params_per_token <= shape.num_params
