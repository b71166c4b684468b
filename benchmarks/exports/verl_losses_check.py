"""What verl's own functions make of given columns: run inside verl's environment, one JSON document in and out.

    python verl_losses_check.py < columns.json

The document has ``new``, ``old``, ``rollout``, ``reference``, ``advantages``, ``values``, ``returns``, ``scores``
(``[B, R]`` but for the last, ``[B]``), ``mask`` and ``group``.
"""

import json
import sys
from types import SimpleNamespace

import numpy as np
import torch
from verl.trainer.config.algorithm import AlgoConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def actor(**changes):
    found = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "global_batch_info": {}, **changes}
    made = SimpleNamespace(**found)
    made.get = lambda name, default=None: getattr(made, name, default)
    return made


def answers(given):
    mask = given["mask"].float()
    pair = (given["old"], given["new"], given["advantages"], mask)
    weights = {}
    for level in ("token", "sequence"):
        log_ratio = given["old"] - given["rollout"]
        weights[level] = rollout_corr_helper.compute_rollout_correction_weights(log_ratio, mask, level, 2.0)[0]
    losses = {}
    for mode in MODES:
        config = actor(clip_ratio_high=0.28, clip_ratio_c=3.0)
        losses[mode] = core_algos.compute_policy_loss_vanilla(*pair, mode, config)[0]
        for level, each in weights.items():
            weighed = core_algos.compute_policy_loss_vanilla(*pair, mode, config, rollout_is_weights=each)[0]
            losses[f"{mode} {level}"] = weighed
        for kind in ("k1", "k2", "k3"):
            kl = core_algos.kl_penalty(given["new"], given["reference"], kind)
            losses[f"{mode} {kind}"] = core_algos.agg_loss(kl, mask, mode)
    value = core_algos.compute_value_loss(given["values"], given["returns"], given["old"], mask, 0.5)[0]
    return {
        "losses": losses,
        "value": value,
        "weights": weights,
        "mismatch": rollout_corr_helper.compute_offpolicy_metrics(given["old"], given["rollout"], mask),
        "advantages": advantages(given, mask),
    }


def advantages(given, mask):
    last = mask.cumsum(1) == mask.sum(1, keepdim=True)
    rewards = given["scores"][:, None] * last * mask
    index, config = np.array(given["group"]), AlgoConfig(gamma=0.9)
    found = {
        "ppo": core_algos.compute_gae_advantage_return(rewards, given["values"], mask, 0.9, 0.95)[0] * mask,
        "rloo": core_algos.compute_rloo_outcome_advantage(rewards, mask, index)[0],
        "reinforce++": core_algos.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config)[0],
    }
    for name, scaled in (("grpo", True), ("dr-grpo", False)):
        made = core_algos.compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=scaled)
        found[name] = made[0]
    return found


def plain(value):
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    document = json.load(sys.stdin)
    print("ANSWER " + json.dumps(plain(answers({name: torch.tensor(column) for name, column in document.items()}))))
