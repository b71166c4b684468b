"""Families whose layers differ: Llama-4 (chunks), Gemma-4 (heads), MiniMax-M3 (an indexer), Llama-Nemotron (cut)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from profiles.errors import InputError
from profiles.models.hf_base import Config, Index, Position, Size
from profiles.models.hf_dense import Llama, MiniMaxM2
from profiles.models.layers import FullHeads, MoeShape, SparseShape

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape

_WIDTH_STEP = 256
"""Widths of Llama-Nemotron's MLPs are multiples of this."""


class MiniMaxM3(MiniMaxM2):
    """Dense layers that see everything, then experts and an indexer that picks blocks of tokens."""

    dense_intermediate_size: Size = 12_288
    shared_intermediate_size: Size = 3072
    n_shared_experts: Index = 1
    num_nextn_predict_layers: Index = 0
    moe_layer_freq: list[Index] | None = None
    mlp_layer_types: list[str] | None = None
    layer_types: list[str] | None = None  # type: ignore[assignment]
    sparse_attention_config: dict[str, Any] = Field(default_factory=dict)
    index_n_heads: Size = 4
    index_head_dim: Size = 128
    index_block_size: Size = 128
    index_topk_blocks: Size = 16

    def shape(self, name: str, architecture: str) -> ModelShape:
        return replace(super().shape(name, architecture), ffn=self.dense_intermediate_size)

    def num_sliding(self) -> int:
        return 0

    def moe(self) -> MoeShape | None:
        kinds = self.mlp_layer_types or ["sparse"] * self.num_hidden_layers
        layers = tuple(map(bool, self.moe_layer_freq)) if self.moe_layer_freq else tuple(k == "sparse" for k in kinds)
        if not any(layers):
            return None
        experts, each, ffn = self.num_local_experts, self.num_experts_per_tok, self.intermediate_size
        shared = self.n_shared_experts * self.shared_intermediate_size
        return MoeShape(experts, each, ffn, shared, False, True, layers)

    def further(self) -> dict[str, Any]:
        return {"qk_norm": self.use_qk_norm, "num_mtp_layers": self.num_nextn_predict_layers, "sparse": self._sparse()}

    def _sparse(self) -> SparseShape | None:
        given = self.sparse_attention_config
        flags = given.get("sparse_attention_freq") or [kind == "minimax_m3_sparse" for kind in self.layer_types or ()]
        if len(flags) not in (0, self.num_hidden_layers):
            raise InputError(f"{len(flags)} kinds of attention for num_hidden_layers={self.num_hidden_layers}")
        block = given.get("sparse_block_size", self.index_block_size)
        topk = block * given.get("sparse_topk_blocks", self.index_topk_blocks)
        heads, dim = given.get("sparse_num_index_heads", self.index_n_heads), given.get("sparse_index_dim", 0)
        layers = sum(map(bool, flags))
        return SparseShape(heads, dim or self.index_head_dim, topk, layers, block) if layers else None


class Gemma4(Config):
    """Layers without a window have wider and fewer KV heads; experts stand beside a dense MLP."""

    qk_norm: ClassVar[bool] = True
    head_dim: Size | None = 256
    tie_word_embeddings: bool = True
    sliding_window: Size | None = 512
    global_head_dim: Size = 512
    num_global_key_value_heads: Size | None = None
    attention_k_eq_v: bool = False
    hidden_size_per_layer_input: Index = 256
    num_kv_shared_layers: Index = 0
    enable_moe_block: bool = False
    num_experts: Size | None = None
    top_k_experts: Size | None = None
    moe_intermediate_size: Size | None = None

    def shape(self, name: str, architecture: str) -> ModelShape:
        if width := self.hidden_size_per_layer_input:
            raise InputError(
                f"hidden_size_per_layer_input={width}: embeddings of each layer (E2B, E4B) are not supported"
            )
        if layers := self.num_kv_shared_layers:
            raise InputError(f"num_kv_shared_layers={layers}: layers that share a cache (E2B, E4B) are not supported")
        return super().shape(name, architecture)

    def num_sliding_by_rule(self) -> int:
        return self.num_hidden_layers - -(-self.num_hidden_layers // 6)  # the last one always sees everything

    def moe(self) -> MoeShape | None:
        if not self.enable_moe_block:
            return None
        if not (self.num_experts and self.top_k_experts and self.moe_intermediate_size):
            raise InputError("enable_moe_block needs num_experts, top_k_experts and moe_intermediate_size")
        sizes = (self.num_experts, self.top_k_experts, self.moe_intermediate_size)
        return MoeShape(*sizes, self.intermediate_size, False, True, (True,) * self.num_hidden_layers)

    def further(self) -> dict[str, Any]:
        kv_heads = self.num_global_key_value_heads if self.attention_k_eq_v else None
        kv_heads = kv_heads or self.num_key_value_heads or self.num_attention_heads
        heads = FullHeads(self.global_head_dim, kv_heads, self.attention_k_eq_v)
        # Norms around the MLP and around the experts, and the router's scale of what enters it.
        return {"full_heads": heads, "norms_per_layer": 8 if self.enable_moe_block else 4}


class Llama4(Config):
    """Three of four layers attend inside chunks, which is taken as a window of the chunk's size."""

    max_position_embeddings: Position = 131_072
    intermediate_size_mlp: Size
    num_local_experts: Size
    num_experts_per_tok: Size
    interleave_moe_layer_step: Size = 1
    moe_layers: list[Index] | None = None
    attention_chunk_size: Size | None = 8192
    no_rope_layers: list[Index] | None = None
    no_rope_layer_interval: Size = 4

    def shape(self, name: str, architecture: str) -> ModelShape:
        return replace(super().shape(name, architecture), ffn=self.intermediate_size_mlp)

    def window(self) -> int | None:
        return self.attention_chunk_size

    def num_sliding(self) -> int:
        """Layers with rotary positions; those without see everything."""
        if self.no_rope_layers:
            return sum(flag > 0 for flag in self.no_rope_layers)
        return self.num_hidden_layers - self.num_hidden_layers // self.no_rope_layer_interval

    def moe(self) -> MoeShape | None:
        every = self.interleave_moe_layer_step
        sparse = range(every - 1, self.num_hidden_layers, every) if self.moe_layers is None else self.moe_layers
        layers = tuple(i in sparse for i in range(self.num_hidden_layers))
        ffn = self.intermediate_size
        return MoeShape(self.num_local_experts, self.num_experts_per_tok, ffn, ffn, False, False, layers)


class _Half(BaseModel):
    """What a search left of one half of a block."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    no_op: bool = False
    replace_with_linear: bool = False


class _Attention(_Half):
    n_heads_in_group: Size | None = None


class _Mlp(_Half):
    ffn_mult: Annotated[float, Field(gt=0.0, le=1e3)] | None = None
    intermediate_size: Size | None = None


class _Block(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    attention: _Attention
    ffn: _Mlp


class LlamaNemotron(Llama):
    """Llama's blocks after a search: some without attention, some without an MLP, MLPs of unlike widths.

    Prices take every MLP as of the mean width, to the nearest common divisor of all; parameters are exact.
    """

    intermediate_size: Size | None = None  # type: ignore[assignment]
    block_configs: list[_Block]

    def shape(self, name: str, architecture: str) -> ModelShape:
        blocks, layers = self.block_configs, self.num_hidden_layers
        if len(blocks) != layers:
            raise InputError(f"block_configs has {len(blocks)} entries for num_hidden_layers={layers}")
        if any(part.replace_with_linear for block in blocks for part in (block.attention, block.ffn)):
            raise InputError("block_configs: replace_with_linear is not supported")
        groups = {block.attention.n_heads_in_group for block in blocks if not block.attention.no_op}
        widths = [self._width(block.ffn) for block in blocks if not block.ffn.no_op]
        group = groups.pop() if len(groups) == 1 else None
        if group is None or not widths or self.num_attention_heads % group:
            raise InputError("block_configs needs blocks with an MLP, and one n_heads_in_group that divides the heads")
        step = math.gcd(*widths)
        mean = max(1, round(sum(widths) / len(widths) / step)) * step
        known = {"intermediate_size": mean, "num_key_value_heads": self.num_attention_heads // group}
        return replace(
            super(LlamaNemotron, self.model_copy(update=known)).shape(name, architecture),
            num_mixer_free_layers=sum(block.attention.no_op for block in blocks),
            num_mlp_free_layers=layers - len(widths),
            ffn_beyond=sum(widths) - len(widths) * mean,
        )

    def _width(self, ffn: _Mlp) -> int:
        if ffn.intermediate_size is not None:
            return ffn.intermediate_size
        if ffn.ffn_mult is None:
            raise InputError("block_configs: an MLP needs ffn_mult or intermediate_size")
        return -(-int(2 * ffn.ffn_mult * self.hidden_size / 3) // _WIDTH_STEP) * _WIDTH_STEP
