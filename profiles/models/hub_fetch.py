"""A model's ``config.json`` from Hugging Face, where somebody asked for it: nothing here runs by itself."""

from __future__ import annotations

import os
from pathlib import Path

from profiles.errors import InputError
from profiles.models.hub_cache import cache_folder

TIMEOUT_S = 20.0
"""Seconds that the server may take for an answer."""


def fetch_config(hf_id: str) -> Path:
    """Download the ``config.json`` of an id into Hugging Face's cache, where ``load_model`` finds it from then on.

    Token, proxies and ``HF_ENDPOINT`` are those of ``huggingface_hub``.

    Raises
    ------
    InputError
        The package is not installed, or the server has no such model, keeps it from us or does not answer.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise InputError(
            f"to fetch the config.json of {hf_id}: pip install 'hybridmap[hub]', or give --model-config config.json"
        ) from None
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        found = hf_hub_download(
            hf_id, "config.json", cache_dir=cache_folder(), endpoint=endpoint, etag_timeout=TIMEOUT_S
        )
    except (OSError, ValueError, RuntimeError) as error:  # what its errors and those of its HTTP client are
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"cannot fetch the config.json of {hf_id}: {why[0]}") from None
    return Path(found)
