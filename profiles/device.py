"""A device profile: hardware facts and measured tables of one device, and every price that rests on them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from profiles.errors import NoBasisError
from profiles.lookup import pricing
from profiles.lookup.gemm import PLAIN
from profiles.lookup.sparse import KINDS
from profiles.records import Basis, Priced

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from profiles.hardware import DeviceSpec
    from profiles.lookup.attention import DecodeLookup, PrefillLookup
    from profiles.lookup.device_tables import DeviceTables
    from profiles.lookup.gemm import GemmLookup
    from profiles.lookup.linear import LinearLookup
    from profiles.lookup.mla import MlaLookup
    from profiles.lookup.moe import MoeExchangeLookup, MoeLookup
    from profiles.lookup.sparse import SparseLookups

WEIGHT_FORMATS = ("fp8", "fp8_block", "nvfp4", "mxfp4", "int4")
"""Formats that engines hold weights in where the device has no products in them."""


@dataclass(frozen=True, eq=False)
class DeviceProfile:
    """Hardware facts of one device and the prices of its operators.

    Every price broadcasts its arguments and returns a ``Priced`` of the broadcast shape. Its basis is
    ``MEASURED`` on a point of a table, ``INTERPOLATED`` between points and ``ANALYTIC`` beyond them, where the
    efficiency of the edge is held and the roofline of the true size scales it. A size of zero costs nothing; a
    negative one raises ``InputError``; a missing table or dtype raises ``NoBasisError``.

    Parameters
    ----------
    spec
        The hardware facts that prices are scaled to.
    tables
        Lazily read tables.
    facts_hash
        sha256 over ``device.yaml`` and the recorded sha256 of every table: equal hashes give equal prices.
    """

    spec: DeviceSpec
    tables: DeviceTables = field(repr=False)
    facts_hash: str

    def with_spec(self, spec: DeviceSpec) -> DeviceProfile:
        """Make a hypothetical device: measured efficiencies held, the rooflines of ``spec``; all ``ANALYTIC``."""
        digest = hashlib.sha256(f"{self.facts_hash}:{spec!r}".encode()).hexdigest()
        return DeviceProfile(spec, self.tables, digest)

    def with_links_of(self, other: DeviceProfile) -> DeviceProfile:
        """The same device with the collectives of ``other``, scaled from its links to this one's.

        Parameters
        ----------
        other
            A device of the same kind of links.

        Returns
        -------
        DeviceProfile
            Every other price is the same.
        """
        digest = hashlib.sha256(f"{self.facts_hash}:links of {other.facts_hash}".encode()).hexdigest()
        return DeviceProfile(self.spec, self.tables.with_links_of(other.tables), digest)

    def of_engine(self, family: str, release: str) -> DeviceProfile:
        """The same device with an engine's own tables first, of the release nearest to its.

        Parameters
        ----------
        family, release
            ``sglang``, ``0.5.9``: engine and release as table names have them.

        Returns
        -------
        DeviceProfile
            This one where the folder holds no table of the engine.
        """
        return _of_engine(self, family, release)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def mla_covers_projections(self) -> bool:
        """Whether the MLA prices hold the whole attention module, projections included, or the kernel alone."""
        return self.tables.covers("mla_prefill")

    @cached_property
    def _weakest(self) -> Basis:
        if self._reached is not self.spec:
            return Basis.ASSUMED  # another maker's kernels
        return Basis.MEASURED if self.spec == self.tables.reference else Basis.ANALYTIC

    @cached_property
    def _weakest_met(self) -> Basis:
        """Of collectives: scaled from another part's links where those stand in."""
        return self._weakest if self.tables.has_own_links else max(self._weakest, Basis.ANALYTIC)

    @cached_property
    def _reached(self) -> DeviceSpec:
        return self.spec.kernels.reached(self.spec)

    def gemm(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str = "bf16") -> Priced:
        """(m x k) times (k x n), output BF16; sizes in elements, fractions (averages) allowed.

        Source: ``gemm`` table; ln(time / roofline) is linear in ln m, ln n and ln k.
        """

        def ask(table: GemmLookup) -> Priced:
            return table.price(self._reached, self._weakest, m, n, k, dtype)

        def of_weights_alone(table: GemmLookup) -> Priced:
            return table.of_weights_alone(self._reached, self._weakest, m, n, k, dtype)

        return self._in_format("gemm", "GEMM", dtype, ask, of_weights_alone)

    def _in_format(
        self,
        operator: Literal["gemm", "moe"],
        what: str,
        dtype: str,
        ask: Callable[[Any], Priced],
        of_weights_alone: Callable[[Any], Priced],
    ) -> Priced:
        """A product in a number format; engines turn weights in one that the device has not to 16 bits (Marlin)."""
        try:
            found = self.tables.price(operator, what, ask, dtype if operator == "moe" else "")
        except NoBasisError:
            if dtype not in WEIGHT_FORMATS or self.tables.engine is None:
                raise
            found = self.tables.price(operator, what, of_weights_alone)
        return self.spec.kernels.spaced(found)

    def has_gemm(self, dtype: str) -> bool:
        """Whether products in a number format were measured."""
        return any(dtype in self.tables.lookup(name).dtypes for name in self.tables.names("gemm"))

    def attention_prefill(
        self,
        batch: ArrayLike,
        seq: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: ArrayLike,
        kv_dtype: str = "bf16",
        window: int = 0,
    ) -> Priced:
        """Causal self-attention (kernel only) of ``batch`` sequences of ``seq`` tokens; heads are those of one rank.

        Beyond the measured hull (131,072 tokens, sequences of 16,384) the time grows with seq squared. A pair of
        head counts or a head_dim that was not measured takes the ratio of the nearest one and is ``ANALYTIC``. A
        window that no table holds is priced as whole attention of pieces twice as long, ``ANALYTIC`` too.
        """
        sizes = (batch, seq, heads, kv_heads, head_dim)
        operator = "attention_prefill_window" if window else "attention_prefill"

        def ask(table: PrefillLookup) -> Priced:
            attending = self.spec.kernels.attending(self._reached)
            return table.price(attending, self._weakest, *sizes, kv_dtype, window)

        try:
            return self.spec.kernels.spaced(self.tables.price(operator, "prefill attention", ask))
        except NoBasisError:
            if window:
                piece = np.minimum(np.asarray(seq, dtype=np.float64), 2.0 * window)
                whole = self.attention_prefill(batch, piece, heads, kv_heads, head_dim, kv_dtype)
                pieces: Priced = whole * (np.asarray(seq) / np.maximum(piece, 1.0))
                return pieces.at_best(Basis.ANALYTIC)
            if kv_dtype == "bf16":
                raise
            # A prefill computes in bf16 whatever the cache holds; writing it in another format is a small kernel.
            return self.attention_prefill(*sizes).at_best(Basis.ANALYTIC)

    def attention_decode(
        self,
        batch: ArrayLike,
        context: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: ArrayLike,
        kv_dtype: str = "bf16",
        window: int = 0,
    ) -> Priced:
        """One new token per sequence (kernel only) that reads ``context`` tokens of KV; heads are those of one rank.

        Beyond the measured hull the achieved bandwidth is held. Absent head counts: as in ``attention_prefill``. A
        window that no table holds is priced as the whole of so many tokens.
        """
        sizes = (batch, context, heads, kv_heads, head_dim)
        operator = "attention_decode_window" if window else "attention_decode"

        def ask(table: DecodeLookup) -> Priced:
            return table.price(self._reached, self._weakest, *sizes, kv_dtype, window)

        try:
            kernels = self.spec.kernels
            return kernels.spaced(self.tables.price(operator, "decode attention", ask), kernels.decode_kernels)
        except NoBasisError:
            if not window:
                raise
            read = np.minimum(np.asarray(context, dtype=np.float64), window)
            return self.attention_decode(batch, read, heads, kv_heads, head_dim, kv_dtype).at_best(Basis.ANALYTIC)

    def mla_prefill(
        self, batch: ArrayLike, seq: ArrayLike, heads: ArrayLike, dtype: str = "bf16", kv_dtype: str = "bf16"
    ) -> Priced:
        """DeepSeek-V3 latent attention of whole sequences; ``dtype`` is the one of the projections.

        Holds the projections only if ``mla_covers_projections``; else add them all (q_a, q_b, kv_a, kv_b, o).
        """

        def ask(table: MlaLookup) -> Priced:
            return table.price(self._reached, self._weakest, batch, seq, heads, dtype, kv_dtype)

        return self.spec.kernels.spaced(self.tables.price("mla_prefill", "MLA prefill", ask))

    def mla_decode(
        self, batch: ArrayLike, context: ArrayLike, heads: ArrayLike, dtype: str = "bf16", kv_dtype: str = "bf16"
    ) -> Priced:
        """DeepSeek-V3 latent attention of one new token per sequence; see ``mla_prefill``.

        Without projections add them all: kv_b absorbed into query and output has the FLOPs and bytes of kv_b.
        """

        def ask(table: MlaLookup) -> Priced:
            return table.price(self._reached, self._weakest, batch, context, heads, dtype, kv_dtype)

        return self.spec.kernels.spaced(self.tables.price("mla_decode", "MLA decode", ask))

    def has_sparse(self, hidden: int) -> bool:
        """Whether modules of sparse latent attention of a model of this width were measured."""
        return hidden in KINDS and bool(self.tables.names("sparse_prefill") and self.tables.names("sparse_decode"))

    def sparse_attention(
        self,
        phase: Literal["prefill", "decode"],
        sizes: tuple[ArrayLike, ArrayLike, ArrayLike],
        hidden: int,
        dtype: str,
        kv_dtype: str,
    ) -> Priced:
        """A layer's module of sparse latent attention, projections and indexer included; see ``has_sparse``.

        ``sizes``: sequences, tokens of each, and query heads of one rank.
        """
        kind = KINDS[hidden]

        def ask(tables: SparseLookups) -> Priced:
            batch, length, heads = sizes
            return tables.of_kind[kind].price(self._reached, self._weakest, batch, length, heads, dtype, kv_dtype)

        return self.tables.price(f"sparse_{phase}", f"sparse attention ({phase})", ask)

    def linear_prefill(self, batch: ArrayLike, seq: ArrayLike, k_heads: ArrayLike, v_heads: ArrayLike) -> Priced:
        """Convolution and gated delta rule of whole sequences, without projections; heads are those of one rank."""

        def ask(table: LinearLookup) -> Priced:
            return table.price(self._reached, self._weakest, (batch, seq), k_heads, v_heads)

        return self.spec.kernels.spaced(self.tables.price("linear_prefill", "linear attention of prompts", ask))

    def linear_decode(self, batch: ArrayLike, k_heads: ArrayLike, v_heads: ArrayLike) -> Priced:
        """The same of one new token per sequence, whatever its context."""

        def ask(table: LinearLookup) -> Priced:
            return table.price(self._reached, self._weakest, (batch,), k_heads, v_heads)

        return self.spec.kernels.spaced(self.tables.price("linear_decode", "linear attention of a decode step", ask))

    def moe(
        self,
        num_tokens: ArrayLike,
        hidden: ArrayLike,
        ffn: ArrayLike,
        topk: ArrayLike,
        experts: ArrayLike,
        tp: ArrayLike = 1,
        ep: ArrayLike = 1,
        dtype: str = "bf16",
        distribution: str = "power_law_1.2",
        tuned: bool = False,
    ) -> Priced:
        """Run the grouped gated MLP of the routed experts of one rank; gate and communication excluded.

        ``num_tokens`` are all tokens of the EP group, before the split over experts; ``ffn`` is one expert's
        width before the split over ``tp``. A key that was not measured takes the ratio of the nearest one
        (``_EXPERT_WEIGHTS`` of the lookup) and is ``ANALYTIC``. ``tuned``: the engine ships a configuration that its
        own table was not timed with, so the fastest kernel of any table that holds the shape stands for it.
        """
        shape = (hidden, ffn, topk, experts, tp, ep)

        def ask(table: MoeLookup) -> Priced:
            return table.price(self._reached, self._weakest, num_tokens, shape, (dtype, dtype), distribution)

        def of_weights_alone(table: MoeLookup) -> Priced:
            return table.price(self._reached, self._weakest, num_tokens, shape, (PLAIN, dtype), distribution)

        if tuned and self.has_experts(dtype):
            return self.spec.kernels.spaced(self.tables.fastest("moe", "routed experts", ask, dtype))
        return self._in_format("moe", "routed experts", dtype, ask, of_weights_alone)

    def has_experts(self, dtype: str) -> bool:
        """Whether experts in a number format were measured with kernels that the engine runs."""
        return any(dtype in self.tables.lookup(name).dtypes for name in self.tables.names("moe", dtype))

    @property
    def measures_expert_exchange(self) -> bool:
        """Whether there is a table of DeepEP's dispatch and combine."""
        return "moe_all_to_all" in self.tables.cards

    def moe_all_to_all(
        self,
        num_tokens: ArrayLike,
        hidden: ArrayLike,
        topk: ArrayLike,
        experts: ArrayLike,
        ep: ArrayLike,
        phase: str = "prefill",
    ) -> Priced:
        """Dispatch plus combine of one layer (DeepEP) inside one NVLink domain; ``num_tokens`` of one rank.

        ``phase`` is ``prefill`` (high-throughput mode) or ``decode`` (low-latency mode).
        """
        shape = (hidden, topk, experts, ep)

        def ask(table: MoeExchangeLookup) -> Priced:
            return table.price(self._reached, self._weakest, num_tokens, shape, phase)

        return self.tables.price("moe_all_to_all", "expert all-to-all", ask)

    def _alone(self, gpus: ArrayLike) -> bool:
        """Whether nothing is to be looked up: groups of one, on a device that was measured alone."""
        return "collective" not in self.tables.cards and bool(np.all(np.asarray(gpus) == 1))

    def collective(self, kind: str, num_bytes: ArrayLike, gpus: ArrayLike) -> Priced:
        """NCCL inside one NVLink domain; the caller sees to it that ``gpus`` fit in one.

        ``kind`` is ``all_gather``, ``reduce_scatter`` or ``all_reduce`` (``num_bytes`` of the whole, gathered
        tensor) or ``all_to_all`` (``num_bytes`` that one rank holds for all ranks). Other group sizes are
        interpolated; more GPUs than measured follow the alpha-beta rule of ``collective_floor``.
        """
        if self._alone(gpus):
            return Priced.zero(np.broadcast_shapes(np.shape(num_bytes), np.shape(gpus)))
        return self.spec.kernels.met(self.tables.comm.price(self._reached, self._weakest_met, kind, num_bytes, gpus))

    def decode_all_reduce(self, num_bytes: ArrayLike, gpus: ArrayLike, cuda_graphs: bool = True) -> Priced:
        """All-reduce of a decode step: the faster of vLLM's kernel and NCCL, launched from a graph or eagerly."""
        if self._alone(gpus):
            return Priced.zero(np.broadcast_shapes(np.shape(num_bytes), np.shape(gpus)))
        price = self.tables.comm.decode_all_reduce(self._reached, self._weakest_met, num_bytes, gpus, cuda_graphs)
        return self.spec.kernels.met(price)

    def memory_bound(self, num_bytes: ArrayLike, num_kernels: ArrayLike = 1) -> Priced:
        """Element-wise kernels: the ``memory_ops`` table, else ``bytes / (0.8 bandwidth) + 2.5 us`` per kernel.

        The rule is that of a captured CUDA graph.
        """
        measured = self.tables.element_wise
        if measured is None:
            price = pricing.memory_bound(self._reached, num_bytes, num_kernels)
            return self.spec.kernels.spaced(price, num_kernels)
        return measured.price(self.spec.memory_bytes_per_s, self._weakest, num_bytes, num_kernels)

    def host_copy(self, num_bytes: ArrayLike) -> Priced:
        """Copy between one GPU and pinned host memory, one direction: the ``copy`` table, else bytes over the link."""
        measured = self.tables.host_copy
        if measured is None:
            return pricing.host_copy(self.spec, num_bytes)
        return measured.price(self.spec.pcie_bytes_per_s, self._weakest, num_bytes, 1)


@cache
def _of_engine(device: DeviceProfile, family: str, release: str) -> DeviceProfile:
    tables = device.tables.of_engine(family, release)
    if tables is device.tables:
        return device
    digest = hashlib.sha256(f"{device.facts_hash}:{family}@{release}".encode()).hexdigest()
    return DeviceProfile(device.spec, tables, digest)
