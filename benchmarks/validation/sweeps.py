"""What a published row says of how its engine was launched: release, flags of the sweep, lengths of the requests."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.validation.dates import month_or_typical
from benchmarks.validation.names import NotPredicted, integer, text_of
from profiles.engine_facts import load_generation_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiles.engine_facts import GenerationEngine

# First release of the engines that each facts file stands for.
_ENGINES: dict[str, tuple[tuple[tuple[int, ...], str], ...]] = {
    "vllm": (((0, 0), "vllm@0.3.1"), ((0, 6), "vllm@0.12"), ((0, 14), "vllm@0.32")),
    "sglang": (((0, 0), "sglang@0.5"),),
    "tensorrtllm": (((0, 0), "tensorrt-llm@0.6"), ((0, 8), "tensorrt-llm@0.10"), ((0, 18), "tensorrt-llm@1.0")),
}
_ALIASES = {
    "trtllm": "tensorrtllm",
    "trt": "tensorrtllm",
    "trtllmpytorch": "tensorrtllm",
    "tensorrtllmpytorch": "tensorrtllm",
    "dynamotrt": "tensorrtllm",
    "dynamotrtllm": "tensorrtllm",
    "dynamosglang": "sglang",
    "dynamovllm": "vllm",
}

# Release that was current in a month, for rows that state a date and no release: dates of the releases on PyPI.
_CURRENT: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        *(("2024-11", "0.6.4"), ("2025-03", "0.8.0"), ("2025-07", "0.10.0"), ("2025-10", "0.11.0")),
        *(("2025-12", "0.12.0"), ("2026-02", "0.15.0"), ("2026-04", "0.19.0"), ("2026-07", "0.24.0")),
    ),
    "sglang": (("2025-09", "0.5.2"), ("2025-11", "0.5.5"), ("2026-01", "0.5.8"), ("2026-03", "0.5.9")),
    "tensorrtllm": (("2025-09", "1.0.0"), ("2025-12", "1.2.0rc4"), ("2026-02", "1.2.0rc6"), ("2026-03", "1.3.0rc4")),
}

DRAWN_SHARE = 0.8
"""InferenceX draws lengths between this share of the stated ones and the stated ones (``--random-range-ratio 0.8``)."""

CLIENT_S = 0.03
"""What its client and the server's front end add to a first token: HTTP both ways, tokenizer, hand-over. Fitted on TTFT
of its vLLM rows, each family once (29 to 39 ms with one left out); 15 ms were Llama-3.1-70B's alone."""

FP8_CHECKPOINTS = ("fp8", "fp8_block", "nvfp4")
"""Formats with which sweeps ask for an FP8 cache. NVIDIA's own sweep does so of TensorRT-LLM: its rows with one GPU
hold 196,608 to 294,912 tokens of Qwen3-32B without a queue, and a cache of 16 bits has room for 151,000."""

BEYOND_A_PROMPT = 1500
"""What aiconfigurator's generator adds to sequences and one prompt for the token budget of vLLM and TensorRT-LLM
(``agg max_num_tokens = max_batch_size + isl + 1500``, all its releases from 0.3 of October 2025 on)."""

MIXES_CHUNKS = (0, 5, 6)
"""First release of SGLang that it starts with ``--enable-mixed-chunk``: rule and flags of 0.5.6.post2 both came with
aiconfigurator 0.6.0; 0.5.0, which knows SGLang up to 0.5.4, has neither."""

_INTERNAL_SWEEP = re.compile(r"nvidia internal sweep", re.IGNORECASE)
_INFERENCE_X = re.compile(r"inference(x|max)\b", re.IGNORECASE)


def system_of(cells: Mapping[str, Any]) -> str:
    """Name of the engine, as the row writes it."""
    return text_of(cells.get("backend")) or text_of(cells.get("system"))


def is_inference_x(cells: Mapping[str, Any]) -> bool:
    """Whether the row is of the public InferenceX (InferenceMAX) sweep, whose flags and lengths are published."""
    return bool(_INFERENCE_X.search(" ".join(text_of(cells.get(c)) for c in ("source", "source_ref", "notes"))))


def is_performance_overview(cells: Mapping[str, Any]) -> bool:
    """Whether the row is of TensorRT-LLM's own overview, which runs NVIDIA's FP8 checkpoints: one scale a tensor."""
    return "performance overview" in text_of(cells.get("source")).lower()


OVERVIEW_REQUESTS = {(1000, 1000): 3000}
"""Requests that the overview sends at lengths for which a row does not say it; its rows of release 1.0 do."""


def requests_of(cells: Mapping[str, Any], lengths: tuple[int, int]) -> int:
    """Requests that the row's source sent, as the row or its source says; 0 where neither does."""
    stated = integer(cells.get("num_requests"), 0)
    return stated or (OVERVIEW_REQUESTS.get(lengths, 0) if is_performance_overview(cells) else 0)


def shortest_share(cells: Mapping[str, Any]) -> float:
    """Shortest length of the row's requests over the stated one."""
    return DRAWN_SHARE if is_inference_x(cells) else 1.0


def launched_engine(cells: Mapping[str, Any], latent: bool = False) -> GenerationEngine:
    """Facts of the newest profiled release that is no newer than the row's, with the flags of the row's sweep.

    ``latent``: the model's cache is MLA's, which the sweep leaves in the format that the engine chooses.

    Raises
    ------
    NotPredicted
        No facts of such an engine.
    """
    name = re.sub(r"[^a-z]", "", system_of(cells).lower())
    family = _ALIASES.get(name) or next((known for known in _ENGINES if known in name), name)  # "vLLM (V1, ROCm)"
    if family not in _ENGINES:
        raise NotPredicted(f"no facts of the engine '{system_of(cells)}'")
    words = text_of(cells.get("backend_version"))
    engine = load_generation_engine(facts_file(cells, family, words))
    engine = replace(engine, release=_release(cells, family, words))
    if _INTERNAL_SWEEP.search(text_of(cells.get("source"))):
        return _as_generated(cells, engine)
    if not is_inference_x(cells):
        return engine
    front_end_s = engine.front_end_s + CLIENT_S
    cache = engine.fp8_cache_with if latent else FP8_CHECKPOINTS
    # vLLM has --async-scheduling in its scripts, SGLang what its facts say. That for gpt-oss on Blackwell sets
    # VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1, as vLLM's recipe advises. All capture steps of every load.
    ahead = engine.plans_ahead or engine.family == "vllm"
    flags = {"mxfp8_activations": True, "fp8_cache_with": cache, "captured_tokens": 0.0}
    return replace(engine, plans_ahead=ahead, front_end_s=front_end_s, **flags)


def _as_generated(cells: Mapping[str, Any], engine: GenerationEngine) -> GenerationEngine:
    """An engine with the flags of aiconfigurator's generator, which deployed the rows of NVIDIA's own sweep."""
    if engine.fp8_cache_with:
        engine = replace(engine, fp8_cache_with=FP8_CHECKPOINTS)
    if engine.family == "sglang":
        return replace(engine, scheduler="mixed") if _numbers(engine.release) >= MIXES_CHUNKS else engine
    prompt, batch = (integer(cells.get(name), 0) for name in ("input_len", "max_batch"))
    return replace(engine, max_batched_tokens=batch + prompt + BEYOND_A_PROMPT) if prompt and batch else engine


def facts_file(cells: Mapping[str, Any], family: str, words: str) -> str:
    """Name of the newest facts of a family that are no newer than the release that ``words`` or the date say."""
    release = release_of(cells, family, words)
    return [file for first, file in _ENGINES[family] if first <= release][-1]


def release_of(cells: Mapping[str, Any], family: str, words: str) -> tuple[int, ...]:
    """Major and minor number of the release that ``words`` or the date say."""
    return _pair(_release(cells, family, words))


def _release(cells: Mapping[str, Any], family: str, words: str) -> str:
    """The row's release, or the one that was current at its date; the newest facts' own where it states neither."""
    found = re.search(r"\d+\.\d+[\w.]*", words)
    if found:
        return found[0]
    date = month_or_typical(cells)
    current = [release for first, release in _CURRENT.get(family, ()) if date and first <= date]
    return current[-1] if current else _ENGINES[family][-1][1].split("@")[1]


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])


def _pair(release: str) -> tuple[int, ...]:
    return _numbers(release)[:2]
