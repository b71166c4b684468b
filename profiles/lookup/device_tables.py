"""The lookups of one device folder, each read and pivoted when first used.

``<operator>.parquet`` is what the trainer reads, and every engine without tables of its own;
``<operator>.<engine>@<release>.parquet`` is what that release of an engine measured. An engine is priced by its own
tables, nearest release first; what they do not hold, the operator's common table prices.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from profiles.errors import NoBasisError
from profiles.lookup import releases
from profiles.lookup.attention import DecodeLookup, PrefillLookup
from profiles.lookup.collective import CollectiveLookup
from profiles.lookup.gemm import GemmLookup
from profiles.lookup.linear import LinearLookup
from profiles.lookup.memory import BytesLookup
from profiles.lookup.mla import MlaLookup
from profiles.lookup.moe import MoeExchangeLookup, MoeLookup
from profiles.lookup.pricing import missing
from profiles.lookup.sparse import SparseLookups
from profiles.lookup.table import Table, TableCard, read_table
from profiles.records import Basis, where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from profiles.hardware import DeviceSpec
    from profiles.lookup.grid import RatioGrid
    from profiles.records import Priced


FLOOR_RATIO = 1.5
"""Least time of a module over that of another engine's from which on it is its host's time, not its GPU's."""

MODULES = ("mla_prefill", "mla_decode", "sparse_prefill", "sparse_decode")
"""Operators of latent attention whose tables hold the whole layer's part."""
_STANDS_IN = ("gemm", "moe")
"""Operators whose number formats other engines' tables may hold."""


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

    def __init__(
        self,
        folder: Path,
        reference: DeviceSpec,
        cards: Mapping[str, TableCard],
        engine: tuple[str, str] | None = None,
        shared: dict[str, Any] | None = None,
    ) -> None:
        self._folder, self.reference, self.cards, self.engine = folder, reference, cards, engine
        self._lookups: dict[str, Any] = {} if shared is None else shared
        self._names: dict[tuple[str, str], list[str]] = {}
        self._links: DeviceTables | None = None

    def of_engine(self, family: str, release: str) -> DeviceTables:
        """The same folder as an engine is priced by it; lookups that were read are shared.

        Parameters
        ----------
        family, release
            Of the engine, as table names have them: ``sglang``, ``0.5.9``.

        Returns
        -------
        DeviceTables
            This one where the folder holds nothing of the engine.
        """
        if not any(releases.engine_of(name, card)[0] == family for name, card in self.cards.items()):
            return self
        found = DeviceTables(self._folder, self.reference, self.cards, (family, release), self._lookups)
        found._links = self._links and self._links.of_engine(family, release)
        return found

    def with_links_of(self, other: DeviceTables) -> DeviceTables:
        """The same folder with the collectives of another: where those of a part were measured in an unlike server.

        Parameters
        ----------
        other
            Whose collectives stand for this one's, by the links of its own device.

        Returns
        -------
        DeviceTables
            Lookups that were read are shared.
        """
        found = DeviceTables(self._folder, self.reference, self.cards, self.engine, self._lookups)
        found._links = other
        return found

    def names(self, operator: str, dtype: str = "") -> list[str]:
        """Tables that may price an operator, best first: the engine's own by nearness of release, then the common one.

        Parameters
        ----------
        operator
            Name of the common table.
        dtype
            Number format, where some releases of an engine run another's kernels for it.

        Returns
        -------
        list[str]
            Names of tables of the folder.
        """
        if (operator, dtype) not in self._names:
            common = [operator] if operator in self.cards else []
            own: list[str] = []
            if self.engine is not None:
                part = self.reference.device_string
                own = releases.ordered(operator, self.cards, *self.engine, dtype, part)
            found = list(dict.fromkeys([*own, *common]))
            found = self._less_floors(found) if operator in MODULES and self.engine else found
            self._names[operator, dtype] = found
        return self._names[operator, dtype]

    def _less_floors(self, names: list[str]) -> list[str]:
        """Modules of other engines first where a module's least time is a host's: it was timed without a graph."""
        if not names or not self._is_module(names[0]):
            return names
        operator = releases.operator_of(names[0])
        peers = [n for n in self.cards if releases.operator_of(n) == operator and self._is_module(n)]
        least = {name: self.lookup(name).least_s for name in peers}
        good = [name for name in peers if least[names[0]] > FLOOR_RATIO * least[name]]
        return list(dict.fromkeys([*sorted(good, key=lambda name: least[name]), *names]))

    def _is_module(self, name: str) -> bool:
        """Whether a table of latent attention holds the layer's projections, as those of sparse attention all do."""
        return releases.operator_of(name).startswith("sparse") or _covers(self.cards[name])

    def price(self, operator: str, what: str, ask: Callable[[Any], Priced], dtype: str = "") -> Priced:
        """What the first table says that holds what is asked for.

        Parameters
        ----------
        operator, what
            Name of the common table, and words for a message.
        ask
            Asks a lookup of the operator for a price.
        dtype
            As in ``names``.

        Returns
        -------
        Priced
            The price.

        Raises
        ------
        NoBasisError
            No table of the operator holds it; the message is that of the best table.
        """
        first: NoBasisError | None = None
        own = self.names(operator, dtype)
        for name in self._in_turn(operator, own):
            try:
                found = ask(self.lookup(name))
            except NoBasisError as error:
                first = first or error
            else:
                return found if name in own else found.at_best(Basis.ANALYTIC)
        raise first or missing(self.reference.name, operator, what)

    def _in_turn(self, operator: str, own: list[str]) -> Iterator[str]:
        """An engine's own tables, then those of others, which are looked for where its own do not price alone."""
        yield from own
        yield from self._of_others(operator, own)

    def _of_others(self, operator: str, own: list[str]) -> list[str]:
        """Tables of other engines, which stand in for a number format that an engine's own do not hold."""
        if self.engine is None or operator not in _STANDS_IN:
            return []
        of_each = {releases.engine_of(n, self.cards[n])[0] for n in self.cards if releases.operator_of(n) == operator}
        newest = (n for family in sorted(of_each) for n in releases.ordered(operator, self.cards, family, "999"))
        return [name for name in newest if name not in own]

    def fastest(self, operator: str, what: str, ask: Callable[[Any], Priced], dtype: str = "") -> Priced:
        """The shortest time of any table that measured what is asked for; what none measured is priced as ever.

        Parameters
        ----------
        operator, what, ask, dtype
            As in ``price``.

        Returns
        -------
        Priced
            The price, as what one kernel is known to reach on this device.

        Raises
        ------
        NoBasisError
            No table of the operator holds it.
        """
        best = self.price(operator, what, ask, dtype)
        for name in (n for n in self.cards if releases.operator_of(n) == operator):
            try:
                other = ask(self.lookup(name))
            except NoBasisError:
                continue
            measured = other.weakest <= Basis.INTERPOLATED  # this shape's own, not a neighbour's
            best = where(measured & (other.s < best.s), other.at_best(Basis.INTERPOLATED), best)
        return best

    def lookup(self, name: str) -> Any:
        """The lookup of one table, by its name.

        Parameters
        ----------
        name
            Of a table of the folder.

        Returns
        -------
        Any
            The lookup of its operator.
        """
        if name not in self._lookups:
            table = read_table(self._folder / f"{name}.parquet", self.cards[name])
            self._lookups[name] = _LOOKUPS[releases.operator_of(name)](table, self.reference, self.cards[name])
        return self._lookups[name]

    def _table(self, name: str, what: str) -> Table:
        if name not in self.cards:
            raise missing(self.reference.name, name, what)
        return read_table(self._folder / f"{name}.parquet", self.cards[name])

    @property
    def has_own_links(self) -> bool:
        """Whether collectives are those of this folder, not of another (``with_links_of``)."""
        return self._links is None

    @cached_property
    def comm(self) -> CollectiveLookup:
        if self._links is not None:
            return self._links.comm
        own = self.names("custom_all_reduce")
        custom = self._table(own[0], "all-reduce") if own else None
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
        if name not in self.cards:
            return []
        operator = releases.operator_of(name)
        if operator in _LOOKUPS and not operator.startswith("sparse"):
            return list(self.lookup(name).grids())
        owner = {"collective": "comm", "memory_ops": "element_wise", "copy": "host_copy"}.get(operator)
        return list(getattr(self, owner).grids()) if owner else []

    def covers(self, name: str) -> bool:
        """Whether the MLA table that prices comes first holds the whole attention module, projections included.

        Parameters
        ----------
        name
            Of the operator.

        Returns
        -------
        bool
            What its sidecar says; false without such a table.
        """
        names = self.names(name)
        return bool(names) and _covers(self.cards[names[0]])


def _covers(card: TableCard) -> bool:
    return bool(card.facts.get("covers_projections"))


_LOOKUPS: dict[str, Callable[[Table, DeviceSpec, TableCard], Any]] = {
    "gemm": lambda table, spec, card: GemmLookup(table, spec),
    "attention_prefill": lambda table, spec, card: PrefillLookup(table, spec),
    "attention_decode": lambda table, spec, card: DecodeLookup(table, spec),
    "attention_prefill_window": lambda table, spec, card: PrefillLookup(table, spec),
    "attention_decode_window": lambda table, spec, card: DecodeLookup(table, spec),
    "mla_prefill": lambda table, spec, card: MlaLookup(table, spec, "seq", _covers(card)),
    "mla_decode": lambda table, spec, card: MlaLookup(table, spec, "context", _covers(card)),
    "sparse_prefill": lambda table, spec, card: SparseLookups(table, spec, "seq"),
    "sparse_decode": lambda table, spec, card: SparseLookups(table, spec, "context"),
    "moe": lambda table, spec, card: MoeLookup(table, spec),
    "moe_all_to_all": lambda table, spec, card: MoeExchangeLookup(table, spec),
    "linear_prefill": lambda table, spec, card: LinearLookup(table, spec, ("batch", "seq")),
    "linear_decode": lambda table, spec, card: LinearLookup(table, spec, ("batch",)),
}
"""How the table of each operator is read."""
