"""The same rows and the same few steps for any training engine, so that what they give can be compared."""

from __future__ import annotations

import json

import torch
from tensordict import TensorDict

from executor.checks import UnequalWeightsError
from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.records import Identity
from executor.rl.loss_terms import LossTerm
from executor.rl.sequences import sequences_of
from simulator.plan.groups import training_coordinates
from tests.executor.plans import TINY


def rows():
    stream = torch.Generator().manual_seed(0)
    seen = torch.arange(3)[None] >= torch.tensor([0, 1, 2, 0, 1, 0, 2, 1])[:, None]
    ended = torch.arange(4)[None] < torch.tensor([4, 3, 2, 4, 1, 4, 2, 3])[:, None]
    return TensorDict(
        {
            "prompts": torch.randint(0, 16, (8, 3), generator=stream) * seen,
            "prompt_mask": seen,
            "responses": torch.randint(0, 16, (8, 4), generator=stream) * ended,
            "response_mask": ended,
        },
        batch_size=[8],
    )


def likelihood(outputs, part):
    if "values" in outputs:
        return {"loss": ((outputs["values"] - 1) ** 2 * part["target_mask"]).sum()}
    entropy = (outputs["entropy"] * part["target_mask"]).sum()
    return {"loss": -(outputs["log_probs"] * part["target_mask"]).sum() - 0.01 * entropy, "entropy": entropy}


def trained(engine, mine, value_head, scored=None):
    """Outputs before, two steps (the second has moments), outputs after, scores; of the rows ``scored``, if others."""
    outputs = engine.values if value_head else lambda batch: engine.log_probs(batch, 1.0)
    engine.load()
    scored = mine if scored is None else scored
    before, steps = outputs(scored), []
    for _ in range(2):
        part, first = sequences_of(mine)
        steps.append(engine.update((LossTerm(part, first, likelihood),)))
    after, scores = outputs(scored), engine.scores(scored) if value_head else None
    mask = scored["response_mask"]
    return None if before is None else (before * mask, steps, after * mask, scores)


def trained_and_scored(rank, spec, training, scoring, value_head):
    """``trained`` of ``spec`` on one rank that scores by ``scoring`` degrees; then the bytes that its copy has left."""
    engine = spec.build(Identity("A", rank, training.num_ranks), "", training).engine
    mine = rows().split(8 // training.d)[training_coordinates(rank, training)[2]]
    scored = rows().split(8 // scoring.d)[training_coordinates(rank, scoring)[2]]
    found = trained(engine, mine, value_head, scored)
    left = sum(tensor.untyped_storage().nbytes() for tensor in engine.copy.weights().values())
    return found, left


def spec_of(path, value_head):
    return ModelSpec(path, optimizer=OptimizerConfig(1e-2, max_grad_norm=0.5), micro_batch=2, value_head=value_head)


def configs_of(families, layers, tmp_path_factory):
    """A config.json of each family: the tiny example, ``layers`` layers, four KV heads and the family's changes."""
    made = {}
    for family, changes in families.items():
        file = tmp_path_factory.mktemp(family) / "config.json"
        sizes = {"num_hidden_layers": layers, "num_key_value_heads": 4}
        file.write_text(json.dumps(json.loads(TINY.read_text()) | sizes | changes))
        made[family] = str(file)
    return made


def complaint(engine):
    """What a comparison of copies says of this rank; nothing where all are the same."""
    try:
        engine.check_replicas()
    except UnequalWeightsError as error:
        return str(error)
    return ""
