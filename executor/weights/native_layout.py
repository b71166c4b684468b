"""Layouts in the checkpoint's own naming: cut by tensor and pipeline degrees, sharded by FSDP, or whole on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from executor.weights.architecture import EMBEDDING, Tensor
from executor.weights.regions import Box, Region, Stored, whole_box
from profiles.errors import InputError
from simulator.plan.groups import Degrees, GenerationGrouping, generation_coordinates, training_coordinates

if TYPE_CHECKING:
    from executor.weights.architecture import Architecture

ROWS = (
    "q_proj.weight",
    "k_proj.weight",
    "v_proj.weight",
    "gate_proj.weight",
    "up_proj.weight",
    "w1.weight",
    "w3.weight",
    "_proj.bias",
    "embed_tokens.weight",
    "lm_head.weight",
)
COLUMNS = ("o_proj.weight", "down_proj.weight", "w2.weight")
SPLIT_OUT = tuple(f"{name}_proj.lora_B.weight" for name in ("q", "k", "v", "gate", "up"))
SPLIT_IN = tuple(f"{name}_proj.lora_A.weight" for name in ("o", "down"))
"""The factor of an adapter that is cut as its projection is; the other one is whole on every rank."""


def cut_dimension(name: str) -> int | None:
    """The dimension that tensor parallelism cuts, ``None`` for a whole copy on each rank."""
    if name.endswith((*COLUMNS, *SPLIT_IN)):
        return 1
    return 0 if name.endswith((*ROWS, *SPLIT_OUT)) else None


def require_even(arch: Architecture, p: int, t: int) -> None:
    """Raise ``InputError`` unless layers divide by ``p``, and heads, experts' width and vocabulary by ``t``."""
    if arch.num_layers % p:
        raise InputError(f"{arch.num_layers} layers do not divide into {p} pipeline stages")
    for name in ("num_heads", "num_kv_heads", "ffn", "vocab"):
        if getattr(arch, name) % t:
            raise InputError(f"{name} {getattr(arch, name)} does not divide by tensor-parallel degree {t}")


@dataclass(frozen=True)
class NativeLayout:
    """The torch-native engine's: every tensor under its own name, cut evenly over ``t``, layers over ``p``.

    ``stage`` training or generation says which of the degrees count. Matrices that are cut by columns lie
    ``transposed``: then a rank's slice is one piece of memory, and slices gathered in order make up the whole in place.
    """

    arch: Architecture
    degrees: Degrees
    stage: Literal["training", "generation"]
    grouping: GenerationGrouping | None = None
    transposed: bool = True

    def __post_init__(self) -> None:
        degrees = self.degrees
        require_even(self.arch, *((degrees.p, degrees.t) if self.stage == "training" else (degrees.pg, degrees.tg)))

    @property
    def num_ranks(self) -> int:
        return self.degrees.num_ranks

    def stored(self, rank: int) -> tuple[Stored, ...]:
        degrees = self.degrees
        if self.stage == "training":
            (tp, pp, _), t, p = training_coordinates(rank, degrees), degrees.t, degrees.p
        else:
            (tp, pp, _, _), t, p = generation_coordinates(rank, degrees, self.grouping), degrees.tg, degrees.pg
        each = self.arch.num_layers // p
        layers = range(pp * each, (pp + 1) * each)
        found = []
        for tensor in self.arch.tensors().values():
            outside = tensor.layer not in layers
            first, last = tensor.layer == -1 and pp == 0, tensor.layer == self.arch.num_layers and pp == p - 1
            if outside and not first and not last:
                continue
            found.append(sliced(tensor, tp, t, slot_of(tensor, pp * each), transposed=self.transposed))
        if self.arch.tied and not self.arch.has_score and p > 1 and pp == p - 1:
            embedding = self.arch.tensors()[EMBEDDING]
            copy = sliced(
                Tensor(EMBEDDING, embedding.shape, self.arch.num_layers), tp, t, "tied head", transposed=False
            )
            found.append(copy)
        return tuple(found)


def slot_of(tensor: Tensor, first_layer: int) -> str:
    """The tensor's name with its layer counted from the first one of its stage."""
    if tensor.layer == -1 or ".layers." not in tensor.name:
        return tensor.name
    head, rest = tensor.name.split(".layers.")
    number, name = rest.split(".", 1)
    return f"{head}.layers.{int(number) - first_layer}.{name}"


def sliced(tensor: Tensor, index: int, count: int, slot: str = "", *, transposed: bool = True) -> Stored:
    """Slice ``index`` of ``count`` of a checkpoint tensor, alone in a local tensor."""
    box, cut = list(whole_box(tensor.shape)), cut_dimension(tensor.name)
    if cut is not None:
        each = tensor.shape[cut] // count
        box[cut] = (index * each, (index + 1) * each)
    found = tuple(box)
    transposed = transposed and cut == 1
    shape = tuple(b - a for a, b in (reversed(found) if transposed else found))
    region = Region(tensor.name, found, (0,) * len(shape), transposed=transposed)
    return Stored(tensor.name, shape, (region,), tensor.layer, slot)


@dataclass(frozen=True)
class FsdpLayout:
    """FSDP2: each tensor cut over ``t`` neighbours as ``cut_dimension`` says, the rows of each part in chunks over the
    data-parallel ranks, as ``torch.chunk`` cuts; late ranks may have nothing of a tensor."""  # noqa: D205, D209

    arch: Architecture
    num_ranks: int
    t: int = 1

    def __post_init__(self) -> None:
        require_even(self.arch, 1, self.t)

    def stored(self, rank: int) -> tuple[Stored, ...]:
        found, d, (dp, tp) = [], self.num_ranks // self.t, divmod(rank, self.t)
        for tensor in self.arch.tensors().values():
            (low, high), *rest = sliced(tensor, tp, self.t).regions[0].box
            each = -(-(high - low) // d)
            start, stop = min(low + dp * each, high), min(low + (dp + 1) * each, high)
            if start < stop:
                box: Box = ((start, stop), *rest)
                shape = tuple(b - a for a, b in box)
                region = Region(tensor.name, box, (0,) * len(shape))
                found.append(Stored(tensor.name, shape, (region,), tensor.layer, tensor.name))
        return tuple(found)


@dataclass(frozen=True)
class WholeLayout:
    """The whole checkpoint on the ranks in ``holders``, nothing on the others."""

    arch: Architecture
    num_ranks: int
    holders: frozenset[int]

    def stored(self, rank: int) -> tuple[Stored, ...]:
        if rank not in self.holders:
            return ()
        return tuple(
            Stored(t.name, t.shape, (Region(t.name, whole_box(t.shape), (0,) * len(t.shape)),), t.layer, t.name)
            for t in self.arch.tensors().values()
        )
