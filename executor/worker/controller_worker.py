"""The controller's own worker: numerical calls without a model (advantages, summaries), in a CPU process of their own.

The paper lets the controller compute advantages itself. Here they run next to it, so the controller never holds a
tensor, and what such calls steer (KL coefficient, cost multiplier) lives with them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from executor.worker.protocols import register
from executor.worker.worker import Worker

if TYPE_CHECKING:
    from tensordict import TensorDict

    from executor.records import Identity
    from executor.rl.environment_section import EnvironmentSection
    from executor.rl.hyperparameters import Hyperparameters
    from executor.rl.text import TextCodec
    from simulator.plan.groups import Degrees


class ControllerWorker(Worker):
    """Advantages and summaries of one algorithm."""

    def __init__(
        self,
        identity: Identity,
        *,
        address: str,
        degrees: Degrees,
        algorithm: str,
        hyper: Hyperparameters,
        environment: EnvironmentSection | None = None,
        codec: TextCodec | None = None,
    ) -> None:
        self.identity, self.address, self.degrees = identity, address, degrees
        self.algorithm, self.hyper = algorithm, hyper
        self.environment, self.codec = environment, codec
        self._kept: list[TensorDict] = []

    @register(protocol="ONE_TO_ALL")
    def init_model(self) -> None:
        """Set the controls to their first values, and import what the first iteration would wait for."""
        import executor.rl.algorithms  # noqa: F401
        from executor.rl.kl import AdaptiveKl, FixedKl
        from executor.rl.lagrangian import LagrangeMultiplier

        hyper = self.hyper
        self.kl: FixedKl | AdaptiveKl = FixedKl(hyper.kl_coefficient)
        if hyper.kl_target is not None:
            self.kl = AdaptiveKl(hyper.kl_coefficient, hyper.kl_target, hyper.kl_horizon)
        self.multiplier = LagrangeMultiplier(
            hyper.cost_multiplier, hyper.cost_limit, hyper.cost_learning_rate, hyper.cost_multiplier_floor
        )

    @register(protocol="3D_PROTO", returns=("advantages", "returns"))
    def compute_advantage(self, batch: TensorDict) -> TensorDict:
        """``advantages`` and ``returns``, ``[B, R]``; then the controls take their next values."""
        from executor.rl.algorithms import RUNNABLE
        from executor.rl.estimators import Estimation, mean_kl
        from executor.rl.kl import FixedKl

        hyper, runnable = self.hyper, RUNNABLE[self.algorithm]
        off_reward = self.kl if runnable.kl_place(hyper.kl_in) == "reward" else FixedKl(0.0)
        limits = (hyper.max_tokens, hyper.overlong_buffer, hyper.scale_advantages, hyper.advantage_eps)
        estimated = runnable.estimate(batch, Estimation(hyper.gamma, hyper.lam, off_reward, self.multiplier, *limits))
        self.kl = self.kl.updated(mean_kl(batch), int(batch.batch_size[0]))
        if "costs" in batch.keys():  # noqa: SIM118
            self.multiplier = self.multiplier.updated(float(batch["costs"].mean()))
        return estimated

    @register(protocol="ONE_TO_ALL")
    def controls(self) -> dict[str, float]:
        """What the controls have come to: the part of a checkpoint that lives here."""
        return {"kl_coefficient": self.kl.coefficient, "cost_multiplier": self.multiplier.value}

    @register(protocol="ONE_TO_ALL", returns=())
    def set_controls(self, kl_coefficient: float, cost_multiplier: float) -> None:
        """Resume with a checkpoint's."""
        self.kl = replace(self.kl, coefficient=kl_coefficient)
        self.multiplier = replace(self.multiplier, value=cost_multiplier)

    @register(protocol="RANK_ZERO")
    def summarise_held_out(self, batch: TensorDict) -> dict[str, float]:
        """Means of answers to held-out prompts."""
        lengths = batch["response_mask"].sum(1).float()
        return {"reward": float(batch["scores"].mean()), "response_tokens": float(lengths.mean())}

    @register(protocol="ONE_TO_ALL", returns=())
    def begin_groups(self) -> None:
        """Forget the groups that were kept: an iteration begins."""
        self._kept = []

    @register(protocol="RANK_ZERO")
    def keep_groups(self, batch: TensorDict) -> int:
        """Keep the groups of ``batch`` whose scores differ; how many rows are kept by now."""
        from executor.rl.dynamic_sampling import varied

        self._kept.append(batch[varied(batch["scores"], batch["group"])])
        return sum(len(each) for each in self._kept)

    @register(protocol="3D_PROTO", reads=())
    def kept_groups(self, rows: int) -> TensorDict:
        """The first ``rows`` rows that are kept, every column of them."""
        from executor.rl.dynamic_sampling import joined

        return joined(self._kept)[:rows]

    @register(protocol="ONE_TO_ALL", returns=())
    def begin_episodes(self, batch: TensorDict) -> None:
        """Make an environment for each row of prompts."""
        from executor.rl.environment import Episodes

        assert self.environment is not None and self.codec is not None, "a run without an environment has no episodes"
        self._episodes = Episodes(self.environment, self.codec, batch, self.hyper.max_tokens)

    @register(protocol="RANK_ZERO")
    def take_turn(self, batch: TensorDict) -> int:
        """Let the environments answer a turn of the policy; how many episodes are open."""
        return self._episodes.take(batch)

    @register(protocol="3D_PROTO", reads=())
    def turn_prompts(self) -> TensorDict:
        """What the policy reads in the next turn of the open episodes."""
        return self._episodes.prompts()

    @register(protocol="RANK_ZERO")
    def turn_tokens(self) -> int:
        """Most tokens of that turn."""
        return self._episodes.turn_tokens()

    @register(protocol="3D_PROTO", reads=())
    def finished_episodes(self) -> TensorDict:
        """Responses of all episodes, with a mask of what the policy wrote of them."""
        return self._episodes.columns()

    @register(protocol="RANK_ZERO")
    def summarise(self, batch: TensorDict) -> dict[str, float]:
        """Means of an iteration's batch: what a curve is drawn from."""
        from executor.rl.estimators import mean_kl
        from executor.rl.mismatch import mismatch
        from executor.rl.sequences import written

        lengths = batch["response_mask"].sum(1).float()
        found = {
            "reward": float(batch["scores"].mean()),
            "kl": mean_kl(batch),
            "kl_coefficient": self.kl.coefficient,
            "response_tokens": float(lengths.mean()),
            "tokens": float(lengths.sum() + batch["prompt_mask"].sum()),
        }
        if "turns" in batch.keys():  # noqa: SIM118
            found |= {"turns": float(batch["turns"].float().mean())}
            found |= {"policy_tokens": float(written(batch).sum(1).float().mean())}
        for column in ("costs", "pretrain_loss", "greedy_scores"):
            if column in batch.keys():  # noqa: SIM118
                found[column] = float(batch[column].mean())
        if "rollout_log_probs" in batch.keys():  # noqa: SIM118
            apart = mismatch(batch["log_probs"], batch["rollout_log_probs"], written(batch))
            found |= {f"mismatch/{name}": value for name, value in apart.items()}
        if "costs" in found:
            found["cost_multiplier"] = self.multiplier.value
        return found
