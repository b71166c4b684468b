"""Protects parts without tables of their own: what differs from the measured part differs, and all else is its."""

import pytest

from benchmarks.validation.devices import DERIVED, DGX_A100_BYTES_PER_S, cluster_of, device_profile
from profiles.store import load_device

BYTES = 512 * 2**20


def gathered_s(name: str, gpus: int) -> float:
    return float(device_profile(name).collective("all_gather", BYTES, gpus).s)


@pytest.mark.parametrize("name", sorted(DERIVED))
def test_a_derived_part_has_its_data_sheets_numbers_and_prices(name):
    derived, spec = DERIVED[name], device_profile(name).spec
    base = load_device(derived.base).spec
    assert spec.name == name
    assert spec.memory_bytes_per_s == (derived.memory_bytes_per_s or base.memory_bytes_per_s)
    assert spec.memory_bytes == (derived.memory_bytes or base.memory_bytes)
    assert 0.3 * spec.peak("bf16") < spec.sustained("bf16") <= spec.peak("bf16")
    assert float(device_profile(name).gemm(4096, 4096, 4096).s) > 0


def test_an_l20s_eight_gpus_exchange_at_the_rate_of_their_links():
    """The L40S's table falls to 1 GB/s among eight, its server's; an L20's step of FSDP came out ten times too slow."""
    pair, eight = gathered_s("l20-48gb", 2), gathered_s("l20-48gb", 8)
    assert pair < eight < 4 * pair
    assert BYTES / eight > 5e9
    assert eight == pytest.approx(2 * float(load_device("rtx-pro-6000").collective("all_gather", BYTES, 8).s), rel=0.02)


def test_an_engines_own_tables_keep_the_links():
    of_vllm = device_profile("l20-48gb").of_engine("vllm", "0.12.0")
    assert float(of_vllm.collective("all_gather", BYTES, 8).s) == gathered_s("l20-48gb", 8)


def test_more_memory_bandwidth_decodes_faster_on_the_same_die():
    wide, narrow = (float(device_profile(f"h20-{gb}gb-sxm").gemm(8, 8192, 8192).s) for gb in (141, 96))
    assert wide < narrow


@pytest.mark.parametrize(
    ("name", "num_gpus", "bytes_per_s", "words"),
    [
        ("a100-80gb-sxm", 64, DGX_A100_BYTES_PER_S, ["network not stated: 8 x 200 Gbit/s a node"]),
        ("a800-80gb-sxm", 16, DGX_A100_BYTES_PER_S, ["network not stated: 8 x 200 Gbit/s a node"]),
        ("a100-80gb-sxm", 8, 25e9, []),
        ("h100-80gb-sxm", 64, 400e9, []),
    ],
)
def test_nodes_of_a100s_have_a_card_for_each_gpu(name, num_gpus, bytes_per_s, words):
    """The profile's one card a node is the HybridFlow paper's: a step of 20B on 64 A100s came out twice too slow."""
    assumed: list[str] = []
    group = cluster_of({}, device_profile(name), num_gpus, assumed)
    assert (group.inter_node_bytes_per_s, assumed) == (bytes_per_s, words)
    assert group.num_gpus == num_gpus
