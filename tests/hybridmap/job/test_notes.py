"""Protects what a job is told beforehand: layers that prices or memory do not know are named."""

from dataclasses import replace

import pytest

from hybridmap.job.notes import notes
from tests.builders import make_facts


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("deepseek-v3.2", ["sparse attention is trained and scored as if every query read every token"]),
        ("nvidia-nemotron-nano-9b-v2", ["Mamba layers are priced by roofline where they train"]),
        ("qwen3-next-80b-a3b-instruct", []),
    ],
)
def test_layers_without_a_price_are_named_once(model, told):
    found = [note for note in notes(make_facts("grpo", roles={"actor": model, "reference": model})) if model in note]
    assert len(found) == len(told)
    assert all(any(text in note for note in found) for text in told)


def test_a_profile_of_this_machine_is_named_beside_what_it_does_not_cover():
    facts = make_facts("grpo", roles={"actor": "llama-2-7b", "reference": "llama-2-7b"})
    assert not [note for note in notes(facts) if "measured here" in note]
    sources = {"memory_bytes_per_s": "measured here: the largest size of table copy"}
    here = replace(facts, device=facts.device.with_spec(replace(facts.device.spec, sources=sources)))
    own = replace(here, training=replace(facts.training, name="/p/engines/torch-native@0.1.yaml"))
    (said,) = [note for note in notes(own) if "measured here" in note]
    assert "attention decode" in said and "gemm" in said
    assert "host times of torch-native@0.1" in said
    assert said.endswith(f"host times of {facts.generation.name} as its engine file has them")
