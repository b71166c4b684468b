"""What a reward function takes, called as a run calls it, by its worker, on prompts and answers of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.profiling.statistics import summarise

if TYPE_CHECKING:
    from collections.abc import Callable

    from executor.run_config import RunConfig

REPEATS = 15


def time_function(
    function: str,
    config: RunConfig,
    samples: int,
    prompt_length: int,
    response_length: int,
    slowness: Callable[[], float] = lambda: 1.0,
) -> float:
    """Median seconds for each sample; ``InputError`` where there is no such function.

    ``slowness`` is that of ``measure_probe``: asked before and after each call, whose seconds are divided by it.
    """
    import torch

    from executor.engines.function import FunctionSpec
    from executor.profiling.engine_step import one_rank, timed_call
    from executor.rl.data import PromptSource
    from executor.rl.hyperparameters import Hyperparameters
    from executor.rl.text import TextCodec

    spec = FunctionSpec(function, TextCodec(config.data.alphabet, config.data.tokenizer))
    rank = one_rank({"reward": spec}, Hyperparameters())
    batch = PromptSource(config.data, samples, 1, prompt_length, config.seed).batch(0)
    shape = (samples, response_length)
    answers = batch["answers"].clamp(min=0)
    batch["responses"] = answers[:, :1].expand(shape).contiguous()  # tokens that the codec has text for
    batch["response_mask"] = torch.ones(shape, dtype=torch.bool)
    times, before = [], slowness()
    for _ in range(REPEATS):
        seconds, after = timed_call(rank, "reward", "compute_reward", batch)[1], slowness()
        times.append(2.0 * seconds / (before + after))
        before = after
    return summarise(times).median_s / samples
