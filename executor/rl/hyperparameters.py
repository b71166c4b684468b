"""``run.learning``: constants of the learning rules. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from executor.section import NotNegative, Positive, Section

LossAggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

VERL_DEFAULTS: dict[str, Any] = {
    "lam": 1.0,
    "value_clip": 0.5,
    "kl_coefficient": 0.0,
    "dual_clip": 3.0,
    "kl_clamp": 10.0,
    "advantage_eps": 1e-6,
}
"""Where verl's algorithms start from other constants than ours: its configuration of release 0.9, KL off."""


class Hyperparameters(Section):
    """Constants of the learning rules, and the parts of the workload that workers need.

    ``clip_high`` bounds growing probabilities where that is not ``clip`` (DAPO takes 0.28). ``dual_clip`` bounds the
    loss of a token with a negative advantage at so many times it. ``overlong_buffer``: tokens before the limit in which
    DAPO's score falls. ``loss_aggregation``: see ``rl.loss_terms``; with ``seq-mean-token-sum-norm`` and without
    ``scale_advantages`` GRPO is Dr. GRPO. ``advantage_eps`` is added to the deviation that GRPO divides by.

    ``kl_in`` says whether the KL from the reference counts in the ``loss`` or is taken off the ``reward``; unless
    given, GRPO has it in the loss and the others off the reward. ``kl_estimator`` of the KL in the loss, its ``k3``
    bounded by ``kl_clamp`` a token. ``kl_target`` makes the KL coefficient adaptive. ``value_clip`` of ``null`` does
    not clip values.

    ``temperature`` divides the logits in sampling and in every pass over what was sampled; vLLM takes none below 0.01.
    ``top_p`` and ``top_k`` (0: all) leave unlikely tokens out. ``end_token`` ends responses: its number, ``tokenizer``
    for those of the tokenizer (an alphabet has none), or ``never``. ``importance`` weighs the policy loss by
    how much likelier the trainer finds the sampled tokens than the engine did, up to ``importance_cap``; it takes a job
    with ``implementation: {old_log_prob: trainer}``, as verl's are. ``dynamic_sampling`` drops groups whose responses
    all score alike and samples on for others (DAPO), at most ``most_batches`` batches of prompts an iteration.
    ``reproducible`` has vLLM draw each sample by a seed of its own, so that its tokens are the same in any layout.
    Unless given, it is on where ranks have no GPU, and where vLLM draws such samples at once, as is priced.

    ``cost_multiplier_floor`` bounds how far the cost's multiplier falls while the cost is below its limit: it comes
    back as slowly as it fell, so a low floor lets the limit be broken for long. ``defaults: verl`` takes verl 0.9's
    constants for what is not given (``VERL_DEFAULTS``, and ``VERL_OPTIMIZER`` for ``run.optimizer``).
    """

    defaults: Literal["hybridmap", "verl"] = "hybridmap"
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95
    clip: Positive = 0.2
    clip_high: Positive | None = None
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    loss_aggregation: LossAggregation = "token-mean"
    scale_advantages: bool = True
    advantage_eps: Positive = 1e-4
    overlong_buffer: Annotated[int, Field(ge=0)] = 0
    value_clip: Positive | None = 0.2
    kl_in: Literal["loss", "reward"] | None = None
    kl_coefficient: NotNegative = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_clamp: Positive | None = None
    kl_target: Positive | None = None
    kl_horizon: Annotated[int, Field(ge=1)] = 10_000
    entropy_coefficient: NotNegative = 0.0
    pretrain_coefficient: NotNegative = 0.1
    cost_limit: float = 0.0
    cost_learning_rate: Positive = 0.05
    cost_multiplier: Positive = 1.0
    cost_multiplier_floor: Positive = 1e-4
    temperature: Annotated[float, Field(ge=0.01)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    reproducible: bool | None = None
    end_token: Annotated[int, Field(ge=0)] | Literal["tokenizer", "never"] = "tokenizer"
    importance: Literal["none", "token", "sequence"] = "none"
    importance_cap: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    dynamic_sampling: bool = False
    most_batches: Annotated[int, Field(ge=1)] = 10
    end_tokens: tuple[int, ...] = ()
    recomputes_log_probs: bool = False
    num_samples: Annotated[int, Field(ge=1)] = 1
    max_tokens: Annotated[int, Field(ge=1)] = 1
    epochs: Annotated[int, Field(ge=1)] = 1
    minibatches: Annotated[int, Field(ge=1)] = 1
    staleness_bound: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _take_defaults(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("defaults") == "verl":
            return {**VERL_DEFAULTS, **given}
        return given
