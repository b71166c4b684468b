"""Protects shards: a tensor cut in any way by some ranks is read whole or in any other cut, by us and by DCP itself."""

import json
from math import prod

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.checkpoint.shards import Chunk, boxes_of_range, chunks_of, on_host, read_shards, write_shards
from executor.weights.regions import Region, Stored
from profiles.errors import FileFormatError


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_boxes_of_a_range_are_its_elements_each_once(shape, data):
    whole = torch.arange(prod(shape)).view(shape)
    start = data.draw(st.integers(0, prod(shape)))
    stop = data.draw(st.integers(start, prod(shape)))
    found = []
    for box, offset in boxes_of_range(shape, start, stop):
        part = whole[tuple(slice(a, b) for a, b in box)].flatten().tolist()
        assert part == list(range(start + offset, start + offset + len(part)))
        found += part
    assert sorted(found) == list(range(start, stop))
    assert len(boxes_of_range(shape, start, stop)) <= 2 * len(shape) - 1


def cut(length, pieces, data):
    edges = sorted(data.draw(st.lists(st.integers(0, length), min_size=pieces - 1, max_size=pieces - 1)))
    return list(zip([0, *edges], [*edges, length], strict=True))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.data())
def test_a_fused_and_padded_tensor_cut_by_rank_reads_back_in_another_cut(tmp_path_factory, writers, readers, data):
    """Rows of two tensors and of padding in one local tensor, its flat elements dealt out over ranks."""
    folder = tmp_path_factory.mktemp("shards")
    a, b = torch.randn(5, 3), torch.randn(4, 3)
    regions = (Region("a", ((0, 5), (0, 3)), (0, 0)), Region("b", ((0, 4), (0, 3)), (6, 0)))
    fused = Stored("local", (11, 3), regions, 0)
    values = torch.cat([a, torch.zeros(1, 3), b, torch.zeros(1, 3)]).flatten()
    for rank, (start, stop) in enumerate(cut(33, writers, data)):
        write_shards(folder, rank, on_host(list(chunks_of(fused, start, values[start:stop]))))
    found = torch.zeros(33)
    for start, stop in cut(33, readers, data):
        read_shards(folder, list(chunks_of(fused, start, found[start:stop])))
    assert torch.equal(found, values)
    apart = torch.zeros(4, 3)
    read_shards(folder, [Chunk("b", ((0, 4), (0, 3)), apart)])
    assert torch.equal(apart, b)


def shards(folder):
    whole = torch.arange(24.0).view(6, 4)
    stored = Stored("w", (6, 4), (Region("w", ((0, 6), (0, 4)), (0, 0)),), 0)
    for rank, (start, stop) in enumerate([(0, 7), (7, 13), (13, 24)]):
        write_shards(folder, rank, list(chunks_of(stored, start, whole.flatten()[start:stop].clone())))
    return whole


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_stock_dcp_reads_the_files(tmp_path):
    whole, state = shards(tmp_path), {"w": torch.zeros(6, 4)}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert torch.equal(state["w"], whole)


def test_what_is_not_there_is_named(tmp_path):
    shards(tmp_path)
    with pytest.raises(FileFormatError, match="no shard has v"):
        read_shards(tmp_path, [Chunk("v", ((0, 1),), torch.zeros(1))])
    (tmp_path / "rank-00001-0.safetensors").unlink()
    with pytest.raises(FileFormatError, match=r"w: 24 elements are needed, \d+ are there"):
        read_shards(tmp_path, [Chunk("w", ((0, 6), (0, 4)), torch.zeros(6, 4))])


def test_a_header_without_offsets_is_no_shard(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, tmp_path / "x.safetensors", metadata={"DCP_SHARDING_INFO": json.dumps({})})
    with pytest.raises(FileFormatError, match="not the shards of a checkpoint"):
        read_shards(tmp_path, [Chunk("w", ((0, 2),), torch.zeros(2))])
