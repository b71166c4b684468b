"""Protects advantages and losses against an independent implementation: torchrl's GAE and clipped PPO loss."""

import pytest
import torch

from executor.rl.advantages import gae
from executor.rl.losses import clipped_policy

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS, TOKENS, VOCABULARY = 5, 7, 11


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.7), (0.99, 1.0), (0.9, 0.0)])
def test_gae_is_torchrls(gamma, lam):
    """Rows of different lengths: where a response ends, torchrl is told that the episode is done."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    rewards, values = drawn(ROWS, TOKENS), drawn(ROWS, TOKENS, seed=1)
    lengths = torch.tensor([7, 1, 4, 6, 2])
    mask = torch.arange(TOKENS)[None] < lengths[:, None]
    done = torch.arange(TOKENS)[None] == lengths[:, None] - 1
    following = torch.cat([values[:, 1:], torch.zeros(ROWS, 1)], 1)
    given = [x.unsqueeze(-1) for x in (values, following, rewards, done, done)]
    theirs, targets = (x.squeeze(-1) for x in generalized_advantage_estimate(gamma, lam, *given))
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    torch.testing.assert_close(advantages, theirs * mask)
    torch.testing.assert_close(returns, targets * mask)


@pytest.mark.parametrize("clip", [0.1, 0.2, 0.5])
def test_the_clipped_policy_loss_and_its_gradient_are_torchrls(clip):
    """A table of logits as the policy; every row of the table is a state that is visited once."""
    from tensordict import TensorDict
    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
    from torchrl.objectives import ClipPPOLoss

    table = torch.nn.Embedding(ROWS * TOKENS, VOCABULARY)
    head = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    actor = ProbabilisticTensorDictSequential(TensorDictModule(table, ["state"], ["logits"]), head)
    state = torch.arange(ROWS * TOKENS)
    action = torch.randint(0, VOCABULARY, state.shape, generator=torch.Generator().manual_seed(2))
    log_probs = torch.log_softmax(table(state), -1).gather(-1, action[:, None]).squeeze(-1)
    old, advantages = log_probs.detach() + 0.4 * drawn(len(state), seed=3), drawn(len(state), seed=4)
    batch = TensorDict(
        {"state": state, "action": action, "action_log_prob": old, "advantage": advantages[:, None]}, [len(state)]
    )
    objective = ClipPPOLoss(actor, None, clip_epsilon=clip, entropy_bonus=False, normalize_advantage=False)
    theirs = objective(batch)["loss_objective"]
    sums = clipped_policy(log_probs[None], old[None], advantages[None], torch.ones(1, len(state), dtype=bool), clip)
    mine = sums["loss"] / len(state)
    torch.testing.assert_close(mine, theirs)
    (my_gradient,) = torch.autograd.grad(mine, table.weight)
    their_parameters = list(objective.actor_network_params.flatten_keys().values())
    torch.testing.assert_close(my_gradient, torch.autograd.grad(theirs, their_parameters)[0])
    assert 0 < sums["clip_fraction"] < len(state)
