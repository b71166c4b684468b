"""What every family of Hugging Face configs has in common: the keys that all codes read, and how they make a shape.

A family's class holds the keys that this family's code reads, with that code's own defaults. Extra keys are ignored,
since a published config carries many that say nothing about the shape; wrong types never pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from profiles.errors import InputError
from profiles.models.shape import ModelShape

if TYPE_CHECKING:
    from profiles.models.layers import MlaShape, MoeShape

# No published model comes near these; beyond them a config is a mistake, and counts would stop meaning anything.
_MAX_SIZE = 10_000_000
_MAX_LAYERS = 10_000
_MAX_POSITION = 1_000_000_000

Size = Annotated[int, Field(gt=0, le=_MAX_SIZE)]
Index = Annotated[int, Field(ge=0, le=_MAX_SIZE)]
Position = Annotated[int, Field(gt=0, le=_MAX_POSITION)]
AttentionType = Literal["full_attention", "sliding_attention", "chunked_attention", "deepseek_sparse_attention"]


class Config(BaseModel):
    """Keys that all families share, and how they make a shape."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, defer_build=True)
    norms_per_layer: ClassVar[int] = 2
    qk_norm: ClassVar[bool] = False

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, Field(gt=0, le=_MAX_LAYERS)]
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size
    max_position_embeddings: Position
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    sliding_window: Size | None = None
    layer_types: Sequence[AttentionType] | None = None

    def shape(self, name: str, architecture: str) -> ModelShape:
        num_sliding = self.num_sliding() if self.window() else 0
        qkv_bias, o_bias, mlp_bias = self.biases()
        fields = {
            "hidden": self.hidden_size,
            "num_layers": self.num_hidden_layers,
            "vocab": self.vocab_size,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self.num_key_value_heads or self.num_attention_heads,
            "head_dim": self.width_per_head(),
            "ffn": self.intermediate_size,
            "max_position": self.max_position_embeddings,
            "tied_embeddings": self.tie_word_embeddings,
            "qkv_bias": qkv_bias,
            "o_bias": o_bias,
            "mlp_bias": mlp_bias,
            "qk_norm": self.qk_norm,
            "norms_per_layer": self.norms_per_layer,
            "sliding_window": self.window() if num_sliding else None,
            "num_sliding_layers": num_sliding,
            "mla": self.mla(),
            "moe": self.moe(),
        }
        return ModelShape(name=name, architecture=architecture, **{**fields, **self.further()})

    def width_per_head(self) -> int:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads="
                f"{self.num_attention_heads} and there is no head_dim"
            )
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def window(self) -> int | None:
        """Tokens that a layer with a window sees; ``None`` if there is none."""
        return self.sliding_window

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

    def further(self) -> dict[str, Any]:
        """Fields of the shape that few families set."""
        return {}
