"""Protects devices that are given by numbers alone: units that cannot pass for others, and prices at the new rates."""

import pytest

from profiles.errors import InputError
from profiles.new_device import RATES, SEEN, device_file, memory_bytes, quantity, write_device
from profiles.records import Basis
from profiles.store import load_device

H20 = {"peak_flop_per_s": 148e12, "memory_bytes_per_s": 4.0e12, "memory_bytes": memory_bytes("96GB")}


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("memory_bytes_per_s", "4.0e12", 4.0e12),
        ("memory_bytes_per_s", "4.0 TB/s", 4.0e12),
        ("peak_flop_per_s", "148TFLOPS", 148e12),
        ("peak_flop_per_s", "148 Tflop/s", 148e12),
        ("power_w", "0.4kW", 400.0),
    ],
)
def test_numbers_are_read_with_their_units(field, text, value):
    assert quantity(RATES[field], text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["96", "96GB", "96 GiB", "96g"])
def test_memory_is_as_the_label_says(text):
    assert memory_bytes(text) == SEEN * 96 * 2**30


@pytest.mark.parametrize("text", ["4", "4TFLOPS", "-1e12", "inf", "4,0e12", "", "1e400"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(InputError, match="expected"):
        quantity(RATES["memory_bytes_per_s"], text)


def test_a_new_device_is_priced_at_its_own_rates(tmp_path):
    write_device(tmp_path / "my-h20", device_file("my-h20", "h100-80gb-sxm", H20, 4))
    new, base = load_device(tmp_path / "my-h20"), load_device("h100-80gb-sxm")
    assert new.name == "my-h20"
    assert new.spec.memory_bytes_per_s == 4.0e12
    assert (new.spec.gpus_per_node, new.spec.nvlink_domain_gpus) == (4, 4)
    assert new.spec.peak_flop_per_s["fp8"] == pytest.approx(2 * 148e12)
    share = 148 / 989
    assert new.spec.sustained_flop_per_s["bf16"] == pytest.approx(
        share * base.spec.sustained_flop_per_s["bf16"], rel=1e-4
    )
    assert new.spec.nvlink_bytes_per_s == base.spec.nvlink_bytes_per_s
    assert new.spec.basis("memory_bytes_per_s") is Basis.ASSUMED


@pytest.mark.parametrize(
    ("name", "like", "message"),
    [
        ("h100-80gb-sxm", "h100-80gb-sxm", "no shipped device has"),
        ("a/b", "h100-80gb-sxm", "expected a name"),
        ("new", "h20-96gb-sxm", "give the one whose it has, h100-80gb-sxm"),
        ("new", "h1000", "unknown device"),
        ("new", "x" * 300, "unknown device"),
    ],
)
def test_what_cannot_be_a_device_is_refused(name, like, message):
    with pytest.raises(InputError, match=message):
        device_file(name, like, {})


def test_a_file_that_is_there_stays(tmp_path):
    write_device(tmp_path, "x")
    with pytest.raises(InputError, match="is there already"):
        write_device(tmp_path, "y")
    assert (tmp_path / "device.yaml").read_text() == "x"
