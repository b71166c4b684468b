"""The one JSON style of hybridmap."""

from __future__ import annotations

import json


def to_json(document: object) -> str:
    """Readable, plain ASCII, no NaN, a newline at the end; equal documents give equal bytes."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
