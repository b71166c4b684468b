"""Protects the device store: shipped folders are whole and small, a damaged file is named, a user's folder works,
and loading stays cheap enough for a command line.
"""

import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from profiles import store
from profiles.errors import FileFormatError, NoBasisError, UnknownNameError
from profiles.lookup import device_tables
from profiles.other_kernels import LIKE_THE_TABLES, OtherKernels
from profiles.records import Basis
from profiles.store import DATA, device_called, device_names, load_device
from tests.work import calls_of

TABLES = {"gemm", "attention_prefill", "attention_decode", "mla_prefill", "mla_decode", "moe", "collective"}
MIB = 1024**2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "a100-80gb-sxm", tmp_path / "mine"))


def test_catalogue() -> None:
    assert device_names() == (
        *("a100-80gb-sxm", "a800-80gb-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300", "h100-80gb-sxm"),
        *("h20-96gb-sxm", "h200-sxm", "h800-80gb-sxm", "l40s", "mi300x-192gb", "rtx-pro-6000"),
    )
    assert load_device("gb200") is load_device("gb200")
    with pytest.raises(UnknownNameError, match="did you mean h100-80gb-sxm"):
        load_device("h100-80gb")


DERIVED = {"a800-80gb-sxm": "a100-80gb-sxm", "h20-96gb-sxm": "h100-80gb-sxm", "h800-80gb-sxm": "h100-80gb-sxm"}
OF_ANOTHER_MAKER = {"mi300x-192gb": "h200-sxm"}
MEASURED = [name for name in device_names() if name not in {**DERIVED, **OF_ANOTHER_MAKER}]


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_device_reads_the_tables_of_its_die_and_says_so(name: str) -> None:
    """Same compute class, other links: efficiencies are held, and no price counts as measured."""
    mine, other = load_device(name), load_device(DERIVED[name])
    assert mine.tables is other.tables and mine.facts_hash != other.facts_hash
    price = mine.gemm(4096, 4096, 4096)
    own = mine.spec.kernels
    assert price.weakest.item() == (Basis.ANALYTIC if own == LIKE_THE_TABLES else Basis.ASSUMED)
    ratio = other.spec.peak("bf16") / (own.matrix * mine.spec.peak("bf16"))
    assert price.s / other.gemm(4096, 4096, 4096).s == pytest.approx(ratio, rel=0.02)
    slower = other.spec.nvlink_bytes_per_s / mine.spec.nvlink_bytes_per_s
    big = (1 << 30, 8)
    assert mine.collective("all_gather", *big).s / other.collective("all_gather", *big).s == pytest.approx(
        slower, rel=0.02
    )


def test_slower_matrix_units_reach_more_of_their_peak() -> None:
    """What a kernel does beside them takes as long as on the larger part: a greater share of the peak is left."""
    small, large = load_device("h20-96gb-sxm"), load_device("h100-80gb-sxm")
    size, one = 8192, np.asarray([1.0])
    for own, other in (
        (small.gemm(size, size, size), large.gemm(size, size, size)),
        (small.attention_prefill(one, 2.0 * size, 32, 8, 128), large.attention_prefill(one, 2.0 * size, 32, 8, 128)),
    ):
        slower = large.spec.peak("bf16") / small.spec.peak("bf16")
        assert 0.7 * slower < float((own.s / other.s).item()) < 0.9 * slower
    flop = 2.0 * size**3
    assert flop / small.gemm(size, size, size).s < 0.95 * small.spec.peak("bf16")


def test_attention_of_prompts_has_a_share_of_its_own() -> None:
    """Products and reads of a cache stay as they are."""
    base = load_device("a100-80gb-sxm")
    own = base.with_spec(replace(base.spec, kernels=OtherKernels(attention=1.25)))
    prompt, cache = (np.asarray([4.0]), np.asarray([8192.0]), 32, 8, 128), (np.asarray([64.0]), 4096.0, 32, 8, 128)
    assert own.attention_prefill(*prompt).s == pytest.approx(base.attention_prefill(*prompt).s / 1.25, rel=1e-3)
    assert own.attention_decode(*cache).s == base.attention_decode(*cache).s
    assert own.gemm(4096, 4096, 4096).s == base.gemm(4096, 4096, 4096).s


@pytest.mark.parametrize("name", OF_ANOTHER_MAKER)
def test_a_part_of_another_maker_is_priced_by_what_its_own_kernels_reach(name: str) -> None:
    """Large products at their share, groups at the links that they use, a gap before each kernel: all assumed."""
    mine, other = load_device(name), load_device(OF_ANOTHER_MAKER[name])
    own = mine.spec.kernels
    price = mine.gemm(8192, 8192, 8192)
    assert price.weakest.item() == Basis.ASSUMED
    ratio = other.spec.peak("bf16") / (own.matrix * mine.spec.peak("bf16"))
    assert price.s / other.gemm(8192, 8192, 8192).s == pytest.approx(ratio, rel=0.02)
    two, four = (float(mine.collective("all_gather", 1 << 30, gpus).s) for gpus in (2, 4))
    assert two > four  # one link of seven, and three
    kernels = 10
    small = mine.memory_bound(0.0, kernels).s - other.memory_bound(0.0, kernels).s
    assert small == pytest.approx(kernels * own.gap_s)
    assert mine.gemm(0, 8, 8).s == 0.0


def test_each_kernel_of_a_decode_attention_waits_for_the_one_before() -> None:
    base = load_device("h200-sxm")
    one, two = (OtherKernels(gap_s=1e-5, decode_kernels=n) for n in (1, 2))
    cache = (np.asarray([64.0]), 4096.0, 32, 8, 128)
    first, second = (
        base.with_spec(replace(base.spec, kernels=k)).attention_decode(*cache).s.item() for k in (one, two)
    )
    assert second - first == pytest.approx(1e-5)


def test_a_card_that_names_unknown_kernels_is_refused(tmp_path: Path) -> None:
    card = yaml.safe_load((DATA / "mi300x-192gb" / "device.yaml").read_text())
    card["kernels"] = {"caches": card["kernels"]["matrix"]}
    (tmp_path / "device.yaml").write_text(yaml.safe_dump(card))
    with pytest.raises(FileFormatError, match="caches: known are matrix"):
        load_device(tmp_path)


def test_collectives_of_another_part_are_scaled_to_the_links_of_this_one() -> None:
    """The L40S's own were measured without peer access; those of a PCIe 5.0 card stand in at half their rate."""
    mine, other = (load_device(name) for name in ("l40s", "rtx-pro-6000"))
    price, theirs = (device.collective("all_gather", 1 << 30, 8) for device in (mine, other))
    assert price.weakest.item() == Basis.ANALYTIC
    assert price.s.item() == pytest.approx(2 * theirs.s.item(), rel=0.01)
    assert mine.gemm(4096, 4096, 4096).weakest.item() < Basis.ANALYTIC


@pytest.mark.parametrize("other", ["l40s", "h1000", "../secrets"])
def test_collectives_of_no_other_device_are_refused(tmp_path: Path, other: str) -> None:
    card = yaml.safe_load((DATA / "l40s" / "device.yaml").read_text()) | {"collectives_of": other}
    (tmp_path / "device.yaml").write_text(yaml.safe_dump(card))
    with pytest.raises(FileFormatError, match="is no other device of the catalogue"):
        load_device(tmp_path)


def test_tables_of_a_device_without_any_are_refused(tmp_path: Path) -> None:
    for other in ("h800-80gb-sxm", "../secrets"):
        card = yaml.safe_load((DATA / "h800-80gb-sxm" / "device.yaml").read_text()) | {"tables_of": other}
        (tmp_path / "device.yaml").write_text(yaml.safe_dump(card))
        with pytest.raises(FileFormatError, match="is no device with tables"):
            load_device(tmp_path)


@pytest.mark.parametrize("name", MEASURED)
def test_shipped_tables_are_whole_small_and_tell_their_source(name: str) -> None:
    profile = load_device(name)
    paths = sorted((DATA / name).glob("*.parquet"))
    assert {path.stem for path in paths} >= TABLES
    assert sum(path.stat().st_size for path in paths) < 2 * MIB
    for path in paths:
        card = yaml.safe_load(path.with_suffix(".yaml").read_text())
        assert card["device_string"] == profile.spec.device_string
        assert card["package"].startswith("aiconfigurator-core ") and "Apache-2.0" in card["licence"]
        assert all(source["framework_version"] and len(source["sha256"]) == 64 for source in card["sources"])
        # Reading checks the bytes against the recorded sha256.
        table = profile.tables._table(path.stem, "")  # noqa: SLF001
        assert {len(column) for column in table.data.values()} == {card["rows"]}
        assert set(table.data) == set(card["units"])


def test_notice_names_the_source_of_the_tables() -> None:
    notice = (DATA.parents[1] / "NOTICE").read_text()
    assert "aiconfigurator-core 0.12.0" in notice and "NVIDIA CORPORATION & AFFILIATES" in notice


def test_mla_tables_say_what_they_cover() -> None:
    covers = {name: load_device(name).mla_covers_projections for name in MEASURED}
    assert covers == {name: name != "a100-80gb-sxm" for name in MEASURED}


def test_a_folder_of_ones_own_works_like_the_catalogue(folder: Path) -> None:
    mine, shipped = load_device(folder), load_device("a100-80gb-sxm")
    assert mine.facts_hash == shipped.facts_hash
    assert mine.gemm(100, 4096, 4096).s == shipped.gemm(100, 4096, 4096).s
    assert load_device(str(folder)) is mine


def test_facts_hash_follows_facts_and_tables_only(folder: Path) -> None:
    before = load_device(folder).facts_hash
    card = folder / "gemm.yaml"
    for path, old, new, same in [
        (card, '"import_date": "20', '"import_date": "19', True),
        (folder / "device.yaml", "value: 400", "value: 401", False),
        (card, ' "sha256": "', ' "sha256": "0', False),
    ]:
        assert old in path.read_text()
        head, _, tail = path.read_text().rpartition(old)
        path.write_text(head + new + tail)
        store._load.cache_clear()  # noqa: SLF001
        assert (load_device(folder).facts_hash == before) is same
        before = load_device(folder).facts_hash


@pytest.mark.parametrize("damage", ["truncate", "change"])
def test_a_damaged_table_is_named(folder: Path, damage: str) -> None:
    path = folder / "gemm.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-10] if damage == "truncate" else content[:100] + b"x" + content[101:])
    profile = load_device(folder)
    with pytest.raises(FileFormatError, match=r"gemm\.parquet: truncated or changed"):
        profile.gemm(1, 2, 3)
    assert profile.attention_prefill(1, 128, 8, 8, 128).s > 0


def test_a_table_without_its_data_or_with_a_broken_sidecar_is_named(folder: Path) -> None:
    (folder / "gemm.parquet").unlink()
    with pytest.raises(FileFormatError, match=r"gemm\.parquet: missing"):
        load_device(folder)
    (folder / "gemm.yaml").write_text("- no sidecar")
    with pytest.raises(FileFormatError, match=r"gemm\.yaml"):
        load_device(folder)


def test_without_tables_only_stated_rules_price(folder: Path) -> None:
    for path in [*folder.glob("*.parquet"), *(p for p in folder.glob("*.yaml") if p.stem != "device")]:
        path.unlink()
    profile = load_device(folder)
    for call, name in [
        (lambda: profile.gemm(1, 2, 3), "gemm"),
        (lambda: profile.attention_prefill(1, 2, 8, 8, 128), "attention_prefill"),
        (lambda: profile.attention_decode(1, 2, 8, 8, 128), "attention_decode"),
        (lambda: profile.mla_prefill(1, 2, 8), "mla_prefill"),
        (lambda: profile.mla_decode(1, 2, 8), "mla_decode"),
        (lambda: profile.moe(1, 2048, 768, 8, 128), "moe"),
        (lambda: profile.moe_all_to_all(1, 2048, 8, 128, 8), "moe_all_to_all"),
        (lambda: profile.collective("all_gather", 1, 2), "collective"),
        (lambda: profile.decode_all_reduce(1, 2), "collective"),
    ]:
        with pytest.raises(NoBasisError, match=rf"no measurement of .* {name}\.parquet"):
            call()
    assert profile.memory_bound(1e9).share() == profile.host_copy(1e9).share()
    assert not profile.mla_covers_projections


def test_a_profile_can_be_sent_to_another_process() -> None:
    profile = load_device("a100-80gb-sxm")
    expected = profile.moe(64, 4096, 14336, 2, 8).s
    assert pickle.loads(pickle.dumps(profile)).moe(64, 4096, 14336, 2, 8).s == expected


def test_loading_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """One table is read for a price that needs one, and little is done besides."""
    read: list[str] = []
    real = device_tables.read_table
    monkeypatch.setattr(device_tables, "read_table", lambda path, card: read.append(path.name) or real(path, card))
    load_device("h100-80gb-sxm").gemm(64, 64, 64)  # what is imported when first used is
    read.clear()
    store._load.cache_clear()  # noqa: SLF001
    assert calls_of(lambda: load_device("h100-80gb-sxm").gemm(64, 64, 64)) < 20_000
    assert read == ["gemm.parquet"]


def test_a_table_is_read_without_pandas() -> None:
    ask = "from profiles.store import load_device; load_device('h100-80gb-sxm').gemm(64, 64, 64)"
    code = f"import sys; {ask}; print([m for m in ('pandas', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=DATA.parents[1])
    assert done.stdout.strip() == "[]"


def test_importing_the_store_pulls_in_no_table_reader() -> None:
    code = "import sys, profiles.store; print([m for m in ('pandas', 'pyarrow', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=DATA.parents[1])
    assert done.stdout.strip() == "[]"


def test_a_device_by_what_people_call_it():
    assert device_called("NVIDIA H100 80GB HBM3") == "h100-80gb-sxm"
    with pytest.raises(UnknownNameError, match="h1000"):
        device_called("h1000")
