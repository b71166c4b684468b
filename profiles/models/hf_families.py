"""The families of Hugging Face configs: which keys each one's code reads, and the shape that they make.

One pydantic model per family holds the keys that this family's code reads, with that code's own defaults. Extra keys
are ignored, since a published config carries many that say nothing about the shape; wrong types never pass.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from profiles.errors import InputError
from profiles.models.shape import MlaShape, ModelShape, MoeShape

# No published model comes near these; beyond them a config is a mistake, and counts would stop meaning anything.
_MAX_SIZE = 10_000_000
_MAX_LAYERS = 10_000

_Size = Annotated[int, Field(gt=0, le=_MAX_SIZE)]
_Index = Annotated[int, Field(ge=0, le=_MAX_SIZE)]
_LayerType = Literal["full_attention", "sliding_attention"]


class _Config(BaseModel):
    """Keys that all families share, and how they make a shape."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    norms_per_layer: ClassVar[int] = 2
    qk_norm: ClassVar[bool] = False

    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: Annotated[int, Field(gt=0, le=_MAX_LAYERS)]
    num_attention_heads: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    vocab_size: _Size
    max_position_embeddings: _Size
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    sliding_window: _Size | None = None
    layer_types: list[_LayerType] | None = None

    def shape(self, name: str, architecture: str) -> ModelShape:
        num_sliding = self.num_sliding() if self.sliding_window else 0
        qkv_bias, o_bias, mlp_bias = self.biases()
        return ModelShape(
            name=name,
            architecture=architecture,
            hidden=self.hidden_size,
            num_layers=self.num_hidden_layers,
            vocab=self.vocab_size,
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=self.width_per_head(),
            ffn=self.intermediate_size,
            max_position=self.max_position_embeddings,
            tied_embeddings=self.tie_word_embeddings,
            qkv_bias=qkv_bias,
            o_bias=o_bias,
            mlp_bias=mlp_bias,
            qk_norm=self.qk_norm,
            norms_per_layer=self.norms_per_layer,
            sliding_window=self.sliding_window if num_sliding else None,
            num_sliding_layers=num_sliding,
            mla=self.mla(),
            moe=self.moe(),
        )

    def width_per_head(self) -> int:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads="
                f"{self.num_attention_heads} and there is no head_dim"
            )
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def num_sliding(self) -> int:
        """Layers that use the window, where there is one."""
        if self.layer_types is None:
            return self.num_sliding_by_rule()
        if len(self.layer_types) != self.num_hidden_layers:
            raise InputError(
                f"layer_types has {len(self.layer_types)} entries for num_hidden_layers={self.num_hidden_layers}"
            )
        return self.layer_types.count("sliding_attention")

    def num_sliding_by_rule(self) -> int:
        return self.num_hidden_layers

    def biases(self) -> tuple[bool, bool, bool]:
        """Whether the query/key/value, the attention output and the MLP projections carry biases."""
        return self.attention_bias, self.attention_bias, False

    def mla(self) -> MlaShape | None:
        return None

    def moe(self) -> MoeShape | None:
        return None


class _Llama(_Config):
    mlp_bias: bool = False

    def num_sliding(self) -> int:
        return 0  # this family's code reads no window

    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, self.attention_bias, self.mlp_bias


class _Phi3(_Config):
    def biases(self) -> tuple[bool, bool, bool]:
        return False, False, False  # this family's code reads no bias key


class _Mistral(_Phi3):
    sliding_window: _Size | None = 4096


class _Qwen3(_Config):
    qk_norm: ClassVar[bool] = True
    use_sliding_window: bool = False
    max_window_layers: _Index = 28

    def num_sliding(self) -> int:
        return super().num_sliding() if self.use_sliding_window else 0

    def num_sliding_by_rule(self) -> int:
        return max(self.num_hidden_layers - self.max_window_layers, 0)  # the first layers see everything


class _Qwen2(_Qwen3):
    qk_norm: ClassVar[bool] = False

    def biases(self) -> tuple[bool, bool, bool]:
        return True, False, False  # no key turns them off


class _Gemma(_Config):
    head_dim: _Size | None = 256
    tie_word_embeddings: bool = True

    def num_sliding(self) -> int:
        return 0


class _Gemma2(_Gemma):
    norms_per_layer: ClassVar[int] = 4
    sliding_window: _Size | None = 4096

    def num_sliding(self) -> int:
        return _Config.num_sliding(self)

    def num_sliding_by_rule(self) -> int:
        return (self.num_hidden_layers + 1) // 2  # every other layer, the first one included


class _Gemma3(_Gemma2):
    qk_norm: ClassVar[bool] = True
    sliding_window_pattern: _Size = 6

    def num_sliding_by_rule(self) -> int:
        return self.num_hidden_layers - self.num_hidden_layers // self.sliding_window_pattern


class _Mixtral(_Phi3):
    num_local_experts: _Size
    num_experts_per_tok: _Size

    def moe(self) -> MoeShape | None:
        experts, each, ffn = self.num_local_experts, self.num_experts_per_tok, self.intermediate_size
        return MoeShape(experts, each, ffn, 0, False, False, (True,) * self.num_hidden_layers)


class _Qwen3Moe(_Qwen3):
    num_experts: _Size
    num_experts_per_tok: _Size
    moe_intermediate_size: _Size
    decoder_sparse_step: _Size = 1
    mlp_only_layers: list[_Index] = []

    def moe(self) -> MoeShape | None:
        dense, step = set(self.mlp_only_layers), self.decoder_sparse_step
        layers = tuple(i not in dense and (i + 1) % step == 0 for i in range(self.num_hidden_layers))
        if not any(layers):
            return None
        experts, each, ffn = self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size
        return MoeShape(experts, each, ffn, self.shared_ffn(), self.shared_ffn() > 0, False, layers)

    def shared_ffn(self) -> int:
        return 0


class _Qwen2Moe(_Qwen3Moe):
    qk_norm: ClassVar[bool] = False
    shared_expert_intermediate_size: _Index
    qkv_bias: bool = True

    def biases(self) -> tuple[bool, bool, bool]:
        return self.qkv_bias, False, False

    def shared_ffn(self) -> int:
        return self.shared_expert_intermediate_size


class _DeepseekV2(_Config):
    """Latent attention; the multi-token-prediction layers (``num_nextn_predict_layers``) are not counted."""

    default_topk_method: ClassVar[str] = "greedy"

    q_lora_rank: _Size | None
    kv_lora_rank: _Size
    qk_nope_head_dim: _Size
    qk_rope_head_dim: _Size
    v_head_dim: _Size
    n_routed_experts: _Size | None = None
    n_shared_experts: _Index | None = None
    num_experts_per_tok: _Size | None = None
    moe_intermediate_size: _Size | None = None
    first_k_dense_replace: _Index = 0
    moe_layer_freq: _Size = 1
    topk_method: str | None = None

    def width_per_head(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim  # newer configs carry a head_dim of another meaning

    def mla(self) -> MlaShape | None:
        return MlaShape(
            self.q_lora_rank, self.kv_lora_rank, self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim
        )

    def moe(self) -> MoeShape | None:
        first, every = self.first_k_dense_replace, self.moe_layer_freq
        layers = tuple(i >= first and i % every == 0 for i in range(self.num_hidden_layers))
        if self.n_routed_experts is None or not any(layers):
            return None
        if self.num_experts_per_tok is None or self.moe_intermediate_size is None:
            raise InputError("n_routed_experts needs num_experts_per_tok and moe_intermediate_size beside it")
        bias = (self.topk_method or self.default_topk_method) == "noaux_tc"
        experts, each, ffn = self.n_routed_experts, self.num_experts_per_tok, self.moe_intermediate_size
        return MoeShape(experts, each, ffn, (self.n_shared_experts or 0) * ffn, False, bias, layers)


class _DeepseekV3(_DeepseekV2):
    default_topk_method: ClassVar[str] = "noaux_tc"


FAMILIES: dict[str, type[_Config]] = {
    "llama": _Llama,
    "mistral": _Mistral,
    "mixtral": _Mixtral,
    "qwen2": _Qwen2,
    "qwen2_moe": _Qwen2Moe,
    "qwen3": _Qwen3,
    "qwen3_moe": _Qwen3Moe,
    "gemma": _Gemma,
    "gemma2": _Gemma2,
    "gemma3_text": _Gemma3,
    "phi3": _Phi3,
    "deepseek_v2": _DeepseekV2,
    "deepseek_v3": _DeepseekV3,
}
# Configs without model_type name a class instead: Qwen2MoeForCausalLM is qwen2_moe.
BY_CLASS = {family.replace("_text", "").replace("_", "") + "forcausallm": family for family in FAMILIES}
