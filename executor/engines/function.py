"""A reward that is a function: text in, a number out. Runs on CPU, on whatever rank the role has."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.engines.interfaces import RoleEngine
from executor.records import Spent, WeightsMoved
from executor.rl.parallel_reward import ParallelReward
from executor.rl.rewards import REWARDS
from executor.rl.served_reward import ServedReward, is_url
from executor.sandbox.run import require_strict
from profiles.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from tensordict import TensorDict

    from executor.records import Identity
    from executor.rl.text import TextCodec
    from simulator.plan.groups import Degrees


@dataclass(frozen=True)
class FunctionSpec:
    """``function``: a name of ``executor.rl.rewards.REWARDS``, ``module:function`` of the user's own, or a URL.

    With more than one of ``workers`` it runs in so many processes of its own; a service answers some at once anyway.
    ``strict``: see ``sandbox.run.require_strict``; each machine that scores is asked.
    """

    function: str
    codec: TextCodec
    workers: int = 1
    strict: bool = False

    def build(self, identity: Identity, address: str, degrees: Degrees) -> RoleEngine:
        """See ``EngineChoice``."""
        engine = FunctionEngine(self)
        return RoleEngine(engine, scorer=engine)

    def disaggregated(self, address: str, senders: Degrees, receivers: Degrees) -> tuple[FunctionSpec, FunctionSpec]:
        """See ``EngineChoice``; a function has no weights to send."""
        return self, self


class FunctionEngine:
    """Scores ``responses`` against ``answers`` (token ids, -1 where there is none)."""

    spent = Spent()

    def __init__(self, spec: FunctionSpec) -> None:
        self.spec = spec

    def load(self) -> None:
        name, workers = self.spec.function, self.spec.workers
        if self.spec.strict and not is_url(name):
            require_strict()
        self.score: Callable[[str, str], float] | ParallelReward = resolve_reward(name)
        if workers > 1 and not is_url(name):
            self.score = ParallelReward(name, resolve_reward, workers)
        self.spec.codec.load()

    def weights_moved(self) -> WeightsMoved:
        return WeightsMoved()

    def scores(self, batch: TensorDict) -> torch.Tensor:
        """``score(response, answer)`` of every row, ``[B]``."""
        import torch

        codec = self.spec.codec
        responses = [
            codec.decode(tokens[mask].tolist())
            for tokens, mask in zip(batch["responses"], batch["response_mask"], strict=True)
        ]
        answers = [codec.decode(tokens[tokens >= 0].tolist()) for tokens in batch["answers"]]
        if isinstance(self.score, ServedReward | ParallelReward):
            return torch.tensor(self.score.many(responses, answers))
        return torch.tensor([float(self.score(r, a)) for r, a in zip(responses, answers, strict=True)])


def resolve_reward(name: str) -> Callable[[str, str], float]:
    """The function behind a name, or the service behind a URL; ``InputError`` where there is none."""
    if is_url(name):
        return ServedReward(name)
    if ":" not in name:
        if name not in REWARDS:
            raise UnknownNameError("reward function", name, REWARDS, hint="(or module:function, or a URL)")
        return REWARDS[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"reward function {name}: {error}") from error
    return found  # type: ignore[no-any-return]
