"""Protects users from plans whose drafts cannot run: refused by name, with what can, before anything starts."""

import json
from dataclasses import replace

import pytest

from executor.engines.model_spec import DraftSpec
from executor.engines.vllm.drafts import draft_architecture
from executor.run_settings import draft_of
from executor.weights.architecture import read_architecture
from profiles.errors import InputError, NotYetError
from simulator.facts import Implementation
from simulator.speculation import Speculation
from tests.executor.plans import TINY, colocated, config, job

OWN_LAYERS = Speculation((0.8, 0.6))
SMALL = Speculation((0.8, 0.6), read_architecture(str(TINY)).shape)
VLLM = {"engines": {"generation": "vllm"}}
WITH_DRAFT = {**VLLM, "draft": "small/"}


def drafting(speculation, tokens=None, layout=(1, 1, 1), generation=None, lora_rank=0, draft=None, **run):
    facts = replace(job("grpo"), speculation=speculation, implementation=Implementation(lora_rank=lora_rank))
    plan = colocated("grpo", layout, generation=generation).model_copy(update={"draft_tokens": tokens})
    given = config(**run)
    weights = given.weights if draft is None else given.weights | {"draft": draft}
    return draft_of(facts, plan, given.model_copy(update={"weights": weights}))


@pytest.mark.parametrize(("tokens", "drafts"), [(None, 2), (1, 1), (0, None)])
def test_the_plan_says_how_many_tokens_else_the_job(tokens, drafts):
    assert drafting(SMALL, tokens, **WITH_DRAFT) == (DraftSpec("small/", drafts) if drafts else None)


def test_a_job_without_drafts_runs_a_plan_without():
    assert drafting(None) is None
    assert drafting(None, 0) is None
    with pytest.raises(InputError, match="the plan drafts 3 tokens a step, and its job says nothing of drafts"):
        drafting(None, 3)


@pytest.mark.parametrize(
    ("asked", "error", "reason"),
    [
        ({"speculation": OWN_LAYERS, **WITH_DRAFT}, NotYetError, r"own prediction layers \(MTP\) cannot run yet"),
        ({"speculation": SMALL}, NotYetError, "drafts cannot run yet on torch-native; vllm drafts"),
        ({"speculation": SMALL, "engines": {"generation": "sglang"}}, NotYetError, "cannot run yet on sglang"),
        ({"speculation": SMALL, "lora_rank": 8, **WITH_DRAFT}, NotYetError, "drafts cannot run yet beside adapters"),
        (
            {"speculation": SMALL, "layout": (2, 1, 1), "generation": (2, 1), **WITH_DRAFT},
            NotYetError,
            "actor: drafts cannot run yet where generation has pp 2",
        ),
        ({"speculation": SMALL, **VLLM}, InputError, "run.weights needs an entry 'draft'"),
    ],
)
def test_what_cannot_draft_is_refused_by_name(asked, error, reason):
    with pytest.raises(error, match=reason):
        drafting(**asked)


def test_a_draft_has_weights_of_its_own_and_the_vocabulary_of_the_actor(tmp_path):
    actor = read_architecture(str(TINY))
    with pytest.raises(InputError, match=r"run.weights.draft: .* is no folder with config.json and \*.safetensors"):
        draft_architecture(DraftSpec(str(TINY), 2), actor)
    (tmp_path / "model.safetensors").write_bytes(b"")
    given = json.loads(TINY.read_text())
    (tmp_path / "config.json").write_text(json.dumps(given | {"vocab_size": 32}))
    with pytest.raises(InputError, match="has a vocabulary of 32, the actor one of 16"):
        draft_architecture(DraftSpec(str(tmp_path), 2), actor)
    experts = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(given | experts))
    with pytest.raises(NotYetError, match="has 4 experts, which cannot draft yet"):
        draft_architecture(DraftSpec(str(tmp_path), 2), actor)
