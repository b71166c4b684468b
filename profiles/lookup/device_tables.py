"""The lookups of one device folder, each read and pivoted when first used."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from profiles.lookup.attention import DecodeLookup, PrefillLookup
from profiles.lookup.collective import CollectiveLookup
from profiles.lookup.gemm import GemmLookup
from profiles.lookup.memory import BytesLookup
from profiles.lookup.mla import MlaLookup
from profiles.lookup.moe import MoeExchangeLookup, MoeLookup
from profiles.lookup.pricing import missing
from profiles.lookup.table import Table, TableCard, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from profiles.hardware import DeviceSpec
    from profiles.lookup.grid import RatioGrid


class DeviceTables:
    """The lookups of one folder, read and pivoted when first used; shared by hypothetical variants of a device.

    Parameters
    ----------
    folder
        Where the tables lie.
    reference
        The device that they were measured on.
    cards
        Sidecar of each table, by the table's name.
    """

    def __init__(self, folder: Path, reference: DeviceSpec, cards: Mapping[str, TableCard]) -> None:
        self._folder, self.reference, self.cards = folder, reference, cards

    def _table(self, name: str, what: str) -> Table:
        if name not in self.cards:
            raise missing(self.reference.name, name, what)
        return read_table(self._folder / f"{name}.parquet", self.cards[name])

    @cached_property
    def gemm(self) -> GemmLookup:
        return GemmLookup(self._table("gemm", "GEMM"), self.reference)

    @cached_property
    def prefill(self) -> PrefillLookup:
        return PrefillLookup(self._table("attention_prefill", "prefill attention"), self.reference)

    @cached_property
    def decode(self) -> DecodeLookup:
        return DecodeLookup(self._table("attention_decode", "decode attention"), self.reference)

    @cached_property
    def mla_prefill(self) -> MlaLookup:
        table = self._table("mla_prefill", "MLA prefill")
        return MlaLookup(table, self.reference, "seq", self.covers("mla_prefill"))

    @cached_property
    def mla_decode(self) -> MlaLookup:
        table = self._table("mla_decode", "MLA decode")
        return MlaLookup(table, self.reference, "context", self.covers("mla_decode"))

    @cached_property
    def moe(self) -> MoeLookup:
        return MoeLookup(self._table("moe", "routed experts"), self.reference)

    @cached_property
    def exchange(self) -> MoeExchangeLookup:
        return MoeExchangeLookup(self._table("moe_all_to_all", "expert all-to-all"), self.reference)

    @cached_property
    def comm(self) -> CollectiveLookup:
        custom = self._table("custom_all_reduce", "all-reduce") if "custom_all_reduce" in self.cards else None
        return CollectiveLookup(self._table("collective", "collectives inside a node"), self.reference, custom)

    @cached_property
    def element_wise(self) -> BytesLookup | None:
        """Element-wise kernels by bytes; ``None`` where the folder has no such table and a rule stands for it."""
        if "memory_ops" not in self.cards:
            return None
        rate = self.reference.memory_bytes_per_s
        return BytesLookup(self._table("memory_ops", "element-wise kernels"), "op", "element_wise", rate)

    @cached_property
    def host_copy(self) -> BytesLookup | None:
        """Copies from pinned host memory by bytes; ``None`` as above."""
        if "copy" not in self.cards:
            return None
        return BytesLookup(self._table("copy", "copies"), "kind", "host_to_device", self.reference.pcie_bytes_per_s)

    def grids(self, name: str) -> list[RatioGrid]:
        """Every grid of a table, by the table's name; none for a table that no price is looked up in.

        Parameters
        ----------
        name
            Of a table.

        Returns
        -------
        list[RatioGrid]
            Grids over the sizes.
        """
        owner = {
            "gemm": "gemm",
            "attention_prefill": "prefill",
            "attention_decode": "decode",
            "mla_prefill": "mla_prefill",
            "mla_decode": "mla_decode",
            "moe": "moe",
            "moe_all_to_all": "exchange",
            "collective": "comm",
            "memory_ops": "element_wise",
            "copy": "host_copy",
        }.get(name)
        return list(getattr(self, owner).grids()) if owner and name in self.cards else []

    def covers(self, name: str) -> bool:
        """Whether an MLA table holds the whole attention module, projections included.

        Parameters
        ----------
        name
            Of a table.

        Returns
        -------
        bool
            What its sidecar says; false without such a table.
        """
        return bool(self.cards[name].facts.get("covers_projections")) if name in self.cards else False
