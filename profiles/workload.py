"""The work of one RL iteration: how many samples of what length, and how often they are trained on."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from profiles import normal
from profiles.errors import InputError

if TYPE_CHECKING:
    from profiles.records import Floats

MOST_TOKENS = 10_000_000
MOST_WEIGHT = 1e18

LengthKind = Literal["fixed", "lognormal", "histogram"]

DEFAULT_LOGNORMAL_SIGMA = 0.8
"""Spread of log response length when a job states a mean and a limit but no p99: the response lengths of the
published RL runs are known by mean and limit only, so this is a stated assumption, not a measurement."""


@dataclass(frozen=True)
class LengthDistribution:
    """Response lengths in tokens.

    Parameters
    ----------
    kind
        ``fixed``; ``lognormal`` clipped at ``maximum``, its median solved so that the clipped mean is ``mean``;
        ``histogram`` with ``lengths`` and their ``weights``.
    mean
        Mean number of generated tokens of a sample, after clipping.
    maximum
        The limit at which generation stops.
    p99
        99th percentile before clipping (lognormal only); without it sigma is ``DEFAULT_LOGNORMAL_SIGMA``.
    """

    kind: LengthKind
    mean: float
    maximum: int
    p99: float | None = None
    lengths: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.mean <= self.maximum:
            raise InputError(f"response length: the mean must lie in (0, maximum], got {self.mean} of {self.maximum}")
        if self.p99 is not None and self.p99 <= self.mean:
            raise InputError(f"response length: p99 ({self.p99}) must be above the mean ({self.mean})")
        if self.kind == "lognormal" and self.mean >= 0.999 * self.maximum:
            raise InputError(
                f"response length: a lognormal clipped at {self.maximum} cannot have mean {self.mean}; "
                "state the fixed length instead"
            )

    @staticmethod
    def fixed(length: int) -> LengthDistribution:
        """Every response has exactly ``length`` tokens."""
        if length <= 0:
            raise InputError(f"response_length must be a positive number of tokens, got {length}")
        return LengthDistribution("fixed", float(length), length)

    @staticmethod
    def histogram(lengths: tuple[int, ...], weights: tuple[float, ...]) -> LengthDistribution:
        """Empirical distribution: ``weights[i]`` samples of ``lengths[i]`` tokens."""
        if len(lengths) != len(weights) or not lengths:
            raise InputError(f"histogram: {len(lengths)} lengths and {len(weights)} weights")
        if not 0 < min(lengths) <= max(lengths) <= MOST_TOKENS:
            raise InputError(f"histogram: lengths must be positive, at most {MOST_TOKENS:,} tokens")
        if not 0 <= min(weights) <= max(weights) <= MOST_WEIGHT or sum(weights) <= 0:
            raise InputError(f"histogram: weights must be non-negative, at most {MOST_WEIGHT:g}, and not all zero")
        order = np.argsort(lengths)
        lens, wts = np.asarray(lengths)[order], np.asarray(weights, dtype=np.float64)[order]
        mean = float((lens * wts).sum() / wts.sum())
        return LengthDistribution(
            "histogram", mean, int(lens[-1]), None, tuple(map(int, lens)), tuple(map(float, wts / wts.sum()))
        )

    def quantile(self, level: Floats) -> Floats:
        """Response length in tokens at probability ``level``, same shape; clipped to [1, maximum]."""
        if self.kind == "fixed":
            return np.full(np.shape(level), float(self.maximum))
        if self.kind == "histogram":
            cumulative = np.cumsum(self.weights)
            index = np.minimum(np.searchsorted(cumulative, level), len(self.lengths) - 1)
            return np.take(np.asarray(self.lengths, dtype=np.float64), index)
        mu, sigma = _lognormal_parameters(self.mean, self.maximum, self.p99)
        return np.asarray(np.clip(np.exp(mu + sigma * normal.quantile(level)), 1.0, self.maximum), dtype=np.float64)

    def sample(self, num: int) -> Floats:
        """``num`` lengths at evenly spread quantiles (deterministic, ascending, read-only), shape ``[num]``."""
        return _sampled(self, num)


@functools.lru_cache(maxsize=64)
def _sampled(lengths: LengthDistribution, num: int) -> Floats:
    """Every price of a stage asks for the same few samples."""
    found = lengths.quantile((np.arange(num) + 0.5) / num)
    found.setflags(write=False)
    return found


def _clipped_mean(mu: float, sigma: float, maximum: float) -> float:
    """Mean of min(X, maximum) for ln X ~ N(mu, sigma)."""
    z = (np.log(maximum) - mu) / sigma
    return float(np.exp(mu + sigma**2 / 2) * normal.below(z - sigma) + maximum * (1.0 - normal.below(z)))


@functools.cache
def _lognormal_parameters(mean: float, maximum: int, p99: float | None) -> tuple[float, float]:
    """Solve (mu, sigma) from the clipped mean and, where given, the unclipped 99th percentile, by bisection."""
    z99 = float(normal.quantile(0.99))

    def mu_of(sigma: float) -> float:
        low, high = np.log(mean) - 12.0, np.log(maximum) + 12.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if _clipped_mean(middle, sigma, maximum) < mean else (low, middle)
        return float((low + high) / 2)

    if p99 is None:
        return mu_of(DEFAULT_LOGNORMAL_SIGMA), DEFAULT_LOGNORMAL_SIGMA
    low, high = 1e-3, 3.0  # at a fixed clipped mean the 99th percentile grows with sigma
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mu_of(middle) + z99 * middle < np.log(p99) else (low, middle)
    sigma = (low + high) / 2
    return mu_of(sigma), sigma


@dataclass(frozen=True)
class Workload:
    """One iteration's work; the sample unit is ``prompts x samples_per_prompt``.

    Parameters
    ----------
    prompts, samples_per_prompt
        Prompts per iteration and responses drawn for each.
    prompt_length
        Tokens of the longest prompt.
    prompt_tokens
        Mean prompt tokens. Defaults to ``prompt_length``.
    pads_prompts
        Whether training and scoring work through prompts padded to ``prompt_length``; generation engines never do.
    epochs, minibatches
        Passes over the samples, and optimizer steps per pass.
    reward_s_per_sample
        Seconds of one CPU worker per sample where the reward is a function and not a model.
    pretrain_update
        Safe-RLHF: whether the actor's updates also learn from the pretraining text, a row of a sample's length beside
        each sample. Its loss is computed either way, as in the HybridFlow paper (Table 4, ``compute_loss``).
    """

    prompts: int
    samples_per_prompt: int
    prompt_length: int
    response: LengthDistribution
    epochs: int = 1
    minibatches: int = 1
    reward_s_per_sample: float = 0.0
    prompt_tokens: float | None = None
    pretrain_update: bool = False
    pads_prompts: bool = False

    def __post_init__(self) -> None:
        for field in ("prompts", "samples_per_prompt", "prompt_length", "epochs", "minibatches"):
            if getattr(self, field) <= 0:
                raise InputError(f"workload.{field} must be a positive whole number, got {getattr(self, field)}")
        if self.reward_s_per_sample < 0:
            raise InputError(f"workload.reward_s_per_sample must not be negative, got {self.reward_s_per_sample}")
        if self.prompt_tokens is not None and not 0 < self.prompt_tokens <= self.prompt_length:
            raise InputError(
                f"workload.prompt_tokens must lie in (0, prompt_length = {self.prompt_length}], "
                f"got {self.prompt_tokens}"
            )
        if self.num_samples % self.minibatches:
            divisors = [d for d in range(1, self.num_samples + 1) if self.num_samples % d == 0]
            below = max(d for d in divisors if d < self.minibatches)
            above = min((d for d in divisors if d > self.minibatches), default=below)
            raise InputError(
                f"workload.minibatches = {self.minibatches} does not divide {self.num_samples} samples "
                f"(prompts x samples_per_prompt); the nearest that do are {below} and {above}"
            )

    @property
    def num_samples(self) -> int:
        """Responses per iteration."""
        return self.prompts * self.samples_per_prompt

    @property
    def minibatch_samples(self) -> int:
        """Samples of one optimizer step."""
        return self.num_samples // self.minibatches

    @property
    def engine_prompt_tokens(self) -> float:
        """Prompt tokens per sample as the generation engine sees them."""
        return float(self.prompt_length if self.prompt_tokens is None else self.prompt_tokens)

    @property
    def trained_prompt_tokens(self) -> float:
        """Prompt tokens per sample as training and scoring work through them."""
        return float(self.prompt_length) if self.pads_prompts else self.engine_prompt_tokens

    @property
    def padded_length(self) -> int:
        """Longest prompt plus longest response, in tokens."""
        return self.prompt_length + self.response.maximum

    @property
    def trained_tokens_per_sample(self) -> float:
        """Tokens of a sample that training and scoring work through, prompt + mean response."""
        return self.trained_prompt_tokens + self.response.mean

    @property
    def tokens(self) -> float:
        """Prompt plus response tokens of the iteration: the numerator of every tokens/s we print."""
        return self.num_samples * self.trained_tokens_per_sample
