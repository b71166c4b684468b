"""The parts of a model's layers that only some models have: latent, sparse and linear mixers, mixtures of experts.

Every count is in elements (parameters or activations), never in bytes; multiply by ``units.DTYPE_BYTES`` for those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiles.errors import InputError

LinearKind = Literal["gated_delta_net", "kimi_delta", "mamba2"]
WeightFormat = Literal["bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4"]


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
            require_positive(self, "q_lora_rank")
        require_positive(self, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

    @property
    def qk_head_dim(self) -> int:
        """Elements per head of the query (and of the expanded key)."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True)
class FullHeads:
    """Heads of the layers without a window, where they are not those of the layers with one (Gemma-4).

    Parameters
    ----------
    head_dim, num_kv_heads
        Elements of each head, and KV heads; queries have as many heads as everywhere.
    values_are_keys
        One projection gives keys and values, which are cached apart all the same.

    Raises
    ------
    InputError
        A size is not a positive integer.
    """

    head_dim: int
    num_kv_heads: int
    values_are_keys: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "head_dim", "num_kv_heads")


@dataclass(frozen=True)
class SoftmaxKind:
    """Layers of softmax attention that are alike; not those of latent attention.

    Parameters
    ----------
    layers
        How many there are.
    num_kv_heads, head_dim, values_are_keys
        Their heads.
    window
        Tokens of a window; 0 for none.
    topk
        Cached tokens that a query reads at most, where an indexer picks them; 0 where it reads all.
    """

    layers: int
    num_kv_heads: int
    head_dim: int
    values_are_keys: bool = False
    window: int = 0
    topk: int = 0

    @property
    def kv_width(self) -> int:
        """Elements per token of the keys of all KV heads; as many of the values are cached."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class SparseShape:
    """The indexer of sparse attention (DeepSeek-V3.2, MiniMax-M3): it picks the cached tokens that a query reads.

    Parameters
    ----------
    index_heads, index_head_dim
        Heads of the indexer's queries, and elements of each; its one key of ``index_head_dim`` is cached per token.
    topk
        Cached tokens that a query reads at most.
    num_layers
        Layers that have an indexer. The others read what the last one before them picked (GLM-5.2), or without latent
        attention everything (MiniMax-M3).
    block
        Tokens that are picked together, by the highest score among them (MiniMax-M3).

    Raises
    ------
    InputError
        A field is not a positive integer.
    """

    index_heads: int
    index_head_dim: int
    topk: int
    num_layers: int
    block: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "index_heads", "index_head_dim", "topk", "num_layers", "block")


@dataclass(frozen=True)
class LinearShape:
    """A layer whose cache is a state of fixed size: gated delta net (Qwen3-Next, Kimi Linear) or Mamba-2 (Nemotron-H).

    Parameters
    ----------
    kind
        Which of them. Kimi's delta net decays each channel by itself; that and its output gate come through a rank of
        ``v_dim``. Mamba-2's B and C take the place of the keys and queries, its x and z that of values and gate.
    k_heads, v_heads
        Heads of the keys (Mamba-2: groups) and of the values.
    k_dim, v_dim
        Elements per head of the keys (Mamba-2: the state size) and of the values.
    conv_kernel
        Tokens that the short convolution over queries, keys and values sees.
    state_element_bytes
        Bytes that engines keep for an element of the state; the convolution's inputs are activations.

    Raises
    ------
    InputError
        A field is not a positive integer, or value heads do not divide over key heads.
    """

    kind: LinearKind
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    conv_kernel: int
    state_element_bytes: int = 2

    def __post_init__(self) -> None:
        require_positive(self, "k_heads", "v_heads", "k_dim", "v_dim", "conv_kernel", "state_element_bytes")
        if self.v_heads % self.k_heads:
            raise InputError(f"v_heads={self.v_heads} is not a multiple of k_heads={self.k_heads}")

    @property
    def value_width(self) -> int:
        """Elements per token that enter the output projection."""
        return self.v_heads * self.v_dim

    @property
    def conv_width(self) -> int:
        """Elements per token that the convolution takes: queries, keys and values."""
        return 2 * self.k_heads * self.k_dim + self.value_width

    @property
    def in_width(self) -> int:
        """Elements per token that the input projections make: those of the convolution, output gate, rates of decay.

        Kimi's gate and rates are not among them (``gate_width``), its strength of writing is.
        """
        gate = 0 if self.kind == "kimi_delta" else self.value_width
        return self.conv_width + gate + self.v_heads * (2 if self.kind == "gated_delta_net" else 1)

    @property
    def gate_rank(self) -> int:
        """Rank that each of Kimi's two gates is projected through, elements; 0 for the others."""
        return self.v_dim if self.kind == "kimi_delta" else 0

    @property
    def gate_width(self) -> int:
        """Elements per token of Kimi's rates of decay, one a channel, and of its output gate; 0 for the others."""
        return self.k_heads * self.k_dim + self.value_width if self.kind == "kimi_delta" else 0

    @property
    def state_elements(self) -> int:
        """Elements of one sequence's state in one layer."""
        return self.v_heads * self.k_dim * self.v_dim

    @property
    def conv_elements(self) -> int:
        """Past inputs of the convolution that one sequence keeps in one layer, elements."""
        return (self.conv_kernel - 1) * self.conv_width

    def params(self, hidden: int) -> int:
        """Parameters of one layer's mixer, the norm over its output included."""
        projections = hidden * self.in_width + self.value_width * hidden
        if self.kind == "gated_delta_net":  # decay and time step per head, one norm for all heads
            return projections + self.conv_width * self.conv_kernel + 2 * self.v_heads + self.v_dim
        if self.kind == "kimi_delta":  # a time step per channel, a decay per head, one norm for all heads
            gates = self.gate_rank * (2 * hidden + self.gate_width)
            steps = self.k_heads * self.k_dim + self.v_heads + self.v_dim
            return projections + gates + self.conv_width * self.conv_kernel + steps
        return projections + self.conv_width * (self.conv_kernel + 1) + 3 * self.v_heads + self.value_width


@dataclass(frozen=True)
class QuantizedWeights:
    """Number formats in which a checkpoint holds its matrices, as its ``quantization_config`` says.

    Parameters
    ----------
    attention, linear_mixers, dense_mlp, shared_experts, experts
        Format of each kind of linear layer; embedding, head, router and norms are never quantised.
    kv_cache
        Format of the KV cache that the checkpoint asks for; ``None`` if it does not say.
    """

    attention: WeightFormat = "bf16"
    linear_mixers: WeightFormat = "bf16"
    dense_mlp: WeightFormat = "bf16"
    shared_experts: WeightFormat = "bf16"
    experts: WeightFormat = "bf16"
    kv_cache: WeightFormat | None = None


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
    expert_bias
        The routed experts' projections carry biases (gpt-oss).
    num_groups, groups_per_token
        Groups that the experts are dealt to in a row, and of how many of them a token's experts come (DeepSeek-V3's
        node-limited routing); 1 and 1 without groups.
    latent
        Width that routed experts work in, elements: a token is projected down to it before it goes to its experts, and
        what they give is projected up (Nemotron-3-Super). ``None`` where that is the hidden width.

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
    expert_bias: bool = False
    num_groups: int = 1
    groups_per_token: int = 1
    latent: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, "num_experts", "experts_per_token", "expert_ffn", "num_groups", "groups_per_token")
        if self.latent is not None:
            require_positive(self, "latent")
        if self.num_experts % self.num_groups or self.groups_per_token > self.num_groups:
            raise InputError(
                f"{self.num_experts} experts do not come from {self.groups_per_token} of {self.num_groups} groups"
            )
        if self.shared_ffn != 0:
            require_positive(self, "shared_ffn")
        if self.experts_per_token > self.num_experts:
            raise InputError(f"experts_per_token={self.experts_per_token} exceeds num_experts={self.num_experts}")
        if not any(self.moe_layers):
            raise InputError("moe_layers marks no layer as a mixture of experts; leave moe out for a dense model")

    @property
    def num_moe_layers(self) -> int:
        return sum(self.moe_layers)


def require_positive(shape: object, *fields: str) -> None:
    """Refuse a shape of which one of ``fields`` is not a positive integer."""
    for field in fields:
        value = getattr(shape, field)
        if type(value) is not int or value < 1:  # bool is an int to isinstance, but no size
            raise InputError(f"{field}={value!r} must be a positive integer")
