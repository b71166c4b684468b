"""Protects files of devices: every number has a unit and a source, and a wrong unit or a typo is named."""

from pathlib import Path

import pytest
import yaml

from profiles.device_file import DEVICE_FILE, UNITS, load_spec
from profiles.errors import FileFormatError
from profiles.records import Basis
from profiles.store import DATA, device_names, load_device


def changed(tmp_path: Path, field: str, **values: object) -> Path:
    content = yaml.safe_load((DATA / "h100-80gb-sxm" / DEVICE_FILE).read_text())
    content[field] = {**content[field], **values}
    (tmp_path / DEVICE_FILE).write_text(yaml.safe_dump(content))
    return tmp_path


@pytest.mark.parametrize("name", device_names())
def test_every_number_of_the_catalogue_has_a_source(name: str) -> None:
    spec = load_device(name).spec
    fields = {field.partition(".")[0] for field in spec.sources}
    assert fields - {"kernels"} == set(UNITS) - (set() if spec.flash_2_flop_per_s else {"flash_2_flop_per_s"})
    assert all(spec.sources.values())
    assert spec.name == name
    # Orders of magnitude: a GB/s or a TFLOP/s left unconverted would be off by nine or twelve.
    assert 1e14 < spec.peak("bf16") < 1e16
    assert 8e11 < spec.memory_bytes_per_s < 1e13
    assert 4e10 < spec.memory_bytes < 3e11
    assert 3e10 < spec.nvlink_bytes_per_s < 1e12
    assert 1e10 < spec.pcie_bytes_per_s < 2e11
    assert 1e-6 < spec.inter_node_latency_s < 1e-4


@pytest.mark.parametrize("name", device_names())
def test_every_number_of_the_catalogue_says_what_it_rests_on(name: str) -> None:
    content = yaml.safe_load((DATA / name / DEVICE_FILE).read_text())
    facts = [f for v in content.values() if isinstance(v, dict) for f in ([v] if "unit" in v else v.values())]
    assert "tables_of" in content or len(facts) == len(load_spec(DATA / name).bases)
    assert all("basis" in fact for fact in facts)
    published = [str(fact["source"]) for fact in facts if fact["basis"] == "published"]
    assert not [source for source in published if "as recalled" in source or "placeholder" in source]


def test_a_card_that_does_not_say_what_a_number_rests_on_assumes_it(tmp_path: Path) -> None:
    content = yaml.safe_load((DATA / "h100-80gb-sxm" / DEVICE_FILE).read_text())
    del content["sustained_flop_per_s"]["bf16"]["basis"]
    (tmp_path / DEVICE_FILE).write_text(yaml.safe_dump(content))
    assert load_spec(tmp_path).sustained_basis("bf16") is Basis.ASSUMED
    assert load_spec(DATA / "h100-80gb-sxm").sustained_basis("fp16") is Basis.FITTED
    assert load_spec(DATA / "a100-80gb-sxm").sustained_basis("fp32") is Basis.PUBLISHED  # the peak stands in


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"forward": {"value": 370, "unit": "TFLOP/s", "source": "x"}}, r"forward: unit is 'TFLOP/s', it must be 'FL"),
        ({"backward": {"value": 0, "unit": "FLOP/s", "source": "x"}}, "flash_2_flop_per_s.backward.value"),
        ({"forward": {"value": 3.7e14, "unit": "FLOP/s"}}, "flash_2_flop_per_s.forward.source"),
    ],
)
def test_a_wrong_kernel_rate_names_its_file_and_field(tmp_path: Path, values: dict[str, object], message: str) -> None:
    folder = changed(tmp_path, "flash_2_flop_per_s", **values)
    with pytest.raises(FileFormatError, match=message) as error:
        load_spec(folder)
    assert str(tmp_path / DEVICE_FILE) in str(error.value)


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("memory_bytes_per_s", {"unit": "GB/s"}, r"memory_bytes_per_s: unit is 'GB/s', it must be 'B/s'"),
        ("memory_bytes", {"value": -1}, "memory_bytes"),
        ("power_w", {"source": ""}, "power_w"),
        ("power_w", {"sauce": "x"}, "power_w"),
    ],
)
def test_a_wrong_fact_is_named(tmp_path: Path, field: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        load_spec(changed(tmp_path, field, **values))


@pytest.mark.parametrize("text", ["", "- a list", "key: [unclosed", "schema_version: 2\nname: x\n"])
def test_another_kind_of_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / DEVICE_FILE).write_text(text)
    with pytest.raises(FileFormatError, match=DEVICE_FILE):
        load_spec(tmp_path)
