"""Configs that Hugging Face's own tools have downloaded to this machine: read, never fetched."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_ID = re.compile(r"[\w.-]+/[\w.-]+")


def cache_folder() -> Path:
    """Where Hugging Face keeps what it downloads: ``HF_HUB_CACHE``, else ``HF_HOME/hub``, else the home's default."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return Path(folder)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"


def cached_config(hf_id: str) -> Path | None:
    """The ``config.json`` of an id in the cache: of the revision ``main``, else of the newest that is there.

    Parameters
    ----------
    hf_id
        Organisation and name, ``Qwen/Qwen2.5-7B``; anything else is in no cache.

    Returns
    -------
    Path or None
        ``None`` where nothing was downloaded.
    """
    if not _ID.fullmatch(hf_id) or hf_id.startswith("."):
        return None
    folder = cache_folder() / f"models--{hf_id.replace('/', '--')}"
    with suppress(OSError):  # a name too long for a file, or a cache that is not ours to read
        revision = _main_revision(folder)
        named = folder / "snapshots" / revision / "config.json"
        if re.fullmatch(r"[0-9a-f]+", revision) and named.is_file():
            return named
        found = [path for path in folder.glob("snapshots/*/config.json") if path.is_file()]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)
    return None


def _main_revision(folder: Path) -> str:
    """The commit that ``main`` was when it was downloaded; empty where that is not written down."""
    try:
        return (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
