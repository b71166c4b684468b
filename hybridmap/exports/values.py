"""Values as overrides and configurations write them."""

from __future__ import annotations

import re
from typing import Any

from profiles.errors import FileFormatError
from profiles.yaml_text import parse_yaml

_COLON = re.compile(r"""('[^']*'|"[^"]*")|:(?=\S)""")


def value_of(text: str) -> Any:
    """A value as an override writes it."""
    if text in ("null", "None", ""):
        return None
    if text.startswith("{"):  # Hydra's mappings need no blank behind a colon
        text = _COLON.sub(lambda m: m[1] or ": ", text)
    try:
        return parse_yaml(text, "value")
    except FileFormatError:
        return text


def flat(content: object, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    out: dict[str, Any] = {}
    if isinstance(content, dict):
        for key, value in content.items():
            inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
            out |= inner
    return out


def override_text(value: Any) -> str:
    """A value as a Hydra override writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, list):
        return f"[{','.join(override_text(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{override_text(each)}" for key, each in value.items()) + "}"
    return str(value)
