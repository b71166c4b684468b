"""Protects updates of one rank against plain autograd and torch's own AdamW and clipping."""

import pytest
import torch
from tensordict import TensorDict

from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.native import decoder
from executor.engines.native.decoder import run_stage, whole_step
from executor.engines.native.engine import TorchNativeEngine
from executor.engines.native.heads import local_logits, log_probs_and_entropy
from executor.records import Identity
from executor.rl.loss_terms import LossTerm
from executor.rl.sequences import pretraining_of, sequences_of
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY

ONE = Degrees(1, 1, 1, 1, 1)
RATE = OptimizerConfig(1e-2, max_grad_norm=0.5)


def engine(**changes) -> TorchNativeEngine:
    made = TorchNativeEngine(Identity("A", 0, 1), "", ONE, ModelSpec(str(TINY), optimizer=RATE, **changes))
    made.load()
    return made


@pytest.fixture
def batch():
    stream = torch.Generator().manual_seed(0)
    return TensorDict(
        {
            "prompts": torch.randint(0, 16, (6, 3), generator=stream),
            "prompt_mask": torch.ones(6, 3, dtype=torch.bool),
            "responses": torch.randint(0, 16, (6, 4), generator=stream),
            "response_mask": torch.arange(4)[None] < torch.tensor([4, 3, 2, 4, 1, 4])[:, None],
        },
        batch_size=[6],
    )


def values(model) -> torch.Tensor:
    """All parameters in the flat order."""
    found = torch.zeros(model.flat.num_elements)
    model.flat.copy_out(0, found)
    return found


def likelihood(outputs, rows):
    return {"loss": -(outputs["log_probs"] * rows["target_mask"]).sum()}


def term(batch, weight=1.0):
    rows, first = sequences_of(batch)
    return LossTerm(rows, first, likelihood, weight)


def padded_outputs(model, rows, first):
    """Outputs of whole rows with their padding, by a mask of all by all; the product runs packed sequences."""
    x = model._training  # noqa: SLF001
    hidden = run_stage(x.weights, x.arch, x.piece, x.tp, rows["tokens"], whole_step(rows["token_mask"]))
    logits = local_logits(x.head, hidden[:, first - 1 : -1], x.tp)
    log_probs, entropy = log_probs_and_entropy(logits, rows["tokens"][:, first:], x.tp, 1.0)
    return {"log_probs": log_probs, "entropy": entropy}


def reference_steps(batch, num):
    """The same parameters on padded rows under torch's own optimizer and clipping, one whole batch a step."""
    model = engine(micro_batch=6)
    weights = {name: torch.nn.Parameter(weight.detach().clone()) for name, weight in model.flat.weights.items()}
    model.flat.weights.update(weights)
    adam = torch.optim.AdamW(weights.values(), lr=1e-2, betas=RATE.betas, weight_decay=0.0)
    losses, norms = [], []
    for _ in range(num):
        one = term(batch)
        rows = one.rows
        loss = likelihood(padded_outputs(model, rows, one.first_target), rows)["loss"] / rows["target_mask"].sum()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights.values(), 0.5)))
        adam.step()
        adam.zero_grad()
        losses.append(loss.item())
    return losses, norms, weights


def test_a_budget_of_tokens_trains_as_so_many_rows_do(batch):
    """Rows are dealt in another order; outputs come back in that of the batch, and steps are the same."""
    budgeted, counted = engine(token_budget=14), engine(micro_batch=2)
    assert torch.allclose(budgeted.log_probs(batch, 1.0), counted.log_probs(batch, 1.0), atol=1e-6)
    for _ in range(2):
        mine, theirs = (model.update((term(batch),)) for model in (budgeted, counted))
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
        assert mine == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("micro_batch", [1, 4, 6])
@pytest.mark.parametrize("zero_stage", [0, 1])
def test_steps_equal_those_of_plain_torch_whatever_the_micro_batch(batch, micro_batch, zero_stage):
    losses, norms, weights = reference_steps(batch, 4)
    model = engine(micro_batch=micro_batch, zero_stage=zero_stage)
    steps = [model.update((term(batch),)) for _ in range(4)]
    assert steps[0]["loss"] == pytest.approx(losses[0], rel=1e-6)
    assert [step["loss"] for step in steps] == pytest.approx(losses, rel=1e-5)
    assert [step["grad_norm"] for step in steps] == pytest.approx(norms, rel=1e-4)
    for name, weight in weights.items():
        assert torch.allclose(model.flat.weights[name], weight, atol=2e-4), name


@pytest.mark.parametrize(("recompute", "attention_runs"), [("none", 2), ("selective", 4), ("full", 4)])
def test_recomputing_changes_no_gradient(batch, recompute, attention_runs, monkeypatch):
    plain, other = engine(micro_batch=6), engine(micro_batch=6, recompute=recompute)
    plain.update((term(batch),))
    seen = []
    real = decoder.attention
    monkeypatch.setattr(decoder, "attention", lambda *a: seen.append(1) or real(*a))
    other.update((term(batch),))
    assert len(seen) == attention_runs  # two layers, forward, and again where recomputed
    assert torch.equal(values(plain), values(other))


def test_objectives_add_up_with_their_weights(batch):
    model, twice = engine(micro_batch=6), engine(micro_batch=6)
    model.update((term(batch, 2.0),))
    twice.update((term(batch), term(batch)))
    assert torch.allclose(values(model), values(twice), atol=1e-6)


def test_filler_rows_and_tokens_behind_the_end_change_nothing(batch):
    plain, filled = engine(micro_batch=4), engine(micro_batch=4)
    padded = batch[torch.tensor([0, 1, 2, 3, 4, 5, 5, 5])]
    padded["is_padding"] = torch.arange(8) >= 6
    padded["responses"] = torch.where(padded["response_mask"], padded["responses"], 9)
    one, other = plain.update((term(batch),)), filled.update((term(padded),))
    assert other == pytest.approx(one, rel=1e-5)
    assert torch.allclose(values(plain), values(filled), atol=1e-5)


def test_pretraining_text_predicts_every_token_but_the_first():
    text = TensorDict(
        {
            "pretrain_tokens": torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]]),
            "pretrain_mask": torch.tensor([[True] * 4, [True, True, False, False]]),
        },
        batch_size=[2],
    )
    rows = pretraining_of(text)
    assert rows["target_mask"].tolist() == [[True] * 3, [True, False, False]]
    model = engine(micro_batch=2)
    losses = [model.update((LossTerm(rows, 1, likelihood),))["loss"] for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]


def test_an_update_makes_the_generation_copy_stale(batch):
    model = engine(micro_batch=6)
    model.to_generation()
    before = model._generating  # noqa: SLF001
    model.to_generation()
    assert model._generating is before  # noqa: SLF001
    model.update((term(batch),))
    assert model._generating is None  # noqa: SLF001
