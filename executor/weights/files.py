"""Opening files of weights: safetensors alone, which hold numbers and names and nothing that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiles.errors import FileFormatError

if TYPE_CHECKING:
    from pathlib import Path


def open_weights(file: Path) -> Any:
    """An open safetensors file, whose tensors are read when they are asked for; a context manager, too.

    ``FileFormatError`` if it cannot be read as one: header, offsets and size are checked here.
    """
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise FileFormatError(f"{file}: cannot be read as a safetensors file ({error})") from None
