"""Protects what a job is told beforehand: layers that prices or memory do not know are named."""

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
