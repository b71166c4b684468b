"""Protects the hardware facts: every number has a unit and a source, a wrong unit or a typo cannot pass silently,
and the two traps of the system cards (per node or per GPU, nominal or reported memory) stay resolved.
"""

from pathlib import Path

import pytest
import yaml

from profiles.errors import FileFormatError, InputError, NoBasisError
from profiles.hardware import DEVICE_FILE, UNITS, ClusterGroup, load_spec
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


def test_network_is_per_node_not_per_gpu() -> None:
    assert load_spec(DATA / "a100-80gb-sxm").inter_node_bytes_per_s_per_node == 25e9
    assert load_spec(DATA / "h100-80gb-sxm").inter_node_bytes_per_s_per_node == 8 * 50e9


def test_memory_never_exceeds_the_nominal_size() -> None:
    nominal_gib = {
        "a100-80gb-sxm": 80,
        "h100-80gb-sxm": 80,
        "h200-sxm": 141,
        "b200-sxm": 180,
        "gb200": 186,
        "b300-sxm": 270,
        "gb300": 278,
    }
    for name, gib in nominal_gib.items():
        assert load_spec(DATA / name).memory_bytes <= gib * 1024**3


def test_rack_scale_part_has_a_larger_nvlink_domain_than_a_node() -> None:
    spec = load_spec(DATA / "gb200")
    assert (spec.gpus_per_node, spec.nvlink_domain_gpus) == (4, 72)


def test_peak_knows_aliases_and_refuses_what_the_part_lacks() -> None:
    h100, a100 = load_spec(DATA / "h100-80gb-sxm"), load_spec(DATA / "a100-80gb-sxm")
    assert h100.peak("fp8_block") == h100.peak("fp8") == 2 * h100.peak("bf16")
    assert a100.peak("fp16") == a100.peak("bf16")
    with pytest.raises(NoBasisError, match="fp8"):
        a100.peak("fp8")


def test_the_older_attention_kernel_has_a_rate_where_the_tables_hold_a_later_one() -> None:
    """The A100's tables hold FlashAttention-2 itself; elsewhere it stays far below the peak."""
    assert load_spec(DATA / "a100-80gb-sxm").flash_2_flop_per_s == {}
    for name in ("h100-80gb-sxm", "h200-sxm", "b200-sxm", "gb200"):
        spec = load_spec(DATA / name)
        rates = spec.flash_2_flop_per_s
        assert set(rates) == {"forward", "backward"}
        assert 0.10 * spec.peak("bf16") < rates["backward"] < rates["forward"] < 0.45 * spec.peak("bf16")
    assert load_spec(DATA / "h200-sxm").flash_2_flop_per_s == load_spec(DATA / "h100-80gb-sxm").flash_2_flop_per_s


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


def test_gpus_of_a_group() -> None:
    spec = load_spec(DATA / "h100-80gb-sxm")
    assert ClusterGroup.of(spec, 2).num_gpus == 16
    assert ClusterGroup("gb200", 18, 4, 2e11, 72).num_gpus == 72


@pytest.mark.parametrize(
    "change", [{"nodes": 0}, {"gpus_per_node": -8}, {"inter_node_bytes_per_s": 0.0}, {"nvlink_domain_gpus": 6}]
)
def test_impossible_clusters_are_refused(change: dict[str, float]) -> None:
    values = {"nodes": 1, "gpus_per_node": 8, "inter_node_bytes_per_s": 4e11, "nvlink_domain_gpus": 8, **change}
    with pytest.raises(InputError, match="h100-80gb-sxm"):
        ClusterGroup(device="h100-80gb-sxm", **values)  # type: ignore[arg-type]
