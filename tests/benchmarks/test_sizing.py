"""Protects the page of cluster sizes: its rows are its file's, and a row is what a frontier says."""

import datetime
import json
from pathlib import Path

from benchmarks.sizing import LENGTHS, MODELS, SIZES, Row, job_of, page
from hybridmap.job.load import job_from_mapping

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_its_rows():
    rows = [Row(**row) for row in json.loads((DOCS / "sizing.json").read_text())]
    text = (DOCS / "sizing.md").read_text()
    day = datetime.date.fromisoformat(text.split("`make sizing` on ")[1][:10])
    assert page(rows, day) == text
    assert {row.model for row in rows} == set(MODELS)
    for row in rows:
        assert row.num_gpus <= row.budget and row.low_s < row.iteration_s < row.high_s


def test_more_gpus_are_never_slower():
    rows = [Row(**row) for row in json.loads((DOCS / "sizing.json").read_text())]
    kinds = {(row.model, row.device, row.length) for row in rows}
    for kind in kinds:
        times = [row.iteration_s for row in rows if (row.model, row.device, row.length) == kind]
        assert times == sorted(times, reverse=True)


def test_every_job_of_the_page_is_a_job():
    for length in LENGTHS:
        facts = job_from_mapping(job_of(MODELS[0], "h100-80gb-sxm", length, 16, 8), "sizing", Path()).facts()
        assert facts.num_gpus == SIZES[-1]
