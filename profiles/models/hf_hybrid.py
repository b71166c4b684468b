"""Families with mixers of fixed state between attention layers: Qwen3-Next, Qwen3.5 (gated delta net), Nemotron-H."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from profiles.errors import InputError
from profiles.models.hf_base import Config, Index, Size
from profiles.models.hf_dense import Qwen2Moe
from profiles.models.layers import LinearShape, MoeShape

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape

_StateDtype = Literal["float32", "bfloat16", "float16"]
_STATE_BYTES: dict[_StateDtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_BLOCKS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
"""Letters of Nemotron-H's ``hybrid_override_pattern``; newer configs write the words."""
_WORDS = {"linear_attention": "mamba", "full_attention": "attention"}
"""What transformers writes for two of the words since it names layers alike in all models."""


class Qwen35(Config):
    """Three gated delta nets, then one attention layer whose queries carry a gate."""

    qk_norm: ClassVar[bool] = True
    layer_types: list[Literal["full_attention", "linear_attention"]] | None = None  # type: ignore[assignment]
    head_dim: Size | None = 256
    full_attention_interval: Size = 4
    linear_conv_kernel_dim: Size = 4
    linear_key_head_dim: Size = 128
    linear_value_head_dim: Size = 128
    linear_num_key_heads: Size = 16
    linear_num_value_heads: Size = 32
    mamba_ssm_dtype: _StateDtype = "bfloat16"
    mtp_num_hidden_layers: Index = 0

    def num_sliding(self) -> int:
        return 0

    def further(self) -> dict[str, Any]:
        linear = LinearShape(
            "gated_delta_net",
            self.linear_num_key_heads,
            self.linear_num_value_heads,
            self.linear_key_head_dim,
            self.linear_value_head_dim,
            self.linear_conv_kernel_dim,
            _STATE_BYTES[self.mamba_ssm_dtype],
        )
        num_linear = self._num_linear()
        with_linear = {"linear": linear, "num_linear_layers": num_linear} if num_linear else {}
        return {"attention_gate": True, "num_mtp_layers": self.mtp_num_hidden_layers, **with_linear}

    def _num_linear(self) -> int:
        if self.layer_types is None:
            return self.num_hidden_layers - self.num_hidden_layers // self.full_attention_interval
        if len(self.layer_types) != self.num_hidden_layers:
            raise InputError(
                f"layer_types has {len(self.layer_types)} entries for num_hidden_layers={self.num_hidden_layers}"
            )
        return self.layer_types.count("linear_attention")


class Qwen35Moe(Qwen35):
    """Experts in every layer, as Qwen3-Next."""

    intermediate_size: Size = 1  # every layer has experts
    num_experts: Size
    num_experts_per_tok: Size
    moe_intermediate_size: Size
    shared_expert_intermediate_size: Index
    decoder_sparse_step: Size = 1
    mlp_only_layers: Sequence[Index] = ()

    moe = Qwen2Moe.moe
    shared_ffn = Qwen2Moe.shared_ffn


class NemotronH(Config):
    """Blocks of one part each: a Mamba-2 mixer, attention, an MLP or experts, all without a gate."""

    norms_per_layer: ClassVar[int] = 1

    num_hidden_layers: Index = 0  # newer configs give the list of blocks alone
    layers_block_type: list[str] | None = None
    hybrid_override_pattern: str | None = None
    mamba_num_heads: Size
    mamba_head_dim: Size
    ssm_state_size: Size
    n_groups: Size
    conv_kernel: Size = 4
    mamba_ssm_cache_dtype: _StateDtype = "float32"
    mlp_bias: bool = False
    n_routed_experts: Size | None = None
    num_experts_per_tok: Size | None = None
    moe_intermediate_size: Size | None = None
    moe_shared_expert_intermediate_size: Index = 0
    moe_latent_size: Size | None = None
    num_nextn_predict_layers: Index = 0

    def blocks(self) -> list[str]:
        found = self.layers_block_type
        if found is None:
            found = [_BLOCKS.get(letter, letter) for letter in self.hybrid_override_pattern or ""]
        found = [_WORDS.get(word, word) for word in found]
        unknown = set(found) - set(_BLOCKS.values())
        if unknown or not found or self.num_hidden_layers not in (0, len(found)):
            what = f"has unknown kinds {sorted(unknown)}" if unknown else f"has {len(found)} entries"
            raise InputError(f"layers_block_type {what} for num_hidden_layers={self.num_hidden_layers}")
        return found

    def shape(self, name: str, architecture: str) -> ModelShape:
        self = self.model_copy(update={"num_hidden_layers": len(self.blocks())})
        return Config.shape(self, name, architecture)

    def num_sliding(self) -> int:
        return 0

    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, self.attention_bias, self.mlp_bias

    def moe(self) -> MoeShape | None:
        layers = tuple(block == "moe" for block in self.blocks())
        if not any(layers):
            return None
        if not (self.n_routed_experts and self.num_experts_per_tok and self.moe_intermediate_size):
            raise InputError("moe blocks need n_routed_experts, num_experts_per_tok and moe_intermediate_size")
        shared = self.moe_shared_expert_intermediate_size
        sizes = (self.n_routed_experts, self.num_experts_per_tok, self.moe_intermediate_size)
        return MoeShape(*sizes, shared, False, True, layers, latent=self.moe_latent_size)

    def further(self) -> dict[str, Any]:
        blocks = self.blocks()
        linear = LinearShape(
            "mamba2",
            self.n_groups,
            self.mamba_num_heads,
            self.ssm_state_size,
            self.mamba_head_dim,
            self.conv_kernel,
            _STATE_BYTES[self.mamba_ssm_cache_dtype],
        )
        return {
            "gated_mlp": False,
            "linear": linear,
            "num_linear_layers": blocks.count("mamba"),
            "num_mixer_free_layers": blocks.count("moe") + blocks.count("mlp"),
            "num_mlp_free_layers": blocks.count("mamba") + blocks.count("attention"),
            "num_mtp_layers": self.num_nextn_predict_layers,
        }
