"""Protects ``hybridmap models`` and ``hybridmap devices``: exact counts, and a source for every number."""

import json

import pytest

from profiles.models.catalogue import model_names
from profiles.store import device_names


@pytest.mark.parametrize("args", [("models",), ("models", "list")])
def test_models_are_listed(run, args):
    assert [m["name"] for m in json.loads(run(*args, "--json").stdout)["models"]] == model_names()
    text = run(*args).stdout
    assert all(name in text for name in model_names())


def test_a_model_shows_exact_counts(run):
    shown = json.loads(run("models", "show", "llama-2-7b", "--json").stdout)
    assert shown["num_params"] == 6_738_415_616
    assert shown["kv_bytes_per_token"] == 2 * 32 * 4096 * 2
    assert "6,738,415,616" in run("models", "show", "llama-2-7b").stdout
    moe = json.loads(run("models", "show", "qwen3-30b-a3b", "--json").stdout)
    assert moe["active_params"] < moe["num_params"]
    assert moe["moe"]["num_experts"] == 128


@pytest.mark.parametrize("args", [("devices",), ("devices", "list")])
def test_devices_are_listed(run, args):
    assert [d["name"] for d in json.loads(run(*args, "--json").stdout)["devices"]] == list(device_names())
    text = run(*args).stdout
    assert all(name in text for name in device_names())


@pytest.mark.parametrize("name", device_names())
def test_a_device_shows_its_sources(run, name):
    shown = json.loads(run("devices", "show", name, "--json").stdout)
    assert all(fact["source"] and fact["unit"] for fact in shown["spec"].values())
    assert all(table["rows"] > 0 and table["package"] for table in shown["tables"])
    assert run("devices", "show", name).exit_code == 0


def test_import_says_what_is_wrong_and_leaves_nothing(run, tmp_path):
    out = tmp_path / "out"
    missing = run("devices", "import", "--from", tmp_path / "no.whl", "--device", "a100-80gb-sxm", "--out", out)
    unknown = run("devices", "import", "--from", tmp_path / "no.whl", "--device", "a100", "--out", out)
    for result in (missing, unknown):
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
    assert "did you mean a100-80gb-sxm" in unknown.stderr
    assert not out.exists()


def test_an_imported_folder_is_a_device(run, tmp_path, monkeypatch):
    def import_tables(source, devices, out):
        (out / devices[0]).mkdir(parents=True)
        return []

    monkeypatch.setattr("profiles.importer.import_tables.import_tables", import_tables)
    result = run("devices", "import", "--device", "a100-80gb-sxm", "--out", tmp_path / "mine", "--json")
    assert json.loads(result.stdout)["written"] == [str(tmp_path / "mine" / "a100-80gb-sxm" / "device.yaml")]
    assert run("devices", "show", tmp_path / "mine" / "a100-80gb-sxm").exit_code == 0
