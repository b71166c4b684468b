"""What a reward function takes, called as a run calls it, by its worker, on prompts and answers of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.profiling.statistics import summarise

if TYPE_CHECKING:
    from executor.run_config import RunConfig

REPEATS = 15


def time_function(
    function: str, config: RunConfig, samples: int, prompt_length: int, response_length: int, pace_s: float | None
) -> float:
    """Median seconds for each sample, at the pace of a CPU profile; ``InputError`` where there is no such function."""
    import torch

    from executor.engines.function import FunctionSpec
    from executor.profiling.core_pace import OwnPace
    from executor.profiling.engine_step import one_rank, timed_call
    from executor.profiling.environment import use_threads
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
    use_threads(1)  # as a rank has, and the profile's steps
    core, times = OwnPace() if pace_s else None, []
    for _ in range(REPEATS):
        before_s = core.measure_s() if core else 1.0
        seconds = timed_call(rank, "reward", "compute_reward", batch)[1]
        beside_s = (before_s + core.measure_s()) / 2.0 if core else 1.0
        times.append(seconds * (pace_s or 1.0) / beside_s)
    return summarise(times).median_s / samples
