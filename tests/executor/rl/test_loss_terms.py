"""Protects what an update minimises, where it is more than one tested loss."""

import torch
from tensordict import TensorDict

from executor.rl.algorithms import RUNNABLE
from executor.rl.hyperparameters import Hyperparameters
from executor.rl.loss_terms import policy_loss_terms


def batch(advantages):
    rows = len(advantages)
    mask = torch.ones(rows, 2, dtype=torch.bool)
    tokens = torch.ones(rows, 2, dtype=torch.int64)
    return TensorDict(
        {
            "prompts": tokens,
            "prompt_mask": mask,
            "responses": tokens,
            "response_mask": mask,
            "advantages": torch.tensor(advantages)[:, None] * mask,
            "log_probs": torch.zeros(rows, 2),
        },
        batch_size=[rows],
    )


def test_dapo_counts_only_responses_that_teach_something():
    """Groups that all score alike have no advantage: a mean over their tokens too would shrink the others' steps."""
    given = batch([0.0, 1.0, -1.0])
    counted = {
        name: policy_loss_terms(given, RUNNABLE[name], Hyperparameters())[0].rows["target_mask"]
        for name in ("dapo", "grpo")
    }
    assert counted["dapo"].tolist() == [[False, False], [True, True], [True, True]]
    assert counted["grpo"].all()


def test_pretraining_text_is_learned_from_where_its_loss_counts():
    given = batch([1.0, -1.0])
    given["pretrain_tokens"] = torch.ones(2, 3, dtype=torch.int64)
    given["pretrain_mask"] = torch.ones(2, 3, dtype=torch.bool)
    given["pretrain_loss"] = torch.zeros(2)
    terms = {
        c: policy_loss_terms(given, RUNNABLE["safe-rlhf"], Hyperparameters(pretrain_coefficient=c)) for c in (0.0, 0.5)
    }
    assert [len(found) for found in terms.values()] == [1, 2]
    assert terms[0.5][1].weight == 0.5
