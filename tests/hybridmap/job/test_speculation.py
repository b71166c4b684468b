"""Protects the speculation section of a job: its shares, its draft, what it changes, and what cannot follow it."""

import pytest

from hybridmap.job.load import job_from_document, load_job
from hybridmap.job.notes import notes
from profiles.errors import InputError


def asked(small_job, **more):
    models = {**small_job["models"], "actor": "qwen3.5-9b"}
    return small_job | {"models": models, "speculation": {"draft_tokens": 3, "acceptance": 0.8} | more}


def test_one_share_is_of_a_token_whose_forerunners_were_kept(write_job, small_job):
    drafts = load_job(write_job(asked(small_job))).facts().speculation
    assert drafts is not None
    assert drafts.accepted == pytest.approx((0.8, 0.64, 0.512))
    each = load_job(write_job(asked(small_job, acceptance=[0.886, 0.77, 0.663]))).facts().speculation
    assert each is not None
    assert each.tokens_per_step == pytest.approx(3.319)


def test_a_job_without_it_says_nothing_of_it(write_job, small_job):
    job = load_job(write_job(small_job))
    assert "speculation" not in job.document
    assert job.facts().speculation is None


def test_it_is_kept_in_a_plan_and_noted(write_job, small_job):
    job = load_job(write_job(asked(small_job)))
    assert job_from_document(job.document).facts().speculation == job.facts().speculation
    assert any("drafts 3 tokens a step by its own prediction layers and gives 2.95" in n for n in notes(job.facts()))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"acceptance": [0.8, 0.7]}, "2 shares for draft_tokens: 3"),
        ({"acceptance": 1.2}, "a share from 0 to 1"),
        ({"acceptance": [0.5, 0.6, 0.7]}, "a token is kept only with those before it"),
        ({"draft": "qwen3-0.6b"}, "have been the same|must be the same"),
        ({"draft": "no-such-model"}, "no-such-model"),
        ({"draft_tokens": 0}, "leave speculation out"),
        ({"draft_tokens": [0]}, "leave speculation out"),
        ({"draft_tokens": []}, "draft_tokens"),
        ({"draft_tokens": [1, 17]}, "draft_tokens"),
    ],
)
def test_what_cannot_be_is_refused_in_one_message(write_job, small_job, more, words):
    with pytest.raises(InputError, match=words):
        load_job(write_job(asked(small_job, **more))).facts()


def test_several_lengths_are_for_the_plan_to_choose_among(write_job, small_job):
    job = load_job(write_job(asked(small_job, draft_tokens=[3, 0, 1])))
    drafts = job.facts().speculation
    assert (drafts.lengths, drafts.drafted) == ((0, 1, 3), 3)
    assert job.facts().drafting(1).speculation.accepted == pytest.approx((0.8,))
    assert job.facts().drafting(0).speculation is None
    assert any(
        "drafts 0 or 1 or 3 tokens a step" in n and "gives 1.00 or 1.80 or 2.95" in n for n in notes(job.facts())
    )


def test_a_model_without_prediction_layers_needs_a_draft(write_job, small_job):
    plain = small_job | {"speculation": {"draft_tokens": 1, "acceptance": 0.5}}
    with pytest.raises(InputError, match="has no prediction layers"):
        load_job(write_job(plain)).facts()
