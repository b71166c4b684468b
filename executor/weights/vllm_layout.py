"""What a vLLM rank holds: QKV and gate with up fused, KV heads repeated where there are fewer than ranks, vocabulary
padded, experts stacked. Checked against vLLM 0.32.
"""  # noqa: D205

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.weights.architecture import EMBEDDING, HEAD, NORM, mlp_names
from executor.weights.megatron_layout import by_columns, cut
from executor.weights.regions import Region, Stored, stacked
from profiles.errors import InputError
from simulator.plan.groups import Degrees, GenerationGrouping, generation_coordinates

if TYPE_CHECKING:
    from executor.weights.architecture import Architecture

VOCABULARY_MULTIPLE = 64


@dataclass(frozen=True)
class VllmLayout:
    """Ranks in the generation groups of ``degrees``. Experts are cut over ``t_g`` like any other width."""

    arch: Architecture
    degrees: Degrees
    grouping: GenerationGrouping | None = None

    def __post_init__(self) -> None:
        arch, degrees = self.arch, self.degrees
        if arch.has_score:
            raise InputError("a model with a score head does not generate")
        if arch.num_layers < degrees.pg:
            raise InputError(f"{arch.num_layers} layers do not fill {degrees.pg} pipeline stages")
        for name in ("num_heads", "ffn"):
            if getattr(arch, name) % degrees.tg:
                raise InputError(f"{name} {getattr(arch, name)} does not divide by tensor-parallel degree {degrees.tg}")
        small, large = sorted((arch.num_kv_heads, degrees.tg))
        if large % small:
            raise InputError(f"num_kv_heads {arch.num_kv_heads} and tensor-parallel degree {degrees.tg} do not divide")
        if self.padded_vocab % degrees.tg:
            raise InputError(f"vocabulary of {self.padded_vocab} rows does not divide by {degrees.tg}")

    @property
    def num_ranks(self) -> int:
        return self.degrees.num_ranks

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding on all tensor-parallel ranks together."""
        return -(-self.arch.vocab // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    def layers(self, stage: int) -> range:
        """Layers of a stage; what does not divide goes to late stages, but not to the last."""
        stages = self.degrees.pg
        sizes = [self.arch.num_layers // stages] * stages
        for i in range(2, self.arch.num_layers % stages + 2):
            sizes[-i] += 1
        first = sum(sizes[:stage])
        return range(first, first + sizes[stage])

    def stored(self, rank: int) -> tuple[Stored, ...]:
        tg, pg, _, _ = generation_coordinates(rank, self.degrees, self.grouping)
        arch, last = self.arch, self.degrees.pg - 1
        found: list[Stored] = []
        if pg == 0 or (arch.tied and pg == last):
            found.append(self._vocabulary(EMBEDDING, -1 if pg == 0 else arch.num_layers, tg))
        for layer in self.layers(pg):
            found += self._layer(layer, tg)
        if pg == last:
            found.append(_whole(NORM, (arch.hidden,), arch.num_layers))
            if not arch.tied:
                found.append(self._vocabulary(HEAD, arch.num_layers, tg))
        return tuple(found)

    def _vocabulary(self, name: str, layer: int, tg: int) -> Stored:
        start, stop = cut(self.padded_vocab, tg, self.degrees.tg)
        rows = (min(start, self.arch.vocab), min(stop, self.arch.vocab))
        regions = stacked([(name, rows, self.arch.hidden)]) if rows[0] < rows[1] else ()
        return Stored(name, (stop - start, self.arch.hidden), regions, layer, name)

    def _layer(self, layer: int, tg: int) -> list[Stored]:
        arch, at, h = self.arch, f"model.layers.{layer}.", self.arch.hidden
        found = [_whole(f"{at}{name}.weight", (h,), layer) for name in ("input_layernorm", "post_attention_layernorm")]
        for kind, columns in [("weight", h), *([("bias", None)] if arch.qkv_bias else [])]:
            found.append(self._qkv(f"{at}self_attn.", kind, columns, layer, tg))
        if arch.qk_norm:
            found += [_whole(f"{at}self_attn.{name}_norm.weight", (arch.head_dim,), layer) for name in "qk"]
        name = f"{at}self_attn.o_proj.weight"
        found.append(by_columns(name, name, h, cut(arch.num_heads * arch.head_dim, tg, self.degrees.tg), layer))
        found += self._experts(at, layer, tg) if arch.num_experts else self._mlp(at, layer, tg)
        return found + (self._adapters(at, layer, tg) if arch.adapters is not None else [])

    def _adapters(self, at: str, layer: int, tg: int) -> list[Stored]:
        """Both factors of each adapter: the one that is cut is cut as its projection is, the other one is whole."""
        arch = self.arch
        assert arch.adapters is not None, "only a model with adapters asks"
        rank, (q, kv) = arch.adapters.rank, self._heads(tg)
        ffn = cut(arch.ffn, tg, self.degrees.tg)
        cuts = {
            "q_proj": q,
            "k_proj": kv,
            "v_proj": kv,
            "o_proj": q,
            "gate_proj": ffn,
            "up_proj": ffn,
            "down_proj": ffn,
        }
        found = []
        for projection in arch.adapters.projections:
            name, mine = f"{at}{projection}", cuts[projection.rpartition(".")[2]]
            down, up = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
            out, width = arch.tensors()[up].shape[0], arch.tensors()[down].shape[1]
            if projection.endswith(("o_proj", "down_proj")):
                found += [by_columns(down, down, rank, mine, layer), _whole(up, (out, rank), layer)]
            else:
                rows = Stored(up, (mine[1] - mine[0], rank), stacked([(up, mine, rank)]), layer, up)
                found += [_whole(down, (rank, width), layer), rows]
        return found

    def _heads(self, tg: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows of queries, and of keys and values."""
        arch, d, t = self.arch, self.arch.head_dim, self.degrees.tg
        if arch.num_kv_heads >= t:
            return cut(arch.num_heads * d, tg, t), cut(arch.num_kv_heads * d, tg, t)
        head = tg // (t // arch.num_kv_heads)
        return cut(arch.num_heads * d, tg, t), (head * d, (head + 1) * d)

    def _qkv(self, at: str, kind: str, columns: int | None, layer: int, tg: int) -> Stored:
        q, kv = self._heads(tg)
        parts = [(f"{at}{name}_proj.{kind}", rows, columns) for name, rows in (("q", q), ("k", kv), ("v", kv))]
        num_rows = q[1] - q[0] + 2 * (kv[1] - kv[0])
        shape = (num_rows,) if columns is None else (num_rows, columns)
        return Stored(f"{at}qkv_proj.{kind}", shape, stacked(parts), layer, f"{at}qkv_proj.{kind}")

    def _mlp(self, at: str, layer: int, tg: int) -> list[Stored]:
        gate, up, down = mlp_names(f"{at}mlp.")
        h, rows = self.arch.hidden, cut(self.arch.ffn, tg, self.degrees.tg)
        name, width = f"{at}mlp.gate_up_proj.weight", rows[1] - rows[0]
        first = Stored(name, (2 * width, h), stacked([(gate, rows, h), (up, rows, h)]), layer, name)
        return [first, by_columns(down, down, h, rows, layer)]

    def _experts(self, at: str, layer: int, tg: int) -> list[Stored]:
        arch, h = self.arch, self.arch.hidden
        rows = cut(arch.ffn, tg, self.degrees.tg)
        width, into, out = rows[1] - rows[0], [], []
        for expert in range(arch.num_experts):
            gate, up, down = arch.expert_names(layer, expert)
            into.append(Region(gate, (rows, (0, h)), (expert, 0, 0)))
            into.append(Region(up, (rows, (0, h)), (expert, width, 0)))
            out.append(Region(down, ((0, h), rows), (expert, 0, 0)))
        block = f"{at}{'block_sparse_moe' if arch.model_type == 'mixtral' else 'mlp'}."
        router = _whole(arch.router_name(layer), (arch.num_experts, h), layer)
        w13, w2 = (f"{block}experts.routed_experts.{name}_weight" for name in ("w13", "w2"))
        return [
            router,
            Stored(w13, (arch.num_experts, 2 * width, h), tuple(into), layer, w13),
            Stored(w2, (arch.num_experts, h, width), tuple(out), layer, w2),
        ]


def _whole(name: str, shape: tuple[int, ...], layer: int) -> Stored:
    return Stored(name, shape, (Region(name, tuple((0, n) for n in shape), (0,) * len(shape)),), layer, name)
