"""What a reward function takes, called as a run calls it, on prompts and answers of the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from executor.measure.statistics import summarise

if TYPE_CHECKING:
    from executor.run_config import RunConfig

REPEATS = 15


def time_function(function: str, config: RunConfig, samples: int, prompt_length: int, response_length: int) -> float:
    """Median seconds for each sample; ``InputError`` where there is no such function."""
    import torch

    from executor.data import PromptSource
    from executor.engines.function import FunctionEngine, FunctionSpec
    from executor.text import TextCodec

    engine = FunctionEngine(FunctionSpec(function, TextCodec(config.data.alphabet, config.data.tokenizer)))
    engine.load()
    batch = PromptSource(config.data, samples, 1, prompt_length, config.seed).batch(0)
    shape = (samples, response_length)
    answers = batch["answers"].clamp(min=0)
    batch["responses"] = answers[:, :1].expand(shape).contiguous()  # tokens that the codec has text for
    batch["response_mask"] = torch.ones(shape, dtype=torch.bool)
    times = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        engine.scores(batch)
        times.append(time.perf_counter() - start_s)
    return summarise(times).median_s / samples
