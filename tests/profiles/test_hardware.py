"""Protects the hardware facts: the two traps of the system cards (per node or per GPU, nominal or reported memory)
stay resolved, and clusters that cannot be are refused.
"""

import pytest

from profiles.device_file import load_spec
from profiles.errors import InputError, NoBasisError
from profiles.hardware import ClusterGroup
from profiles.store import DATA


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
