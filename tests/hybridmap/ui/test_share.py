"""Protects links and pasted text: a link is its job, text is read as what it is, and neither names files here."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hybridmap.ui.answer import answer_of
from hybridmap.ui.downloads import DOWNLOADS
from hybridmap.ui.form import Form, document_of
from hybridmap.ui.share import form_of_link, form_of_text, link_of
from profiles.errors import InputError
from tests.hybridmap.exports.plans import GRPO

LOGS = Path(__file__).parents[3] / "examples" / "logs"


def test_a_link_is_its_job():
    form = replace(Form(), nodes=4, response_length=512)
    assert document_of(form_of_link(link_of(form)))["cluster"][0]["nodes"] == 4
    assert link_of(form_of_link(link_of(form_of_link(link_of(form))))) == link_of(form_of_link(link_of(form)))


@pytest.mark.parametrize("text", ["", "xx", "a" * 60, link_of(Form())[:40]])
def test_a_damaged_link_is_one_error(text):
    with pytest.raises(InputError, match="holds no job"):
        form_of_link(text)


def test_pasted_text_is_read_as_what_it_is():
    form, what = form_of_text(yaml.safe_dump(GRPO), Form())
    assert what == "read as a job file" and form.prompts == GRPO["workload"]["prompts"]
    form, what = form_of_text((LOGS / "verl-qwen2-7b-8xh100.sh").read_text(), Form())
    assert what == "read as a verl run" and form.algorithm == "grpo"
    logged, what = form_of_text((LOGS / "verl-qwen2-7b-8xh100.jsonl").read_text(), form)
    assert what.startswith("read as a log") and logged.mean_response_length > 1


def test_other_text_is_told_what_was_looked_for():
    with pytest.raises(InputError, match="none of what is read here") as told:
        form_of_text("hello", Form())
    assert "/tmp" not in str(told.value)


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "~/x", "folder/config.json"])
def test_neither_text_nor_link_nor_field_names_a_file_of_this_machine(path):
    document = GRPO | {"models": {"actor": path}}
    with pytest.raises(InputError, match="is a file"):
        form_of_text(yaml.safe_dump(document), Form())
    assert "unknown model" in answer_of(replace(Form(), models=dict.fromkeys(Form().models, path))).error.lower()


def test_a_hugging_face_id_is_a_model():
    found = answer_of(replace(form_of_text(yaml.safe_dump(GRPO), Form())[0], models={"actor": "Qwen/Qwen2.5-0.5B"}))
    assert found.error == "" and found.result is not None


def test_every_download_is_a_file_with_its_name():
    answer = answer_of(form_of_text(yaml.safe_dump(GRPO), Form())[0])
    names = {}
    for what, write in DOWNLOADS.items():
        names[what], text = write(answer.job, answer.result)
        assert text
    assert {names["job"], names["plan"], names["report"]} == {"job.yaml", "plan.json", "report.html"}
