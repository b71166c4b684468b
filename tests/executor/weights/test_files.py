"""Protects runs from damaged weights: a file that is cut off, changed or of another kind is refused by name."""

import pytest
import torch
from safetensors.torch import save_file

from executor.weights.files import open_weights
from profiles.errors import FileFormatError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(6.0).reshape(2, 3)}, path)
    return path


def test_tensors_are_read(file):
    with open_weights(file) as opened:
        assert opened.get_slice("a").get_shape() == [2, 3]
        assert torch.equal(opened.get_tensor("a"), torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],  # cut off
        lambda data: data[:20],  # in the header
        lambda data: b"",
        lambda data: b"\xff" * 8 + data[8:],  # a header of 2^64 bytes
        lambda data: data.replace(b'"F32"', b'"F99"'),
        lambda data: data.replace(b"[0,24]", b"[0,99]"),
        lambda data: b"\x80\x04." + data,  # a pickle is no safetensors file
    ],
)
def test_damage_is_named(file, change):
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(FileFormatError, match=r"model\.safetensors: cannot be read as a safetensors file"):
        open_weights(file)


def test_so_are_files_that_are_not_there(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(FileFormatError, match="cannot be read"):
            open_weights(path)
