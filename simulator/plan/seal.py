"""What a file says of itself: what it was computed from, and whether it still says what was written."""

from __future__ import annotations

import hashlib
import json
from typing import Literal, TypeVar

from simulator.plan.plan import Record


class Sealed(Record):
    """A record that is written to a file; ``digest`` is that of all else in it, empty where it was never written.

    Keys that have their defaults do not count, so a file from before a key was known keeps its digest.
    """

    schema_version: Literal[1] = 1
    digest: str = ""

    def digest_now(self) -> str:
        """The SHA-256 of all else that the record says."""
        return fingerprint(self.model_dump(mode="json", exclude={"digest"}, exclude_defaults=True))

    @property
    def is_edited(self) -> bool:
        """Whether somebody changed the record after it was sealed."""
        return bool(self.digest) and self.digest != self.digest_now()


_Sealed = TypeVar("_Sealed", bound=Sealed)


def sealed(record: _Sealed, computed_from: str | None = None) -> _Sealed:
    """The record with the digest of what it says now; ``computed_from`` is set where the record has such a key."""
    if computed_from is not None:
        record = record.model_copy(update={"computed_from": computed_from})
    return record.model_copy(update={"digest": record.digest_now()})


def fingerprint(*documents: object) -> str:
    """The SHA-256 of some JSON documents, whatever the order of their keys."""
    content = documents[0] if len(documents) == 1 else documents
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
