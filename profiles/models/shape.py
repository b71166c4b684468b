"""The shape of a decoder-only transformer, and the exact counts that follow from it. Pure: no files, no prices.

Every count is in elements (parameters or activations), never in bytes; multiply by ``units.DTYPE_BYTES`` for those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiles.errors import InputError

Head = Literal["lm", "scalar"]


@dataclass(frozen=True)
class MlaShape:
    """Multi-head latent attention (DeepSeek-V2/V3): keys and values live in one shared low-rank latent.

    Parameters
    ----------
    q_lora_rank
        Rank of the query latent, elements; ``None`` projects queries directly (DeepSeek-V2-Lite).
    kv_lora_rank
        Rank of the key/value latent, elements; this is what the cache holds.
    qk_nope_head_dim, qk_rope_head_dim
        Elements per head of the query/key without and with rotary position; the rotary key is shared by all heads.
    v_head_dim
        Elements per head of the value.

    Raises
    ------
    InputError
        A field is not a positive integer.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        if self.q_lora_rank is not None:
            _require_positive(self, "q_lora_rank")
        _require_positive(self, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

    @property
    def qk_head_dim(self) -> int:
        """Elements per head of the query (and of the expanded key)."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True)
class MoeShape:
    """The mixture-of-experts part of a model.

    Parameters
    ----------
    num_experts, experts_per_token
        Routed experts per MoE layer, and how many of them each token visits.
    expert_ffn
        Intermediate width of one routed expert, elements.
    shared_ffn
        Total intermediate width of the shared experts, elements; 0 if there are none.
    shared_gate
        A gate of ``hidden`` parameters scales the shared expert (Qwen2-MoE).
    router_bias
        The router carries one bias per expert (DeepSeek-V3 ``e_score_correction_bias``).
    moe_layers
        One flag per layer of the model, first to last: true where the MLP is a mixture of experts.

    Raises
    ------
    InputError
        A field is out of range, or no layer is a mixture of experts.
    """

    num_experts: int
    experts_per_token: int
    expert_ffn: int
    shared_ffn: int
    shared_gate: bool
    router_bias: bool
    moe_layers: tuple[bool, ...]

    def __post_init__(self) -> None:
        _require_positive(self, "num_experts", "experts_per_token", "expert_ffn")
        if self.shared_ffn != 0:
            _require_positive(self, "shared_ffn")
        if self.experts_per_token > self.num_experts:
            raise InputError(f"experts_per_token={self.experts_per_token} exceeds num_experts={self.num_experts}")
        if not any(self.moe_layers):
            raise InputError("moe_layers marks no layer as a mixture of experts; leave moe out for a dense model")

    @property
    def num_moe_layers(self) -> int:
        return sum(self.moe_layers)

    @property
    def num_dense_layers(self) -> int:
        return len(self.moe_layers) - self.num_moe_layers


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer with RMS norms and rotary positions.

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
    gated_mlp, tied_embeddings, qkv_bias, o_bias, mlp_bias, qk_norm
        Whether the MLP has a gate matrix; the LM head shares the embedding; the projections carry biases; queries
        and keys are normalised per head.
    norms_per_layer
        Norms of ``hidden`` parameters per layer: 2, or 4 in Gemma-2 and Gemma-3.
    max_position
        Longest position the model was published for, tokens.
    sliding_window, num_sliding_layers
        Attention window, tokens (``None`` if no layer has one), and how many layers use it.
    mla, moe
        Latent attention and mixture of experts, where the model has them.

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

    def __post_init__(self) -> None:
        _require_positive(self, "hidden", "num_layers", "vocab", "num_heads", "num_kv_heads", "head_dim", "ffn")
        _require_positive(self, "max_position", "norms_per_layer")
        if self.num_heads % self.num_kv_heads:
            raise InputError(f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}")
        if self.sliding_window is not None:
            _require_positive(self, "sliding_window")
        most = 0 if self.sliding_window is None else self.num_layers
        if not 0 <= self.num_sliding_layers <= most:
            raise InputError(
                f"num_sliding_layers={self.num_sliding_layers} must be from 0 to {most} "
                f"(num_layers={self.num_layers}, sliding_window={self.sliding_window})"
            )
        if self.moe is not None and len(self.moe.moe_layers) != self.num_layers:
            raise InputError(f"moe_layers has {len(self.moe.moe_layers)} flags for num_layers={self.num_layers}")
        if self.mla is not None and self.num_kv_heads != self.num_heads:
            raise InputError(f"num_kv_heads={self.num_kv_heads} must equal num_heads={self.num_heads} with mla")
        if self.mla is not None and self.head_dim != self.mla.qk_head_dim:
            raise InputError(f"head_dim={self.head_dim} must equal mla's qk_head_dim={self.mla.qk_head_dim}")

    @property
    def num_moe_layers(self) -> int:
        return self.moe.num_moe_layers if self.moe else 0

    @property
    def num_dense_layers(self) -> int:
        return self.num_layers - self.num_moe_layers

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
    def kv_elements_per_token_per_layer(self) -> int:
        """Elements that the KV cache keeps per token and layer: keys and values, or MLA's one latent."""
        return self.kv_width if self.mla else 2 * self.kv_width

    @property
    def attention_params(self) -> int:
        """Parameters of one layer's attention projections with their biases (norms are in another count)."""
        output = self.o_width * self.hidden + self.hidden * self.o_bias
        if self.mla is None:
            qkv_width = self.q_width + 2 * self.kv_width
            return self.hidden * qkv_width + qkv_width * self.qkv_bias + output
        rank, mla = self.mla.q_lora_rank, self.mla
        down = (rank or 0) + self.kv_width  # the only biased inputs, if any, are the down-projections
        query = self.q_width * (rank or self.hidden)
        expand = mla.kv_lora_rank * self.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return self.hidden * down + down * self.qkv_bias + query + expand + output

    @property
    def dense_mlp_params(self) -> int:
        """Parameters of one dense layer's MLP."""
        return self._mlp_params(self.ffn, self.mlp_bias)

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert; 0 in a dense model."""
        return self._mlp_params(self.moe.expert_ffn) if self.moe else 0

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

    @property
    def moe_mlp_params(self) -> int:
        """Parameters of one MoE layer's MLP: router, all routed experts, shared experts; 0 in a dense model."""
        if self.moe is None:
            return 0
        return self.router_params + self.moe.num_experts * self.expert_params + self.shared_expert_params

    @property
    def norm_params_per_layer(self) -> int:
        """Parameters of all norms of one layer, those on queries, keys and MLA's latents included."""
        inner = 2 * self.head_dim if self.qk_norm else 0
        if self.mla:
            inner += (self.mla.q_lora_rank or 0) + self.mla.kv_lora_rank
        return self.norms_per_layer * self.hidden + inner

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding."""
        return self.vocab * self.hidden

    @property
    def head_params(self) -> int:
        """Parameters of the LM head that are not already in the embedding: 0 if tied."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def num_params(self) -> int:
        """Every distinct parameter of the model with its LM head, exactly as in the published checkpoint."""
        each = self.attention_params + self.norm_params_per_layer
        mlps = self.num_dense_layers * self.dense_mlp_params + self.num_moe_layers * self.moe_mlp_params
        return self.embedding_params + self.num_layers * each + mlps + self.hidden + self.head_params

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
        """Whether heads and dense MLPs split evenly over ``t`` GPUs."""
        kv_ok = self.mla is not None or self.num_kv_heads % t == 0 or t % self.num_kv_heads == 0
        return self.num_heads % t == 0 and kv_ok and (self.num_dense_layers == 0 or self.ffn % t == 0)

    def experts_split(self, t: int, shared_t: int) -> bool:
        """Whether a routed expert splits evenly over ``t`` GPUs, and the shared ones over ``shared_t``."""
        return self.moe is None or (self.moe.expert_ffn % t == 0 and self.moe.shared_ffn % shared_t == 0)

    def _mlp_params(self, ffn: int, bias: bool = False) -> int:
        into = 2 if self.gated_mlp else 1  # up, and gate
        return (into + 1) * self.hidden * ffn + bias * (into * ffn + self.hidden)


def _require_positive(shape: object, *fields: str) -> None:
    for field in fields:
        value = getattr(shape, field)
        if type(value) is not int or value < 1:  # bool is an int to isinstance, but no size
            raise InputError(f"{field}={value!r} must be a positive integer")
