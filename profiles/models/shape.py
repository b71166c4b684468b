"""The shape of a decoder-only transformer, and the exact counts that follow from it. Pure: no files, no prices.

Every count is in elements (parameters or activations), never in bytes; multiply by ``units.DTYPE_BYTES`` for those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from profiles.errors import InputError
from profiles.models.layers import SoftmaxKind, require_positive

if TYPE_CHECKING:
    from profiles.models.layers import FullHeads, LinearShape, MlaShape, MoeShape, QuantizedWeights, SparseShape

Head = Literal["lm", "scalar"]


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer with RMS norms and rotary positions.

    A layer is a mixer (attention, or a linear one of fixed state) and an MLP (dense, or a mixture of experts). In a
    model of the Nemotron-H kind a layer has one of the two; in one that a search has cut some layers lack one.

    Parameters
    ----------
    name, architecture
        What to call the model, and its Hugging Face ``model_type``.
    hidden, vocab, head_dim
        Widths, elements. With ``mla``, ``head_dim`` is that of the query.
    num_layers, num_heads, num_kv_heads
        Counts. With ``mla``, ``num_kv_heads`` equals ``num_heads``.
    ffn
        Intermediate width of a dense layer's MLP, elements (unused where every layer is a mixture of experts).
    ffn_beyond
        Where dense layers have unlike widths: their sum less ``num_dense_layers * ffn``, which parameters count.
    gated_mlp, tied_embeddings, qkv_bias, o_bias, mlp_bias, qk_norm
        Whether the MLP has a gate matrix; the LM head shares the embedding; the projections carry biases; queries
        and keys are normalised per head.
    norms_per_layer
        Norms of ``hidden`` parameters per layer: 2, or 4 in Gemma-2 and Gemma-3.
    max_position
        Longest position the model was published for, tokens.
    qk_norm_whole
        With ``qk_norm``: one norm over all heads of a token instead of one over each (MiniMax-M2).
    attention_gate, attention_sinks
        Queries come with a gate of their own width (Qwen3-Next); each head has one learned logit more (gpt-oss).
    sliding_window, num_sliding_layers
        Attention window, tokens (``None`` if no layer has one), and how many layers use it.
    mla, moe, sparse, linear
        Latent attention, mixture of experts, indexer of sparse attention and linear mixer, where the model has them.
    full_heads
        Heads of the layers without a window, where those with one have others (Gemma-4).
    num_linear_layers
        Layers whose mixer is the linear one.
    num_mixer_free_layers, num_mlp_free_layers
        Layers without a mixer, and layers without an MLP (Nemotron-H, Llama-Nemotron).
    num_mtp_layers
        Layers for the prediction of further tokens; no count of this shape includes them.
    vision_params
        Parameters of the vision tower, elements; no count of this shape includes them, memory does.
    weights
        Number formats of the checkpoint; ``None`` if it is not quantised.

    Raises
    ------
    InputError
        A field is out of range or contradicts another; the message names the field and its value.
    """

    name: str
    architecture: str
    hidden: int
    num_layers: int
    vocab: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    max_position: int
    gated_mlp: bool = True
    tied_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    mla: MlaShape | None = None
    moe: MoeShape | None = None
    qk_norm_whole: bool = False
    attention_gate: bool = False
    attention_sinks: bool = False
    sparse: SparseShape | None = None
    linear: LinearShape | None = None
    num_linear_layers: int = 0
    num_mixer_free_layers: int = 0
    num_mlp_free_layers: int = 0
    num_mtp_layers: int = 0
    vision_params: int = 0
    weights: QuantizedWeights | None = None
    full_heads: FullHeads | None = None
    ffn_beyond: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "hidden", "num_layers", "vocab", "num_heads", "num_kv_heads", "head_dim", "ffn")
        require_positive(self, "max_position", "norms_per_layer")
        if self.num_heads % self.num_kv_heads:
            raise InputError(f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}")
        if self.sliding_window is not None:
            require_positive(self, "sliding_window")
        self._require_layer_counts()
        if self.moe is not None and len(self.moe.moe_layers) != self.num_layers:
            raise InputError(f"moe_layers has {len(self.moe.moe_layers)} flags for num_layers={self.num_layers}")
        if self.mla is not None and self.num_kv_heads != self.num_heads:
            raise InputError(f"num_kv_heads={self.num_kv_heads} must equal num_heads={self.num_heads} with mla")
        if self.sparse is not None and self.sparse.num_layers > (self.num_layers if self.mla else self.num_full_layers):
            raise InputError(f"an indexer in {self.sparse.num_layers} layers needs as many that see all tokens")
        if self.full_heads is not None and (self.mla or self.num_heads % self.full_heads.num_kv_heads):
            raise InputError(
                f"num_heads={self.num_heads} is no multiple of {self.full_heads.num_kv_heads} full KV heads"
            )
        if self.mla is not None and self.head_dim != self.mla.qk_head_dim:
            raise InputError(f"head_dim={self.head_dim} must equal mla's qk_head_dim={self.mla.qk_head_dim}")

    def _require_layer_counts(self) -> None:
        most = 0 if self.linear is None else self.num_layers - self.num_mixer_free_layers
        if not 0 <= self.num_linear_layers <= most:
            raise InputError(f"num_linear_layers={self.num_linear_layers} must be from 0 to {most}")
        if min(self.num_mixer_free_layers, self.num_mlp_free_layers, self.num_dense_layers) < 0:
            raise InputError(f"{self.name}: counts of layers without mixer or MLP do not fit num_layers")
        most = 0 if self.sliding_window is None else self.num_attention_layers
        if not 0 <= self.num_sliding_layers <= most:
            raise InputError(
                f"num_sliding_layers={self.num_sliding_layers} must be from 0 to {most} "
                f"(num_layers={self.num_layers}, sliding_window={self.sliding_window})"
            )

    @property
    def num_attention_layers(self) -> int:
        """Layers with softmax attention, those with a window included."""
        return self.num_layers - self.num_linear_layers - self.num_mixer_free_layers

    @property
    def num_full_layers(self) -> int:
        """Layers with softmax attention that has no window."""
        return self.num_attention_layers - self.num_sliding_layers

    @property
    def num_moe_layers(self) -> int:
        return self.moe.num_moe_layers if self.moe else 0

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.num_layers - self.num_moe_layers - self.num_mlp_free_layers

    @property
    def parts_per_layer(self) -> float:
        """Mixers and MLPs of an average layer, each with its norm and residual: two, or one in Nemotron-H."""
        return 2.0 - (self.num_mixer_free_layers + self.num_mlp_free_layers) / self.num_layers

    @property
    def q_width(self) -> int:
        """Elements per token of the queries of all heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements per token of the keys of all KV heads (the values have as many); MLA: the whole shared latent."""
        if self.mla:
            return self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
        return self.num_kv_heads * self.head_dim

    @property
    def o_width(self) -> int:
        """Elements per token that enter the attention output projection."""
        return self.num_heads * (self.mla.v_head_dim if self.mla else self.head_dim)

    @cached_property
    def softmax_kinds(self) -> tuple[SoftmaxKind, ...]:
        """Kinds of attention that the model has layers of; latent attention as its expanded heads, which read all."""
        windowed = SoftmaxKind(
            self.num_sliding_layers, self.num_kv_heads, self.head_dim, window=self.sliding_window or 0
        )
        full = replace(windowed, layers=self.num_full_layers, window=0)
        if own := self.full_heads:
            full = replace(
                full, num_kv_heads=own.num_kv_heads, head_dim=own.head_dim, values_are_keys=own.values_are_keys
            )
        picked, topk = (self.sparse.num_layers, self.sparse.topk) if self.sparse and not self.mla else (0, 0)
        kinds = (replace(full, layers=full.layers - picked), windowed, replace(full, layers=picked, topk=topk))
        return tuple(kind for kind in kinds if kind.layers)

    @property
    def kv_elements_per_token_per_layer(self) -> int:
        """Elements that a full attention layer caches per token: keys and values, or MLA's latent, and an index key."""
        index = self.sparse.index_head_dim if self.sparse else 0
        if self.mla is None:
            return (
                2 * (self.full_heads.num_kv_heads * self.full_heads.head_dim if self.full_heads else self.kv_width)
                + index
            )
        return self.kv_width + index

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that all attention layers cache of a token, those with a window too."""
        if self.mla is not None:
            return self.kv_elements_per_token_per_layer * self.num_attention_layers
        index = self.sparse.index_head_dim * self.sparse.num_layers if self.sparse else 0
        return sum(2 * kind.kv_width * kind.layers for kind in self.softmax_kinds) + index

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

    @property
    def dense_mlp_params(self) -> int:
        """Parameters of one dense layer's MLP; of one that is ``ffn`` wide where they have unlike widths."""
        return self._mlp_params(self.ffn, self.mlp_bias)

    @cached_property
    def dense_params(self) -> int:
        """Parameters of all dense layers' MLPs."""
        a_column = self._mlp_params(self.ffn + 1, self.mlp_bias) - self.dense_mlp_params
        return self.num_dense_layers * self.dense_mlp_params + self.ffn_beyond * a_column

    @property
    def expert_width(self) -> int:
        """Elements per token that enter and leave a routed expert."""
        return self.moe.latent if self.moe and self.moe.latent else self.hidden

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

    def max_tensor_parallel_ok(self, t: int) -> bool:
        """Whether every layer splits evenly over ``t`` GPUs.

        Heads and MLP widths must divide by ``t``; fewer KV heads than ``t`` are replicated, so either may divide
        the other (MLA has no KV heads to split). The vocabulary is no limit: engines pad it.

        Raises
        ------
        InputError
            ``t`` is not positive.
        """
        if t < 1:
            raise InputError(f"tensor parallel size t={t} must be at least 1")
        return self.attention_splits(t) and self.experts_split(t, t)

    def attention_splits(self, t: int) -> bool:
        """Whether heads, those of linear mixers too, and dense MLPs split evenly over ``t`` GPUs."""
        kv_heads = {self.num_kv_heads, self.full_heads.num_kv_heads if self.full_heads else self.num_kv_heads}
        kv_ok = self.mla is not None or all(n % t == 0 or t % n == 0 for n in kv_heads)
        linear_ok = self.linear is None or (
            self.linear.v_heads % t == 0 and (self.linear.k_heads % t == 0 or t % self.linear.k_heads == 0)
        )
        return self.num_heads % t == 0 and kv_ok and linear_ok and (self.num_dense_layers == 0 or self.ffn % t == 0)

    def experts_split(self, t: int, shared_t: int) -> bool:
        """Whether a routed expert splits evenly over ``t`` GPUs, and the shared ones over ``shared_t``."""
        return self.moe is None or (self.moe.expert_ffn % t == 0 and self.moe.shared_ffn % shared_t == 0)

    def _mlp_params(self, ffn: int, bias: bool = False, width: int = 0) -> int:
        into, width = 2 if self.gated_mlp else 1, width or self.hidden  # up, and gate
        return (into + 1) * width * ffn + bias * (into * ffn + width)
