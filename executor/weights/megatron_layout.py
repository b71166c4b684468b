"""What a Megatron-Core rank holds: grouped QKV, gate and up in one, padded vocabulary, experts by EP rank.

Names are those of ``GPTModel``'s parameters with the number of the model chunk (interleaved pipeline) in front:
``0:decoder.layers.0.self_attention.linear_qkv.weight``. Checked against megatron-core 0.16.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from executor.weights.architecture import EMBEDDING, HEAD, NORM, SCORE, mlp_names
from executor.weights.regions import Box, Region, Stored, intersection, stacked
from profiles.errors import InputError
from simulator.plan.groups import Degrees, copy_of_weights, training_coordinates

if TYPE_CHECKING:
    from executor.weights.architecture import Architecture


@dataclass(frozen=True)
class MegatronLayout:
    """Ranks in the order tensor, context, pipeline, data parallel. ``vpp`` model chunks a stage; ``ep`` expert parallel
    ranks overlay the data and context parallel ones."""  # noqa: D205, D209

    arch: Architecture
    degrees: Degrees
    vpp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        arch, degrees = self.arch, self.degrees
        if arch.num_layers % (degrees.p * self.vpp):
            raise InputError(
                f"{arch.num_layers} layers do not divide into {degrees.p} pipeline stages of {self.vpp} chunks"
            )
        for name in ("num_heads", "ffn"):
            if getattr(arch, name) % degrees.t:
                raise InputError(f"{name} {getattr(arch, name)} does not divide by tensor-parallel degree {degrees.t}")
        small, large = sorted((arch.num_kv_heads, degrees.t))
        if large % small:
            raise InputError(f"num_kv_heads {arch.num_kv_heads} and tensor-parallel degree {degrees.t} do not divide")
        if arch.num_experts and degrees.c > 1 and degrees.p > 1:
            raise InputError(
                f"a mixture of experts with context parallelism and {degrees.p} pipeline stages has no groups in this "
                "order of ranks"
            )
        if self.ep > 1:
            self._require_experts()

    def _require_experts(self) -> None:
        arch, degrees = self.arch, self.degrees
        if not arch.num_experts or arch.num_experts % self.ep:
            raise InputError(f"{arch.num_experts} experts do not divide into {self.ep} expert-parallel ranks")
        if degrees.d * degrees.c % self.ep:
            times = f" x context-parallel degree {degrees.c}" if degrees.c > 1 else ""
            raise InputError(
                f"expert-parallel degree {self.ep} does not divide data-parallel degree {degrees.d}{times}"
            )
        if degrees.p > 1:
            raise InputError(
                f"expert parallelism with {degrees.p} pipeline stages has no groups in this order of ranks"
            )

    @property
    def num_ranks(self) -> int:
        return self.degrees.num_ranks

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding on all tensor-parallel ranks together."""
        return -(-self.arch.vocab // self.degrees.t) * self.degrees.t

    def layers(self, stage: int, chunk: int) -> range:
        """The checkpoint's layers in a model chunk of a stage."""
        each = self.arch.num_layers // (self.degrees.p * self.vpp)
        first = (chunk * self.degrees.p + stage) * each
        return range(first, first + each)

    def stored(self, rank: int) -> tuple[Stored, ...]:
        degrees = self.degrees
        (tp, pp, _), copy = training_coordinates(rank, degrees), copy_of_weights(rank, degrees)
        found: list[Stored] = []
        for chunk in range(self.vpp):
            if pp == 0 and chunk == 0:
                found.append(self._vocabulary("0:embedding.word_embeddings.weight", EMBEDDING, -1, tp))
            for local, layer in enumerate(self.layers(pp, chunk)):
                found += self._layer(f"{chunk}:decoder.layers.{local}.", layer, tp, copy % self.ep)
        if pp == degrees.p - 1:
            found += self._ending(f"{self.vpp - 1}:", tp, alone=degrees.p == 1)
        return tuple(found)

    def _ending(self, at: str, tp: int, *, alone: bool) -> list[Stored]:
        arch = self.arch
        found = [_whole(f"{at}decoder.final_layernorm.weight", NORM, (arch.hidden,), arch.num_layers)]
        name = f"{at}output_layer.weight"
        if arch.has_score:
            found.append(_whole(name, SCORE, (1, arch.hidden), arch.num_layers))
        elif not arch.tied:
            found.append(self._vocabulary(name, HEAD, arch.num_layers, tp))
        elif not alone:  # a tied head on another stage than the embedding is a copy of it
            found.append(self._vocabulary(name, EMBEDDING, arch.num_layers, tp))
        return found

    def _vocabulary(self, name: str, source: str, layer: int, tp: int) -> Stored:
        each = self.padded_vocab // self.degrees.t
        rows = (min(tp * each, self.arch.vocab), min((tp + 1) * each, self.arch.vocab))
        regions = stacked([(source, rows, self.arch.hidden)]) if rows[0] < rows[1] else ()
        return Stored(name, (each, self.arch.hidden), regions, layer, name)

    def _layer(self, at: str, layer: int, tp: int, ep: int) -> list[Stored]:
        arch, source = self.arch, f"model.layers.{layer}."
        h, q = arch.hidden, arch.num_heads * arch.head_dim
        names = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm"}
        found = [
            _whole(f"{at}{ours}.weight", f"{source}{theirs}.weight", (h,), layer) for ours, theirs in names.items()
        ]
        found += self._qkv(at, f"{source}self_attn.", layer, tp)
        if arch.qk_norm:
            for name in "qk":
                ours = f"{at}self_attention.{name}_layernorm.weight"
                found.append(_whole(ours, f"{source}self_attn.{name}_norm.weight", (arch.head_dim,), layer))
        columns = cut(q, tp, self.degrees.t)
        found.append(
            by_columns(f"{at}self_attention.linear_proj.weight", f"{source}self_attn.o_proj.weight", h, columns, layer)
        )
        return found + self._mlp(at, layer, tp, ep)

    def _mlp(self, at: str, layer: int, tp: int, ep: int) -> list[Stored]:
        arch = self.arch
        if not arch.num_experts:
            return self._gated(f"{at}mlp.", mlp_names(f"model.layers.{layer}.mlp."), layer, tp)
        router = _whole(f"{at}mlp.router.weight", arch.router_name(layer), (arch.num_experts, arch.hidden), layer)
        found, each = [router], arch.num_experts // self.ep
        for local in range(each):
            names = arch.expert_names(layer, ep * each + local)
            found += self._gated(f"{at}mlp.experts.local_experts.{local}.", names, layer, tp)
        return found

    def _gated(self, at: str, names: tuple[str, str, str], layer: int, tp: int) -> list[Stored]:
        (gate, up, down), h = names, self.arch.hidden
        rows = cut(self.arch.ffn, tp, self.degrees.t)
        regions = stacked([(gate, rows, h), (up, rows, h)])
        shape = (2 * (rows[1] - rows[0]), h)
        first = Stored(f"{at}linear_fc1.weight", shape, regions, layer, f"{at}linear_fc1.weight")
        return [first, by_columns(f"{at}linear_fc2.weight", down, h, rows, layer)]

    def _qkv(self, at: str, source: str, layer: int, tp: int) -> list[Stored]:
        """A range of rows of the whole grouped matrix: for each KV head its queries, its key, its value."""
        arch, found = self.arch, []
        rows = cut((arch.num_heads + 2 * arch.num_kv_heads) * arch.head_dim, tp, self.degrees.t)
        kinds = [("weight", arch.hidden), *([("bias", None)] if arch.qkv_bias else [])]
        for kind, columns in kinds:
            parts, begin = [], 0
            for name, part in self._grouped:
                both = intersection(((begin, begin + part[1] - part[0]),), (rows,))
                if both is not None:
                    inside = (both[0][0] - begin + part[0], both[0][1] - begin + part[0])
                    parts.append((f"{source}{name}_proj.{kind}", inside, columns))
                begin += part[1] - part[0]
            shape = (rows[1] - rows[0],) if columns is None else (rows[1] - rows[0], columns)
            name = f"{at}self_attention.linear_qkv.{kind}"
            found.append(Stored(name, shape, stacked(parts), layer, name))
        return found

    @cached_property
    def _grouped(self) -> list[tuple[str, tuple[int, int]]]:
        arch, d = self.arch, self.arch.head_dim
        each = arch.num_heads // arch.num_kv_heads * d
        return [
            part
            for g in range(arch.num_kv_heads)
            for part in (("q", (g * each, (g + 1) * each)), ("k", (g * d, (g + 1) * d)), ("v", (g * d, (g + 1) * d)))
        ]


def cut(n: int, index: int, count: int) -> tuple[int, int]:
    """The ``index``-th of ``count`` equal intervals of ``[0, n)``."""
    return index * (n // count), (index + 1) * (n // count)


def by_columns(name: str, source: str, rows: int, columns: tuple[int, int], layer: int) -> Stored:
    """A matrix cut by columns."""
    box: Box = ((0, rows), columns)
    return Stored(name, (rows, columns[1] - columns[0]), (Region(source, box, (0, 0)),), layer, name)


def _whole(name: str, source: str, shape: tuple[int, ...], layer: int) -> Stored:
    box: Box = tuple((0, n) for n in shape)
    return Stored(name, shape, (Region(source, box, (0,) * len(shape)),), layer, name)
