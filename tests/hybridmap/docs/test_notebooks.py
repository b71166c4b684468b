"""Protects the notebooks: each runs from top to bottom, asserts of its own included, and holds no stale output."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

nbformat = pytest.importorskip("nbformat", reason="the notebooks need the dev extra")
NOTEBOOKS = sorted((Path(__file__).parents[3] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_two():
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_output(path):
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's own libraries
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, monkeypatch):
    from nbclient import NotebookClient

    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", str(root))
    client = NotebookClient(nbformat.read(path, as_version=4), timeout=300, resources={"metadata": {"path": str(root)}})
    done = client.execute()  # raises with the cell and its traceback
    ran = [cell for cell in done.cells if cell.cell_type == "code"]
    assert ran
    assert all(cell.execution_count for cell in ran)
