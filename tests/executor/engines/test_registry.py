"""Protects the way in for new engines: one file with an engine and its entry, one registry line, and plans run."""

from dataclasses import replace

import pytest
import torch
from tensordict import TensorDict

from executor.controller.models import engine_of
from executor.engines.entry import Capabilities, GenerationEntry
from executor.engines.registry import GENERATION, TRAINING
from executor.engines.support import require_engines_run
from executor.records import Drafted
from executor.run import run
from executor.weights.checksum import require_generated
from executor.weights.native_layout import NativeLayout
from profiles.errors import InputError, NotYetError
from tests.executor.plans import colocated, config, job, metrics

ANSWER = 3


class Parrot:
    """A generator that writes one token for ever, and holds the weights that it is given."""

    keeps_tensors = True

    def __init__(self, setup):
        self.rank, self.dtype, self.layout, self.held = (
            setup.identity.rank,
            setup.dtype,
            layout(setup.arch, setup.degrees),
            {},
        )

    def load(self):
        pass

    def tensors(self):
        return self.held

    def restore(self):
        self.held = {s.name: torch.empty(s.shape, dtype=self.dtype) for s in self.layout.stored(self.rank)}

    def release_cache(self):
        pass

    def release(self):
        self.held = {}

    def ready(self):
        assert all(tensor.isfinite().all() for tensor in self.held.values())

    def generate(self, batch, sampling):
        shape = (*batch.batch_size, sampling.max_tokens)
        columns = {
            "responses": torch.full(shape, ANSWER),
            "response_mask": torch.ones(shape, dtype=torch.bool),
            "log_probs": torch.zeros(shape),
        }
        return TensorDict(columns, batch_size=batch.batch_size)

    def drafted(self):
        return Drafted()


def layout(arch, degrees):
    return NativeLayout(arch, degrees, "generation", transposed=False)


PARROT = GenerationEntry("parrot", "torch", Capabilities(generates=True), layout, Parrot)


def test_a_new_generator_is_a_file_and_a_line(tmp_path, monkeypatch):
    monkeypatch.setitem(GENERATION, PARROT.name, PARROT)
    engines = {"training": "torch-native", "generation": "parrot"}
    seen = []
    monkeypatch.setattr(
        "executor.engines.hybrid.require_generated", lambda *given: seen.append(require_generated(*given))
    )
    run(job("grpo", samples=2), colocated("grpo"), config(engines=engines, launcher="local"), tmp_path, 2)
    assert len(seen) == 2  # what it holds is compared with what was trained, like any generator's
    assert [line["actor/optimizer_steps"] for line in metrics(tmp_path)] == [1.0, 2.0]


def test_a_name_that_is_in_no_registry_is_refused_with_those_that_are():
    names = "'torch-native', 'vllm', 'sglang' or 'as-planned'"
    with pytest.raises(InputError, match=f"generation: Input should be {names}"):
        config(engines={"generation": "parrot"})


def test_what_a_new_engine_cannot_run_follows_from_its_capabilities(monkeypatch):
    monkeypatch.setitem(GENERATION, PARROT.name, PARROT)
    engines = config(engines={"generation": "parrot"}).engines
    made = colocated("grpo", (1, 2, 1))
    actor = made.role("actor")
    changed = actor.model_copy(update={"generation": actor.generation.model_copy(update={"ep": 2})})
    with pytest.raises(NotYetError, match="actor: generation ep 2 cannot run yet on parrot"):
        require_engines_run(made.model_copy(update={"roles": (changed,)}), engines)


def test_an_engine_of_gpus_is_refused_where_there_are_none(monkeypatch):
    needing = replace(PARROT, capabilities=Capabilities(generates=True, needs_gpu=True))
    monkeypatch.setitem(GENERATION, PARROT.name, needing)
    made, given = colocated("grpo"), config(engines={"generation": "parrot"})
    with pytest.raises(InputError, match="actor: parrot needs GPUs"):
        engine_of(made.role("actor"), made, given, "cpu")
    assert engine_of(made.role("actor"), made, given, "cuda").generation == "parrot"


def test_every_trainer_scores_and_every_generator_generates():
    assert all(entry.capabilities.trains and entry.capabilities.scores for entry in TRAINING.values())
    assert all(entry.capabilities.generates for entry in GENERATION.values())
