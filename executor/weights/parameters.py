"""Weights as a table: every parameter's name, shape, home and cut; drawn by seed or read from files, shard by shard.

Names are Hugging Face's. A rank's shard depends on the degrees, its values do not: each whole parameter has a random
stream of its own, seeded by its name.
"""

from __future__ import annotations

import math
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from executor.weights.architecture import EMBEDDING, HEAD, NORM, SCORE, is_adapter, is_learned, read_architecture
from executor.weights.files import open_weights
from executor.weights.native_layout import cut_dimension
from profiles.errors import InputError, NotYetError

if TYPE_CHECKING:
    from pathlib import Path

    from executor.weights.architecture import Adapters, Architecture

INIT_STD = 0.02
MOST_THREADS = 8


@dataclass(frozen=True)
class Parameter:
    """One parameter of the whole model.

    ``cut`` is the dimension that tensor parallelism cuts, ``None`` for a whole copy on each rank. ``layer`` is -1 for
    what lives on the first stage, ``num_layers`` for the last. ``partial_gradient``: a whole copy, but each
    tensor-parallel rank sees only its own heads' share of the gradient. ``is_copy``: a tied head on the last stage.
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    cut: int | None = None
    partial_gradient: bool = False
    is_copy: bool = False

    def local_shape(self, t: int) -> tuple[int, ...]:
        """Shape of one of ``t`` slices."""
        return tuple(n // t if dim == self.cut else n for dim, n in enumerate(self.shape))


@dataclass(frozen=True)
class Slice:
    """Which part of the model a rank holds: stage ``stage`` of ``stages``, slice ``index`` of ``t``."""

    stage: int
    stages: int
    index: int
    t: int

    def layers(self, arch: Architecture) -> range:
        """The layers of this stage."""
        each = arch.num_layers // self.stages
        return range(self.stage * each, (self.stage + 1) * each)

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1


def read_dense(path: str | Path, *, has_score: bool = False, adapters: Adapters | None = None) -> Architecture:
    """The model in ``path`` (``transition.architecture``); ``NotYetError`` for one with experts."""
    arch = read_architecture(path, has_score=has_score, adapters=adapters)
    if arch.num_experts:
        raise NotYetError(
            f"{path}: '{arch.model_type}' has experts, which the torch-native engine cannot run yet; megatron-core can"
        )
    return arch


def parameters_of(arch: Architecture, piece: Slice, *, value_head: bool) -> list[Parameter]:
    """The parameters that a rank holds: cut ones first, then whole copies, then copies that another stage owns."""
    found: list[Parameter] = []
    if piece.is_first:
        found.append(Parameter(EMBEDDING, (arch.vocab, arch.hidden), -1, cut=0))
    for layer in piece.layers(arch):
        found += _layer(arch, layer)
    if piece.is_last:
        found.append(Parameter(NORM, (arch.hidden,), arch.num_layers))
        found += _head(arch, piece, value_head=value_head)
    return sorted(found, key=lambda p: (p.is_copy, p.cut is None))  # stable: layers keep their order


def _head(arch: Architecture, piece: Slice, *, value_head: bool) -> list[Parameter]:
    if value_head:
        return [Parameter(SCORE, (1, arch.hidden), arch.num_layers)]
    if not arch.tied:
        return [Parameter(HEAD, (arch.vocab, arch.hidden), arch.num_layers, cut=0)]
    if piece.is_first:
        return []  # one stage: the embedding itself is the head
    return [Parameter(EMBEDDING, (arch.vocab, arch.hidden), arch.num_layers, cut=0, is_copy=True)]


def _layer(arch: Architecture, layer: int) -> list[Parameter]:
    h, at = arch.hidden, f"model.layers.{layer}."
    q, kv = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    found = [
        Parameter(f"{at}input_layernorm.weight", (h,), layer),
        Parameter(f"{at}post_attention_layernorm.weight", (h,), layer),
        Parameter(f"{at}self_attn.o_proj.weight", (h, q), layer, cut=1),
        Parameter(f"{at}mlp.gate_proj.weight", (arch.ffn, h), layer, cut=0),
        Parameter(f"{at}mlp.up_proj.weight", (arch.ffn, h), layer, cut=0),
        Parameter(f"{at}mlp.down_proj.weight", (h, arch.ffn), layer, cut=1),
    ]
    for name, width in (("q", q), ("k", kv), ("v", kv)):
        found.append(Parameter(f"{at}self_attn.{name}_proj.weight", (width, h), layer, cut=0))
        if arch.qkv_bias:
            found.append(Parameter(f"{at}self_attn.{name}_proj.bias", (width,), layer, cut=0))
        if arch.qk_norm and name != "v":
            shape = (arch.head_dim,)
            found.append(Parameter(f"{at}self_attn.{name}_norm.weight", shape, layer, partial_gradient=True))
    return found + _adapters(arch, layer)


def _adapters(arch: Architecture, layer: int) -> list[Parameter]:
    """Factors of a layer's adapters: of the one that is whole, each rank sees the gradient through its own part."""
    found = [tensor for tensor in arch.tensors().values() if tensor.layer == layer and is_adapter(tensor.name)]
    cuts = [(tensor, cut_dimension(tensor.name)) for tensor in found]
    return [Parameter(t.name, t.shape, layer, cut, partial_gradient=cut is None) for t, cut in cuts]


def cut_out(whole: torch.Tensor, parameter: Parameter, piece: Slice) -> torch.Tensor:
    """The slice of a whole parameter that a rank holds."""
    if parameter.cut is None:
        return whole
    return whole.chunk(piece.t, dim=parameter.cut)[piece.index]


def drawn(parameter: Parameter, arch: Architecture, seed: int) -> torch.Tensor:
    """A whole parameter at random: normal matrices (those into the residual stream smaller), ones, zero biases.

    Of an adapter one factor is zero, so that it changes nothing before it learns, the other uniform as in PEFT.
    """
    if parameter.name.endswith("norm.weight"):
        return torch.ones(parameter.shape)
    if parameter.name.endswith((".bias", ".lora_B.weight")):
        return torch.zeros(parameter.shape)
    std = INIT_STD
    if parameter.name.endswith(("o_proj.weight", "down_proj.weight")):
        std /= math.sqrt(2 * arch.num_layers)
    stream = torch.Generator().manual_seed((seed << 32) ^ zlib.crc32(parameter.name.encode()))
    if is_adapter(parameter.name):
        return (2 * torch.rand(parameter.shape, generator=stream) - 1) / math.sqrt(parameter.shape[1])
    return torch.randn(parameter.shape, generator=stream) * std


def drawn_slices(parameters: list[Parameter], piece: Slice, arch: Architecture, seed: int) -> dict[str, torch.Tensor]:
    """A rank's slices of parameters at random, by name; each has a stream of its own, so threads draw them at once."""

    def one(parameter: Parameter) -> torch.Tensor:
        return cut_out(drawn(parameter, arch, seed), parameter, piece)

    with ThreadPoolExecutor(MOST_THREADS) as threads:
        return dict(zip((p.name for p in parameters), threads.map(one, parameters), strict=True))


def read(parameters: list[Parameter], piece: Slice, folder: Path) -> dict[str, torch.Tensor]:
    """The slices of one rank, from the ``*.safetensors`` files of ``folder``; ``InputError`` names what is wrong.

    A value head or an adapter that no file has is left out of the answer: it is new.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder}: no *.safetensors file")
    wanted, found = {p.name: p for p in parameters}, {}
    for file in files:
        with open_weights(file) as opened:
            for name in wanted.keys() & set(opened.keys()):
                whole = opened.get_slice(name)
                if tuple(whole.get_shape()) != wanted[name].shape:
                    shape = tuple(whole.get_shape())
                    raise InputError(f"{file}: {name} has shape {shape}, the config asks for {wanted[name].shape}")
                found[name] = _slice_of(whole, wanted[name], piece)
    missing = sorted(name for name in wanted.keys() - found.keys() if not is_learned(name))
    if missing:
        raise InputError(f"{folder}: {len(missing)} weights are missing, the first is {missing[0]}")
    return found


def _slice_of(whole: object, parameter: Parameter, piece: Slice) -> torch.Tensor:
    """Read only the rows or columns that this rank holds."""
    ranges = [slice(None)] * len(parameter.shape)
    if parameter.cut is not None:
        each = parameter.shape[parameter.cut] // piece.t
        ranges[parameter.cut] = slice(piece.index * each, (piece.index + 1) * each)
    return whole[tuple(ranges)] if len(ranges) > 1 else whole[ranges[0]]  # type: ignore[index,no-any-return]
