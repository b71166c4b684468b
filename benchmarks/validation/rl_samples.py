"""The samples of a published RL iteration: prompts, lengths, optimizer steps; what is inferred is said."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from benchmarks.validation.names import NotPredicted, integer, is_empty, number, text_of, tokens_of
from profiles.workload import LengthDistribution, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

PROMPT_TOKENS = 115
"""Mean prompt where only the response length is published: short mathematics problems have 100 to 130 tokens."""


def workload_of(cells: Mapping[str, Any], assumed: list[str]) -> Workload:
    """Prompts, lengths and optimizer steps of a row; ``NotPredicted`` where no default would be honest."""
    response = _response_tokens(cells, assumed)
    prompt = _prompt_tokens(cells, response, assumed)
    limit = length_of(cells, "max_response_len") or length_of(cells, "max_seq_len")
    longest = length_of(cells, "max_seq_len")
    if limit is None:
        raise NotPredicted("no limit of the response length is stated")
    if longest is not None and limit >= longest:
        limit = max(longest - prompt, response)
    prompts = _prompts(cells)
    per_prompt = _samples_per_prompt(cells, prompts)
    spread = LengthDistribution.fixed(round(response))
    if response < 0.995 * limit:
        spread = LengthDistribution("lognormal", float(response), int(limit))
    steps = _optimizer_steps(cells, prompts, per_prompt, assumed)
    return Workload(prompts, per_prompt, max(1, round(prompt)), spread, minibatches=steps)


def _prompts(cells: Mapping[str, Any]) -> int:
    """Prompts of a step, or samples of a step over samples of a prompt."""
    samples, each = (number(cells.get(name)) for name in ("samples_per_step", "samples_per_prompt"))
    if is_empty(cells.get("prompts_per_step")) and samples and each and samples % each == 0:
        return integer(samples / each, 0)
    return stated(cells, "prompts_per_step")


def length_of(cells: Mapping[str, Any], column: str) -> float | None:
    """A length in tokens, ``None`` where the cell is empty; ``NotPredicted`` for one that is no length."""
    if is_empty(cells.get(column)):
        return None
    tokens = tokens_of(cells.get(column))
    if tokens is None or tokens <= 0:
        raise NotPredicted(f"{column} is {text_of(cells.get(column))}, which is no length in tokens")
    return tokens


def _response_tokens(cells: Mapping[str, Any], assumed: list[str]) -> float:
    """Mean response; where only rates are published, what they say of a whole sample, less its prompt."""
    stated = length_of(cells, "mean_response_len")
    if stated is not None:
        return stated
    whole = _tokens_per_sample(cells)
    if whole is None:
        raise NotPredicted("the mean response length is not stated")
    response = whole - (length_of(cells, "mean_prompt_len") or PROMPT_TOKENS)
    if response < 1:
        raise NotPredicted(f"{whole:.0f} tokens per sample leave none for a response")
    assumed.append(f"mean response length inferred from published rates: {response:.0f} tokens")
    return response


def _tokens_per_sample(cells: Mapping[str, Any]) -> float | None:
    """Prompt and response of a sample, from throughput and time or as a remark states it; ``None`` without either."""
    derived = number(cells.get("derived_tokens_per_sample"))
    if derived is not None:
        return derived
    names = ("tokens_per_s_per_gpu", "step_time_s", "num_gpus", "samples_per_step", "prompts_per_step")
    rate, seconds, gpus, samples, prompts = (number(cells.get(name)) for name in names)
    samples = samples or (prompts or 0.0) * (number(cells.get("samples_per_prompt")) or 0.0)
    if rate and seconds and gpus and samples:
        return rate * seconds * gpus / samples
    remark = re.search(r"avg num tokens'? (\d[\d,]*) per sample", text_of(cells.get("notes")).lower())
    return float(remark[1].replace(",", "")) if remark else None


def _samples_per_prompt(cells: Mapping[str, Any], prompts: int) -> int:
    if not is_empty(cells.get("samples_per_prompt")) or is_empty(cells.get("samples_per_step")):
        if is_empty(cells.get("samples_per_prompt")):
            raise NotPredicted("samples per prompt are not stated")
        return integer(cells.get("samples_per_prompt"), 1)
    samples = integer(cells.get("samples_per_step"), 1)
    if samples % prompts:
        raise NotPredicted(f"{samples} samples are no whole number for each of {prompts} prompts")
    return samples // prompts


def _prompt_tokens(cells: Mapping[str, Any], response: float, assumed: list[str]) -> float:
    stated = length_of(cells, "mean_prompt_len")
    if stated is not None:
        return stated
    whole = _tokens_per_sample(cells)
    if is_empty(cells.get("mean_response_len")):
        return float(PROMPT_TOKENS)
    if whole is not None and 32 <= whole - response <= 200:
        assumed.append("prompt length from the published throughput")
        return whole - response
    assumed.append(f"prompt length not stated: {PROMPT_TOKENS} tokens")
    return float(PROMPT_TOKENS)


def _optimizer_steps(cells: Mapping[str, Any], prompts: int, per_prompt: int, assumed: list[str]) -> int:
    """Optimizer steps per iteration; verl and SkyRL count their mini-batch in prompts, others in samples."""
    batch = None if is_empty(cells.get("global_batch")) else integer(cells.get("global_batch"), 0)
    if batch is None:
        assumed.append("optimizer steps not stated: 1")
        return 1
    in_prompts = re.search(r"verl|skyrl", text_of(cells.get("system")).lower()) is not None
    return max(1, round(prompts * per_prompt / (batch * (per_prompt if in_prompts else 1))))


def stated(cells: Mapping[str, Any], column: str) -> int:
    """The count of a column that no default stands for; ``NotPredicted`` where it is empty."""
    if number(cells.get(column)) is None:
        raise NotPredicted(f"{column} is not stated")
    return integer(cells.get(column), 0)
