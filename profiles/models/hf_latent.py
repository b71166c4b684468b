"""Families of latent attention: DeepSeek-V2 and V3, Kimi-K2 and Linear, and with an indexer DeepSeek-V3.2 and GLM-5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from profiles.errors import InputError
from profiles.models.hf_base import Config, Index, Position, Size
from profiles.models.layers import LinearShape, MlaShape, MoeShape, SparseShape

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape


class DeepseekV2(Config):
    """Latent attention."""

    default_topk_method: ClassVar[str] = "greedy"

    q_lora_rank: Size | None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    n_routed_experts: Size | None = None
    n_shared_experts: Index | None = None
    num_experts_per_tok: Size | None = None
    moe_intermediate_size: Size | None = None
    first_k_dense_replace: Index = 0
    moe_layer_freq: Size = 1
    topk_method: str | None = None
    num_nextn_predict_layers: Index = 0
    n_group: Size | None = None
    topk_group: Size | None = None

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
        shared = (self.n_shared_experts or 0) * ffn
        groups = (self.n_group or 1, self.topk_group or 1)
        return MoeShape(experts, each, ffn, shared, False, bias, layers, False, *groups)

    def further(self) -> dict[str, Any]:
        return {"num_mtp_layers": self.num_nextn_predict_layers}


class DeepseekV3(DeepseekV2):
    """As DeepSeek-V2 with a bias in the router."""

    default_topk_method: ClassVar[str] = "noaux_tc"


class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash."""

    first_k_dense_replace: Index = 1


class DeepseekV32(DeepseekV3):
    """Sparse attention in every layer; newer ones share one indexer among a few layers."""

    index_n_heads: Size
    index_head_dim: Size
    index_topk: Size
    indexer_types: list[Literal["full", "shared"]] | None = None
    index_topk_freq: Size = 1
    index_skip_topk_offset: Index = 2

    def further(self) -> dict[str, Any]:
        sparse = SparseShape(self.index_n_heads, self.index_head_dim, self.index_topk, self._num_indexers())
        return {**super().further(), "sparse": sparse}

    def _num_indexers(self) -> int:
        if self.indexer_types is not None:
            if len(self.indexer_types) != self.num_hidden_layers:
                raise InputError(
                    f"indexer_types has {len(self.indexer_types)} entries for num_hidden_layers="
                    f"{self.num_hidden_layers}"
                )
            return self.indexer_types.count("full")
        first, every = self.index_skip_topk_offset - 1, self.index_topk_freq
        return sum(max(i - first, 0) % every == 0 for i in range(self.num_hidden_layers))


class KimiLinear(DeepseekV3):
    """Kimi's delta nets with latent attention in every fourth layer; keys have names of their own."""

    max_position_embeddings: Position = 1_048_576
    model_max_length: Position | None = None
    q_lora_rank: Size | None = None
    num_experts: Size | None = None
    num_experts_per_token: Size | None = None
    num_shared_experts: Index | None = None
    first_k_dense_replace: Index = 1
    layer_types: list[Literal["full_attention", "linear_attention"]] | None = None  # type: ignore[assignment]
    linear_attn_config: dict[str, Any] = Field(default_factory=dict)
    linear_head_dim: Size = 128
    linear_num_heads: Size = 32
    linear_conv_kernel_dim: Size = 4
    attn_res_block_size: Size | None = None

    def shape(self, name: str, architecture: str) -> ModelShape:
        if self.attn_res_block_size:
            raise InputError(
                f"attn_res_block_size={self.attn_res_block_size}: attention over outputs of earlier layers (Kimi-K3) "
                "is not supported"
            )
        named = {
            "n_routed_experts": self.num_experts or self.n_routed_experts,
            "num_experts_per_tok": self.num_experts_per_token or self.num_experts_per_tok,
            "n_shared_experts": self.num_shared_experts or self.n_shared_experts,
            "max_position_embeddings": self.model_max_length or self.max_position_embeddings,
        }
        return Config.shape(self.model_copy(update=named), name, architecture)

    def num_sliding(self) -> int:
        return 0

    def further(self) -> dict[str, Any]:
        given = self.linear_attn_config
        heads, dim = given.get("num_heads", self.linear_num_heads), given.get("head_dim", self.linear_head_dim)
        kernel = given.get("short_conv_kernel_size", self.linear_conv_kernel_dim)
        linear = LinearShape("kimi_delta", heads, heads, dim, dim, kernel, state_element_bytes=4)
        return {**super().further(), "linear": linear, "num_linear_layers": self._num_linear()}

    def _num_linear(self) -> int:
        layers = self.linear_attn_config.get("kda_layers")
        if self.layer_types is not None:
            layers = [i for i, kind in enumerate(self.layer_types) if kind == "linear_attention"]
        elif not isinstance(layers, list):  # by rule: every fourth one, the first left out, sees all tokens
            layers = [i for i in range(self.num_hidden_layers) if not i or i % 4]
        if len(layers) > self.num_hidden_layers:
            raise InputError(f"{len(layers)} linear layers for num_hidden_layers={self.num_hidden_layers}")
        return len(layers)
