"""Protects what is said of a device: a card takes no reading of tables, and what is known in full agrees with it."""

import pytest

from hybridmap.answers.device_facts import card_of, facts_of
from profiles.lookup.device_tables import DeviceTables


def test_a_card_reads_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of all devices shows cards alone; which table prices what asks some tables for their least time."""
    read: list[str] = []
    lookup = DeviceTables.lookup

    def noted(tables: DeviceTables, name: str) -> object:
        read.append(name)
        return lookup(tables, name)

    monkeypatch.setattr(DeviceTables, "lookup", noted)
    card = card_of("h200-sxm")
    assert card["name"] == "h200-sxm" and not read
    assert any(table["table"] == "gemm" and table["rows"] > 1000 for table in card["tables"])
    facts = facts_of("h200-sxm")
    assert read and facts["prices"]
    assert {key: facts[key] for key in card} == card
