"""Families of plain softmax attention, dense or with experts: Llama, Mistral, Qwen, Gemma, Phi, GLM-4.5, MiniMax-M2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from profiles.models.hf_base import Config, Index, Position, Size
from profiles.models.layers import MoeShape


class Llama(Config):
    """No window, whatever the config says."""

    mlp_bias: bool = False

    def num_sliding(self) -> int:
        return 0  # this family's code reads no window

    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, self.attention_bias, self.mlp_bias


class Phi3(Config):
    """No biases, whatever the config says."""

    def biases(self) -> tuple[bool, bool, bool]:
        return False, False, False  # this family's code reads no bias key


class Mistral(Phi3):
    """A window of 4,096 tokens unless the config turns it off."""

    sliding_window: Size | None = 4096


class Qwen3(Config):
    """A norm over each head's queries and keys; windows only where they are switched on."""

    qk_norm: ClassVar[bool] = True
    use_sliding_window: bool = False
    max_window_layers: Index = 28

    def num_sliding(self) -> int:
        return super().num_sliding() if self.use_sliding_window else 0

    def num_sliding_by_rule(self) -> int:
        return max(self.num_hidden_layers - self.max_window_layers, 0)  # the first layers see everything


class Qwen2(Qwen3):
    """As Qwen3 with biases instead of the norms."""

    qk_norm: ClassVar[bool] = False

    def biases(self) -> tuple[bool, bool, bool]:
        return True, False, False  # no key turns them off


class MiMo(Qwen2):
    """As Qwen2 with layers that predict further tokens."""

    num_nextn_predict_layers: Index = 0

    def further(self) -> dict[str, Any]:
        return {**super().further(), "num_mtp_layers": self.num_nextn_predict_layers}


class Gemma(Config):
    """Wide heads and a tied head."""

    head_dim: Size | None = 256
    tie_word_embeddings: bool = True

    def num_sliding(self) -> int:
        return 0


class Gemma2(Gemma):
    """Twice as many norms; every other layer has a window."""

    norms_per_layer: ClassVar[int] = 4
    sliding_window: Size | None = 4096

    def num_sliding(self) -> int:
        return Config.num_sliding(self)

    def num_sliding_by_rule(self) -> int:
        return (self.num_hidden_layers + 1) // 2  # every other layer, the first one included


class Gemma3(Gemma2):
    """Multimodal configs leave out what is the default of their text model."""

    qk_norm: ClassVar[bool] = True
    vocab_size: Size = 262_208
    num_attention_heads: Size = 8
    num_key_value_heads: Size | None = 4
    max_position_embeddings: Position = 131_072
    sliding_window_pattern: Size = 6

    def num_sliding_by_rule(self) -> int:
        return self.num_hidden_layers - self.num_hidden_layers // self.sliding_window_pattern


class Mixtral(Phi3):
    """Experts in every layer."""

    num_local_experts: Size
    num_experts_per_tok: Size

    def moe(self) -> MoeShape | None:
        experts, each, ffn = self.num_local_experts, self.num_experts_per_tok, self.intermediate_size
        return MoeShape(experts, each, ffn, 0, False, False, (True,) * self.num_hidden_layers)


class Qwen3Moe(Qwen3):
    """Experts in the layers that the config does not leave out."""

    num_experts: Size
    num_experts_per_tok: Size
    moe_intermediate_size: Size
    decoder_sparse_step: Size = 1
    mlp_only_layers: Sequence[Index] = ()

    def moe(self) -> MoeShape | None:
        dense, step = set(self.mlp_only_layers), self.decoder_sparse_step
        layers = tuple(i not in dense and (i + 1) % step == 0 for i in range(self.num_hidden_layers))
        if not any(layers):
            return None
        experts, each, ffn = self.num_experts, self.num_experts_per_tok, self.moe_intermediate_size
        return MoeShape(experts, each, ffn, self.shared_ffn(), self.shared_ffn() > 0, False, layers)

    def shared_ffn(self) -> int:
        return 0


class Qwen2Moe(Qwen3Moe):
    """As Qwen3Moe with a shared expert behind a gate."""

    qk_norm: ClassVar[bool] = False
    shared_expert_intermediate_size: Index
    qkv_bias: bool = True

    def biases(self) -> tuple[bool, bool, bool]:
        return self.qkv_bias, False, False

    def shared_ffn(self) -> int:
        return self.shared_expert_intermediate_size


class SeedOss(Config):
    """Biases on queries, keys and values."""

    attention_bias: bool = True
    attention_out_bias: bool = False

    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, self.attention_out_bias, False


class GptOss(Config):
    """Every other layer has a window, every layer experts with biases."""

    attention_bias: bool = True
    sliding_window: Size | None = 128
    num_local_experts: Size
    num_experts_per_tok: Size

    def num_sliding_by_rule(self) -> int:
        return (self.num_hidden_layers + 1) // 2

    def moe(self) -> MoeShape | None:
        experts, each, ffn = self.num_local_experts, self.num_experts_per_tok, self.intermediate_size
        layers = (True,) * self.num_hidden_layers
        return MoeShape(experts, each, ffn, 0, False, router_bias=True, moe_layers=layers, expert_bias=True)

    def further(self) -> dict[str, Any]:
        return {"attention_sinks": True}


class Glm4(Config):
    """A norm before and after each part of a layer."""

    norms_per_layer: ClassVar[int] = 4

    def num_sliding(self) -> int:
        return 0  # this family's code reads no window

    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, False, False


class Glm4Moe(Config):
    """Dense layers first, then experts with shared ones."""

    use_qk_norm: bool = False
    n_routed_experts: Size
    n_shared_experts: Index = 1
    num_experts_per_tok: Size
    moe_intermediate_size: Size
    first_k_dense_replace: Index = 1
    num_nextn_predict_layers: Index = 0

    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, False, False

    def moe(self) -> MoeShape | None:
        layers = tuple(i >= self.first_k_dense_replace for i in range(self.num_hidden_layers))
        if not any(layers):
            return None
        experts, each, ffn = self.n_routed_experts, self.num_experts_per_tok, self.moe_intermediate_size
        return MoeShape(experts, each, ffn, self.n_shared_experts * ffn, False, True, layers)

    def further(self) -> dict[str, Any]:
        return {"qk_norm": self.use_qk_norm, "num_mtp_layers": self.num_nextn_predict_layers}


class MiniMaxM2(Config):
    """Plain grouped queries in every layer; the configs of MiniMax-M2, M2.5 and M2.7 differ in nothing of the shape."""

    num_local_experts: Size
    num_experts_per_tok: Size
    use_qk_norm: bool = True
    use_mtp: bool = False
    num_mtp_modules: Index = 0

    def moe(self) -> MoeShape | None:
        experts, each, ffn = self.num_local_experts, self.num_experts_per_tok, self.intermediate_size
        return MoeShape(experts, each, ffn, 0, False, True, (True,) * self.num_hidden_layers)

    def further(self) -> dict[str, Any]:
        heads = {"qk_norm": self.use_qk_norm, "qk_norm_whole": self.use_qk_norm}
        return {**heads, "num_mtp_layers": self.num_mtp_modules if self.use_mtp else 0}
