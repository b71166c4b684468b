"""Protects how a job starts its generation engine: settings reach the prices, stay in a plan, and are checked."""

import pytest

from hybridmap.job.load import job_from_document, load_job
from hybridmap.job.notes import notes
from profiles.errors import InputError


def asked(small_job, **settings):
    return small_job | {"engines": {"generation": "vllm@0.32", "generation_settings": settings}}


def test_settings_reach_the_prices_and_stay_in_a_plan(write_job, small_job):
    """They were read and lost where a job is completed."""
    job = load_job(write_job(asked(small_job, kv_memory_share=0.5, captured_tokens=64, plans_ahead=False)))
    engine = job.facts().generation
    assert (engine.kv_memory_share, engine.captured_tokens, engine.plans_ahead) == (0.5, 64.0, False)
    assert job_from_document(job.document).facts().generation == engine
    said = "vllm@0.32 is started with kv_memory_share 0.5, captured_tokens 64, plans_ahead False"
    assert said in notes(job.facts())


def test_a_job_without_settings_says_nothing_of_them(write_job, small_job):
    job = load_job(write_job(small_job))
    assert "generation_settings" not in job.document["engines"]
    assert not [note for note in notes(job.facts()) if "is started with" in note]


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"kv_memory_share": 2}, "kv_memory_share: a share is at most 1"), ({"interleaving": True}, "unknown setting")],
)
def test_what_cannot_be_set_is_refused(write_job, small_job, settings, words):
    with pytest.raises(InputError, match=words):
        load_job(write_job(asked(small_job, **settings))).facts()
