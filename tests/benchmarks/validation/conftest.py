"""Small tables of each kind, written as strangers write them, and predictors that answer at once."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.validation import predict
from benchmarks.validation.ablation import predicted
from benchmarks.validation.tables import quantity_rows

PUBLISHED = Path(__file__).parents[3] / "benchmarks" / "published"

TABLES = {
    "rl": "id,system,gpu_kind,num_gpus,model,step_time_s,gen_time_s\nr1,verl,H100,8,Qwen3-8B,100,40\n",
    "training": "id,system,gpu_kind,num_gpus,model,seq_len,step_time_s\nt1,fsdp,H100,8,Qwen3-8B,4096,10\n",
    "generation": "id,backend,gpu_kind,num_gpus,model,input_len,output_len,tpot_ms\ng1,vLLM,H100,1,Qwen3-8B,9,9,8\n",
}

PLACEMENTS = "fig12"
"""The paper's figure whose every bar is a search; those of Figure 9 stay in continuous integration."""


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """Every published table but that figure, predicted once: the report, and by kind what its predictor gave for it."""
    folder, gave, real = tmp_path_factory.mktemp("published"), {}, predict._predictor  # noqa: SLF001
    for file in PUBLISHED.glob("*.csv"):
        if PLACEMENTS not in file.name:
            shutil.copy(file, folder / file.name)

    def recorded(kind):
        return lambda table: gave.setdefault(kind, real(kind)(table))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict, "_predictor", recorded)
        return SimpleNamespace(report=predicted(folder), gave=gave)


@pytest.fixture
def write(tmp_path):
    """Write a table of a kind, or a text, and give its path."""

    def written(kind, text=None):
        path = tmp_path / f"{kind}.csv"
        path.write_text(TABLES[kind] if text is None else text)
        return path

    return written


@pytest.fixture
def ten_percent_slow(monkeypatch):
    """Predictors that say 1.1 times every published number; a list of ids that they fail on can be filled."""
    fails, loses = set(), set()

    def predictor(kind):
        def run(table):
            found = []
            for cells in table.to_dict(orient="records"):
                for row in quantity_rows(kind, cells):
                    if row.id in loses:
                        continue
                    if row.id in fails:
                        found.append(row.without("internal error: ZeroDivisionError: as asked"))
                    else:
                        found.append(row.with_prediction(1.1 * row.measured) if row.quantity else row)
            return found

        return run

    monkeypatch.setattr(predict, "_predictor", predictor)
    return SimpleNamespace(fails=fails, loses=loses)
