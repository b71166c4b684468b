"""What a decoder-only transformer is made of: widths, kinds of layers, what it caches of a token, how it splits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from profiles.errors import InputError
from profiles.models.layers import SoftmaxKind, require_positive

if TYPE_CHECKING:
    from profiles.models.layers import FullHeads, LinearShape, MlaShape, MoeShape, QuantizedWeights, SparseShape


@dataclass(frozen=True)
class Geometry:
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

    @property
    def expert_width(self) -> int:
        """Elements per token that enter and leave a routed expert."""
        return self.moe.latent if self.moe and self.moe.latent else self.hidden

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
