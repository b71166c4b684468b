"""Protects checkpoints as files: what is read is whole and unchanged, damage is named, nothing is unpickled."""

import json
import os
import pickle
import re
import shutil
import socket

import pytest

from executor.checkpoint.files import begin_unfinished, checkpoints, clean, commit, prune
from executor.checkpoint.manifest import FileFacts, Manifest, RoleFacts, damage_of, facts_of, read_checkpoint
from executor.errors import DamagedCheckpointError
from executor.recovery.load import checkpoints_at, latest, require_free, require_whole
from profiles.errors import FileFormatError, InputError


def written(root, iteration, content=b"shard"):
    """A checkpoint of one role with one file."""
    aside = begin_unfinished(root, iteration, ["actor"])
    (aside / "actor" / "rank-00000-0.safetensors").write_bytes(content)
    files = {"rank-00000-0.safetensors": facts_of(aside / "actor" / "rank-00000-0.safetensors")}
    role = RoleFacts(num_ranks=1, counters={"optimizer_steps": iteration}, files=files)
    manifest = Manifest(
        iteration=iteration,
        next_call=7,
        controls={"kl_coefficient": 0.1},
        identity={"seed": 1},
        layout="{actor}",
        roles={"actor": role},
    )
    return commit(aside, manifest)


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path):
    made = written(tmp_path, 3)
    assert read_checkpoint(tmp_path / "iteration-00000003") == made
    assert made.num_bytes == 5
    assert (latest(tmp_path),) == checkpoints_at(tmp_path, str) == checkpoints_at(made.folder, str) == (made,)


def test_the_newest_is_found_by_manifests_and_the_oldest_go(tmp_path):
    for iteration in (2, 4, 10, 100):
        written(tmp_path, iteration)
    shutil.copytree(tmp_path / "iteration-00000100", tmp_path / "iteration-00000200")
    (tmp_path / "iteration-00000200" / "manifest.json").unlink()
    (tmp_path / "latest").write_text("iteration-00000002")  # nobody asks it
    assert latest(tmp_path).manifest.iteration == 100
    prune(tmp_path, 2, 100)
    assert [c.manifest.iteration for c in checkpoints(tmp_path)] == [10, 100]


def test_damaged_ones_neither_count_nor_stay(tmp_path):
    """A run that begins after 2, since 4 and 6 are damaged, and saves after 3 and 5, keeping two."""
    made = {iteration: written(tmp_path, iteration) for iteration in (1, 2, 4, 6)}
    damaged = (made[4].folder, made[6].folder)
    require_free(tmp_path, 2, damaged)
    for iteration, left in ((3, [2, 3, 4, 6]), (5, [3, 5, 6])):
        written(tmp_path, iteration)
        prune(tmp_path, 2, iteration, damaged)
        assert [c.manifest.iteration for c in checkpoints(tmp_path)] == left


def test_what_killed_runs_left_is_seen_by_nobody_and_cleaned(tmp_path):
    written(tmp_path, 2)
    aside = begin_unfinished(tmp_path, 4, ["actor"])
    (aside / "actor" / "half").write_text("")
    (tmp_path / ".iteration-00000001.removed").mkdir()
    assert [c.manifest.iteration for c in checkpoints(tmp_path)] == [2]
    clean(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["iteration-00000002"]


def test_a_damaged_one_is_replaced_when_its_iteration_comes_again(tmp_path):
    written(tmp_path, 2)
    (written(tmp_path, 4).folder / "manifest.json").write_text("{")
    assert latest(tmp_path).manifest.iteration == 2
    assert read_checkpoint(written(tmp_path, 4).folder).manifest.iteration == 4


def test_a_changed_file_is_found_by_its_size_or_its_digest(tmp_path):
    made = written(tmp_path, 3)
    path = made.folder / "actor" / "rank-00000-0.safetensors"
    path.write_bytes(b"sharp")
    read_checkpoint(made.folder)  # sizes agree
    facts = made.manifest.roles["actor"].files[path.name]
    assert re.search(r"rank-00000-0.safetensors is damaged: SHA-256 .* the manifest says", damage_of(path, facts))
    assert "cannot be read: No such file" in damage_of(path.parent / "none", facts)
    with pytest.raises(DamagedCheckpointError, match=r"rank-00000-0.safetensors is damaged"):
        require_whole(made)
    path.write_bytes(b"shard")
    assert not damage_of(path, facts)
    require_whole(made)
    path.write_bytes(b"shards")
    with pytest.raises(FileFormatError, match="has 6 bytes, the manifest says 5"):
        read_checkpoint(made.folder)
    path.unlink()
    with pytest.raises(FileFormatError, match=r"rank-00000-0\.safetensors is missing"):
        read_checkpoint(made.folder)
    assert latest(tmp_path) is None


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("bomb-went-off",)


def test_a_pickle_in_the_folder_is_refused_and_never_loaded(tmp_path, monkeypatch):
    """As ``.metadata``, which DCP's own reader unpickles, and in place of a manifest and of a shard's header."""
    monkeypatch.chdir(tmp_path)
    made, bomb = written(tmp_path, 3), pickle.dumps(Bomb())
    (made.folder / "actor" / ".metadata").write_bytes(bomb)
    with pytest.raises(FileFormatError, match=r"actor/.metadata is not in the manifest"):
        read_checkpoint(made.folder)
    (made.folder / "manifest.json").write_bytes(bomb)
    with pytest.raises(FileFormatError, match="not the manifest of a checkpoint"):
        read_checkpoint(made.folder)
    assert not (tmp_path / "bomb-went-off").exists()


def test_shards_that_are_pickles_are_refused(tmp_path, monkeypatch):
    import torch

    from executor.checkpoint.shards import Chunk, read_shards

    monkeypatch.chdir(tmp_path)
    made = written(tmp_path, 3, pickle.dumps(Bomb()))
    with pytest.raises(FileFormatError, match="not the shards of a checkpoint"):
        read_shards(made.folder / "actor", [Chunk("w", ((0, 2),), torch.zeros(2))])
    assert not (tmp_path / "bomb-went-off").exists()


@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", "a/b", "..", ".hidden", ""])
def test_names_in_a_manifest_stay_in_their_folder(name):
    facts = FileFacts(num_bytes=1, sha256="0" * 64)
    with pytest.raises(ValueError, match="String should match pattern"):
        RoleFacts(num_ranks=1, counters={}, files={name: facts})


def test_a_link_that_leads_out_is_no_file(tmp_path):
    made = written(tmp_path / "root", 3)
    path = made.folder / "actor" / "rank-00000-0.safetensors"
    (tmp_path / "elsewhere").write_bytes(b"shard")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileFormatError, match="is no plain file"):
        read_checkpoint(made.folder)


def replaced_by_link(path):
    """A link in the place of a file or folder, which leads to what was there."""
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replaced_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def replaced_by_socket(path):
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("part", "replace"),
    [
        ("manifest.json", replaced_by_pipe),  # nobody writes into it: who opens it waits forever
        ("manifest.json", replaced_by_socket),
        ("manifest.json", replaced_by_link),
        ("actor/rank-00000-0.safetensors", replaced_by_pipe),
        ("actor/rank-00000-0.safetensors", replaced_by_link),
        ("actor", replaced_by_link),
        (".", replaced_by_link),
    ],
)
def test_nothing_but_plain_files_in_plain_folders_is_read(tmp_path, part, replace):
    """And what has anything else is left out where the newest one is looked for."""
    older, made = written(tmp_path, 2), written(tmp_path, 3)
    replace(made.folder / part)
    with pytest.raises(FileFormatError, match=r"is no plain (file|folder)"):
        read_checkpoint(made.folder)
    assert latest(tmp_path) == older


def test_a_folder_is_of_the_iteration_that_it_is_named_after(tmp_path):
    made = written(tmp_path, 3)
    for name in ("iteration-00000005", "iteration-3", "iteration-best"):
        shutil.copytree(made.folder, tmp_path / name)
        with pytest.raises(FileFormatError, match=rf"{name}: its manifest is of iteration 3, .*iteration-00000003"):
            read_checkpoint(tmp_path / name)
    assert latest(tmp_path) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 9}, "schema version 9, this version reads 1"),
        ({"iteration": 4}, "its digest is not that of its contents"),
        ({"iteration": -1}, "iteration: Input should be greater than or equal to 0"),
        ({"controls": {"kl_coefficient": float("nan")}}, "controls.kl_coefficient: Input should be a finite number"),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
    ],
)
def test_a_manifest_that_was_edited_is_refused(tmp_path, change, message):
    path = written(tmp_path, 3).folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FileFormatError, match=message):
        read_checkpoint(path.parent)


def test_a_folder_with_later_checkpoints_is_no_place_for_a_new_run(tmp_path):
    written(tmp_path, 3)
    require_free(tmp_path, 3)
    with pytest.raises(InputError, match="has checkpoints up to iteration 3, this run begins at 0: --resume continues"):
        require_free(tmp_path, 0)
    with pytest.raises(InputError, match="has no complete checkpoint"):
        checkpoints_at(tmp_path / "nowhere", str)
