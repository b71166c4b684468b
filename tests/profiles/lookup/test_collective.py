"""Protects prices of communication: the unit of the NCCL tables (elements, not bytes), the decode all-reduce with and
without CUDA graphs, group sizes between and beyond the measured ones, and the two bandwidth rules.
"""

import numpy as np
import pytest

from profiles.device import DeviceProfile
from profiles.errors import InputError, NoBasisError
from profiles.records import Basis
from profiles.store import device_names, load_device

KIB, GIB = 1024, 1024**3


@pytest.fixture(scope="module")
def h100() -> DeviceProfile:
    return load_device("h100-80gb-sxm")


@pytest.mark.parametrize("name", device_names())
def test_int8_at_twice_the_count_takes_the_time_of_half(name: str) -> None:
    """The proof that the tables count elements: at equal bytes the two dtypes agree, to the noise of a run."""
    table = load_device(name).tables._table("collective", "")  # noqa: SLF001
    times = {}
    for (dtype, kind), rows in table.split("dtype", "kind").items():
        gpus, num_bytes, latency = table.columns(rows, "gpus", "num_bytes", "latency_s")
        for g, b, t in zip(gpus, num_bytes, latency, strict=True):
            times.setdefault((kind, g, b), {})[dtype] = t
    ratios = [t["int8"] / t["fp16"] for (_, _, b), t in times.items() if len(t) == 2 and b >= 2**20]
    assert len(ratios) > 50
    assert np.median(ratios) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_large_messages_reach_the_link(h100: DeviceProfile, kind: str) -> None:
    """Bytes read as elements, or a shard taken for the whole, would put this outside by two or eight."""
    num_bytes = 0.5 * GIB
    assert 0.65 < num_bytes * 7 / 8 / float(h100.collective(kind, num_bytes, 8).s) / 450e9 < 0.9


def test_all_reduce_is_two_passes(h100: DeviceProfile) -> None:
    one, two = (float(h100.collective(kind, 0.5 * GIB, 4).s) for kind in ("all_gather", "all_reduce"))
    assert 1.5 < two / one < 2.2


def test_decode_all_reduce_floor_with_and_without_graphs(h100: DeviceProfile) -> None:
    for gpus in (2, 4, 8):
        assert 4e-6 < float(h100.decode_all_reduce(8 * KIB, gpus).s) < 6e-6
        assert 19e-6 < float(h100.decode_all_reduce(8 * KIB, gpus, cuda_graphs=False).s) < 25e-6
    assert h100.decode_all_reduce(8 * KIB, 8).weakest == Basis.MEASURED


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_decode_all_reduce_is_never_slower_than_nccl_when_large(h100: DeviceProfile, cuda_graphs: bool) -> None:
    sizes = np.geomspace(1e6, 1e10, 50)
    best = h100.decode_all_reduce(sizes, 8, cuda_graphs).s
    nccl = h100.collective("all_reduce", sizes, 8).s
    assert (best <= np.maximum(nccl, 25e-6) * (1 + 1e-12)).all()


def test_custom_kernel_does_not_reach_beyond_its_groups(h100: DeviceProfile) -> None:
    assert h100.decode_all_reduce(1e5, 16).s == h100.collective("all_reduce", 1e5, 16).s


def test_groups_between_and_beyond_the_measured_ones(h100: DeviceProfile) -> None:
    price = h100.collective("all_gather", 128 * KIB * KIB, [2, 3, 4, 8, 16, 64])
    measured, interpolated, analytic = Basis.MEASURED, Basis.INTERPOLATED, Basis.ANALYTIC
    assert price.weakest.tolist() == [measured, interpolated, measured, measured, analytic, analytic]
    assert (np.diff(price.s) > 0).all()
    # The wire time saturates at (g - 1) / g: beyond 8 GPUs at most an eighth can be added.
    assert price.s[5] < price.s[3] * 8 / 7 * 1.02
    small = h100.collective("all_reduce", 1024, [8, 64])
    assert small.s[1] / small.s[0] == pytest.approx(2.0, rel=0.05)


def test_sizes_outside_the_table(h100: DeviceProfile) -> None:
    price = h100.collective("all_reduce", [1.0, 1e10, 2e10], 8)
    assert (price.weakest == Basis.ANALYTIC).all()
    assert 10e-6 < price.s[0] < 20e-6
    assert price.s[2] / price.s[1] == pytest.approx(2.0, rel=0.05)


def test_nothing_to_send_takes_no_time(h100: DeviceProfile) -> None:
    assert h100.collective("all_gather", [0, 1e6], [8, 1]).s.tolist() == [0.0, 0.0]
    assert h100.decode_all_reduce([0, 1e6], [8, 1]).s.tolist() == [0.0, 0.0]
    assert h100.decode_all_reduce([0, 1e6], [8, 1], cuda_graphs=False).s.tolist() == [0.0, 0.0]


def test_what_cannot_be_priced_is_named(h100: DeviceProfile) -> None:
    with pytest.raises(NoBasisError, match="no collective 'broadcast'"):
        h100.collective("broadcast", 1, 2)
    with pytest.raises(InputError, match="gpus is 0"):
        h100.collective("all_gather", 1, 0)


def test_bandwidth_rules(h100: DeviceProfile) -> None:
    price = h100.memory_bound([0, 2.68e9], [1, 2])
    np.testing.assert_allclose(price.s, [2.5e-6, 1e-3 + 5e-6])
    assert (price.weakest == Basis.ANALYTIC).all()
    assert h100.memory_bound(0, 0).s == 0.0
    assert h100.host_copy(h100.spec.pcie_bytes_per_s).s == pytest.approx(1.0)
