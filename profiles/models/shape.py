"""The shape of a decoder-only transformer, and the exact counts that follow from it. Pure: no files, no prices.

Every count is in elements (parameters or activations), never in bytes; multiply by ``units.DTYPE_BYTES`` for those.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from profiles.errors import InputError
from profiles.models.geometry import Geometry
from profiles.models.layers import SoftmaxKind

Head = Literal["lm", "scalar"]


@dataclass(frozen=True)
class ModelShape(Geometry):
    """A decoder-only transformer, and its parameters: of each part, of all layers, of the whole model."""

    @cached_property
    def attention_params(self) -> int:
        """Parameters of one layer's attention projections with their biases (norms are in another count).

        Where layers without a window have heads of their own, of one with a window.
        """
        if self.mla is None:
            return self._params_of(SoftmaxKind(1, self.num_kv_heads, self.head_dim))
        output = self.o_width * self.hidden + self.hidden * self.o_bias
        rank, mla = self.mla.q_lora_rank, self.mla
        down = (rank or 0) + self.kv_width  # the only biased inputs, if any, are the down-projections
        query = self.q_width * (rank or self.hidden)
        expand = mla.kv_lora_rank * self.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return self.hidden * down + down * self.qkv_bias + query + expand + output + self._indexer_params

    def _params_of(self, kind: SoftmaxKind) -> int:
        """Parameters of the projections of one layer of a kind of softmax attention."""
        query = self.num_heads * kind.head_dim
        width = query * (2 if self.attention_gate else 1) + kind.kv_width * (1 if kind.values_are_keys else 2)
        output = query * self.hidden + self.hidden * self.o_bias
        return self.hidden * width + width * self.qkv_bias + output + self.num_heads * self.attention_sinks

    @property
    def _indexer_params(self) -> int:
        """Parameters of one indexer of sparse attention, its norms included."""
        if self.sparse is None:
            return 0
        heads, dim = self.sparse.index_heads, self.sparse.index_head_dim
        if self.mla is None:
            return self.hidden * (heads * dim + dim) + 2 * dim
        return (self.mla.q_lora_rank or self.hidden) * heads * dim + self.hidden * (dim + heads) + 2 * dim

    @cached_property
    def mixer_params(self) -> int:
        """Parameters of all layers' mixers: attention projections and linear mixers, without norms over queries."""
        linear = self.num_linear_layers * (self.linear.params(self.hidden) if self.linear else 0)
        if self.mla is None:
            indexers = self.sparse.num_layers * self._indexer_params if self.sparse else 0
            return linear + indexers + sum(kind.layers * self._params_of(kind) for kind in self.softmax_kinds)
        shared = (self.num_layers - self.sparse.num_layers) * self._indexer_params if self.sparse else 0
        return self.num_attention_layers * self.attention_params + linear - shared

    @cached_property
    def dense_params(self) -> int:
        """Parameters of all dense layers' MLPs."""
        columns = self.num_dense_layers * self.ffn + self.ffn_beyond
        return self._mlp_params(columns, self.mlp_bias, mlps=self.num_dense_layers)

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert; 0 in a dense model."""
        if self.moe is None:
            return 0
        return self._mlp_params(self.moe.expert_ffn, self.moe.expert_bias, self.expert_width)

    @property
    def latent_params(self) -> int:
        """Parameters of one MoE layer's projections to the experts' width and back; 0 without them."""
        if self.moe is None or self.moe.latent is None:
            return 0
        return 2 * self.hidden * self.moe.latent + self.mlp_bias * (self.hidden + self.moe.latent)

    @property
    def shared_expert_params(self) -> int:
        """Parameters of one MoE layer's shared experts with their gate; 0 if it has none."""
        if self.moe is None or self.moe.shared_ffn == 0:
            return 0
        return self._mlp_params(self.moe.shared_ffn) + self.hidden * self.moe.shared_gate

    @property
    def router_params(self) -> int:
        """Parameters of one MoE layer's router; 0 in a dense model."""
        return self.moe.num_experts * (self.hidden + self.moe.router_bias) if self.moe else 0

    @cached_property
    def moe_mlp_params(self) -> int:
        """Parameters of one MoE layer's MLP: router, projections, all experts; 0 in a dense model."""
        if self.moe is None:
            return 0
        routed = self.moe.num_experts * self.expert_params + self.latent_params
        return self.router_params + routed + self.shared_expert_params

    @property
    def norm_params_per_layer(self) -> int:
        """Parameters of all norms of one attention layer, those on queries, keys and MLA's latents included."""
        return self.norms_per_layer * self.hidden + self._inner_norm_params

    @property
    def _inner_norm_params(self) -> int:
        """Parameters of the norms on queries, keys and latents of one attention layer."""
        whole = self.q_width + self.kv_width if self.qk_norm_whole else 2 * self.head_dim
        inner = whole if self.qk_norm else 0
        if self.mla:
            inner += (self.mla.q_lora_rank or 0) + self.mla.kv_lora_rank
        return inner

    @cached_property
    def layer_params(self) -> int:
        """Parameters of all layers together: mixers, norms, MLPs."""
        others = self.num_layers - self.num_attention_layers
        norms = self.num_attention_layers * self.norm_params_per_layer + others * self.norms_per_layer * self.hidden
        if self.full_heads and self.qk_norm:
            norms += self.num_full_layers * 2 * (self.full_heads.head_dim - self.head_dim)
        # Half of a layer's norms go with a part that it lacks; layers of one part alone (Nemotron-H) have one.
        lacking = self.num_mixer_free_layers + self.num_mlp_free_layers
        norms -= lacking * (self.norms_per_layer // 2) * self.hidden
        mlps = self.dense_params + self.num_moe_layers * self.moe_mlp_params
        return self.mixer_params + norms + mlps

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding."""
        return self.vocab * self.hidden

    @property
    def head_params(self) -> int:
        """Parameters of the LM head that are not already in the embedding: 0 if tied."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @cached_property
    def num_params(self) -> int:
        """Every distinct parameter of the model with its LM head, exactly as in the published checkpoint."""
        return self.embedding_params + self.layer_params + self.hidden + self.head_params

    def num_params_of(self, head: Head = "lm") -> int:
        """Parameters with the given head: ``lm``, or ``scalar`` for a critic, reward or cost model.

        The scalar head maps ``hidden`` to 1 without bias and replaces the LM head.
        """
        if head not in ("lm", "scalar"):
            raise InputError(f"head={head!r} must be 'lm' or 'scalar'")
        return self.num_params if head == "lm" else self.num_params - self.head_params + self.hidden

    @property
    def active_params_per_token(self) -> int:
        """Parameters that one token visits: all but the routed experts it is not sent to.

        The embedding and the LM head both count, although a lookup is no matrix product: so do the published
        figures of Qwen and Mixtral (Qwen3-30B-A3B 3.3e9). DeepSeek's leave the embedding out (V2-Lite 2.4e9).
        """
        if self.moe is None:
            return self.num_params
        idle = self.moe.num_experts - self.moe.experts_per_token
        return self.num_params - self.num_moe_layers * idle * self.expert_params

    def _mlp_params(self, columns: int, bias: bool = False, width: int = 0, mlps: int = 1) -> int:
        """Parameters of so many MLPs that have so many columns together."""
        into, width = 2 if self.gated_mlp else 1, width or self.hidden  # up, and gate
        return (into + 1) * width * columns + bias * (into * columns + mlps * width)
