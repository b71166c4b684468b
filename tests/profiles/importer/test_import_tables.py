"""Protects the import of measured tables: units, version choice, what may be read at all, and that a bad source
leaves one clear error and nothing on disk. All sources are tiny wheels made here in the layout of the real one.
"""

import hashlib
import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.importer import import_tables as importer
from profiles.importer import source
from profiles.importer.import_tables import import_tables
from profiles.importer.source import version_key
from profiles.lookup.table import read_card
from profiles.store import DATA, load_device

DATA_DIR = "aiconfigurator_core/systems/data"
H100 = f"{DATA_DIR}/h100_sxm"
METADATA = "Metadata-Version: 2.4\nName: aiconfigurator-core\nVersion: 0.12.0\n"


def parquet(rows: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    rows.assign(device="NVIDIA H100 80GB HBM3").to_parquet(buffer)
    return buffer.getvalue()


def gemm(scale: float = 1.0, dtype: str = "bfloat16") -> pd.DataFrame:
    grid = [(m, n, k) for m in (1, 2, 4) for n in (64, 128) for k in (64, 128)]
    rows = pd.DataFrame(grid, columns=["m", "n", "k"])
    return rows.assign(gemm_dtype=dtype, kernel_source="a", latency=scale * (rows.m + rows.n + rows.k) / 100)


def nccl(groups: tuple[int, ...], scale: float = 1.0) -> pd.DataFrame:
    rows = pd.DataFrame([(g, s) for g in groups for s in (1024, 4096)], columns=["num_gpus", "message_size"])
    rows = rows.assign(op_name="all_gather", nccl_dtype="half", latency=scale * rows.message_size / 1e6)
    return pd.concat([rows, rows.assign(nccl_dtype="int8", message_size=rows.message_size * 2)])


def wheel(path: Path, members: dict[str, bytes | pd.DataFrame], metadata: str = METADATA) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("aiconfigurator_core-0.12.0.dist-info/METADATA", metadata)
        for name, content in members.items():
            archive.writestr(name, content if isinstance(content, bytes) else parquet(content))
    return path


def run(tmp_path: Path, members: dict[str, bytes | pd.DataFrame]) -> Path:
    import_tables(wheel(tmp_path / "a.whl", members), ["h100-80gb-sxm"], tmp_path / "out")
    return tmp_path / "out" / "h100-80gb-sxm"


def read(folder: Path, name: str) -> pd.DataFrame:
    return pq.read_table(folder / f"{name}.parquet").to_pandas()


def test_versions_sort_by_number_not_by_text() -> None:
    texts = ["0.5.9", "0.5.14", "1.3.0rc10", "1.3.0rc9", "1.3.0", "0.5.6.post2", "0.5.6", "0.1.dev19262", "2.29.2", "x"]
    ordered = sorted(texts, key=version_key)
    assert ordered == [
        *("x", "0.1.dev19262", "0.5.6", "0.5.6.post2", "0.5.9", "0.5.14"),
        *("1.3.0rc9", "1.3.0rc10", "1.3.0", "2.29.2"),
    ]


def test_newest_version_is_taken_and_latency_becomes_seconds(tmp_path: Path) -> None:
    members = {f"{H100}/gemm/vllm/{v}/gemm_perf.parquet": gemm(s) for v, s in (("0.9.0", 7.0), ("0.14.0", 1.0))}
    folder = run(tmp_path, members)
    rows = read(folder, "gemm")
    assert rows[(rows.m == 1) & (rows.n == 64) & (rows.k == 64)].latency_s.item() == pytest.approx(1.29e-3, rel=2e-4)
    card = yaml.safe_load((folder / "gemm.yaml").read_text())
    member = f"{H100}/gemm/vllm/0.14.0/gemm_perf.parquet"
    expected = {"framework": "vllm", "framework_version": "0.14.0", "path": member}
    assert card["sources"] == [{**expected, "sha256": hashlib.sha256(parquet(gemm())).hexdigest()}]
    assert card["package"] == "aiconfigurator-core 0.12.0" and card["licence"].startswith("Apache-2.0")
    assert card["rows"] == 12 and card["device_string"] == "NVIDIA H100 80GB HBM3"
    assert card["units"]["latency_s"] == "seconds"
    assert card["sha256"] == hashlib.sha256((folder / "gemm.parquet").read_bytes()).hexdigest()


def test_block_scaled_gemm_comes_from_the_framework_that_timed_the_device(tmp_path: Path) -> None:
    folder = run(
        tmp_path,
        {
            f"{H100}/gemm/vllm/0.24.0/gemm_perf.parquet": pd.concat([gemm(), gemm(90.0, "fp8_block")]),
            f"{H100}/gemm/trtllm/1.3.0rc20/gemm_perf.parquet": pd.concat([gemm(1.2), gemm(0.5, "fp8_block")]),
        },
    )
    smallest = read(folder, "gemm").groupby("dtype", observed=True).latency_s.min().to_dict()
    assert smallest == pytest.approx({"bf16": 1.29e-3, "fp8_block": 0.645e-3}, rel=2e-4)


def test_a_row_much_slower_than_other_engines_gives_way_to_theirs(tmp_path: Path) -> None:
    """A host floor or a hiccup of one engine's run; the sidecar counts what was put in its place."""
    slow, peers = gemm(), gemm(1.1)
    slow.loc[(slow.m == 1) & (slow.n == 64) & (slow.k == 64), "latency"] *= 40.0
    folder = run(
        tmp_path,
        {
            f"{H100}/gemm/vllm/0.24.0/gemm_perf.parquet": slow,
            f"{H100}/gemm/sglang/0.5.14/gemm_perf.parquet": peers,
        },
    )
    rows = read(folder, "gemm").set_index(["m", "n", "k"]).latency_s
    assert rows[1, 64, 64] == pytest.approx(1.1 * 1.29e-3, rel=2e-4)
    assert rows[2, 64, 64] == pytest.approx(1.30e-3, rel=2e-4)
    card = yaml.safe_load((folder / "gemm.yaml").read_text())
    assert card["substituted"] == {"bf16": "1 of 12 rows, on the median 36.36 times"}


def test_quantisation_is_taken_off_an_fp8_gemm(tmp_path: Path) -> None:
    """TensorRT-LLM times it in the GEMM; its own tables hold it, too. Half of a row stays at least."""
    quantise = pd.DataFrame([(m, k) for m in (1, 4) for k in (64, 128)], columns=["m", "k"]).assign(latency=0.29)
    folder = run(
        tmp_path,
        {
            f"{H100}/gemm/trtllm/1.3.0rc20/gemm_perf.parquet": gemm(dtype="fp8"),
            f"{H100}/quantize/trtllm/1.3.0rc20/computescale_perf.parquet": quantise,
            f"{H100}/quantize/trtllm/1.3.0rc20/scale_matrix_perf.parquet": quantise.assign(latency=0.5),
        },
    )
    rows = read(folder, "gemm.tensorrt-llm@1.3.0rc20").set_index(["m", "n", "k"]).latency_s
    assert rows[4, 128, 128] == pytest.approx(2.60e-3 - 0.79e-3, rel=2e-4)
    assert rows[1, 64, 64] == pytest.approx(1.29e-3 / 2, rel=2e-4)


def test_every_engine_has_its_own_table_beside_the_common_one(tmp_path: Path) -> None:
    members = {f"{H100}/gemm/{e}/{v}/gemm_perf.parquet": gemm() for e, v in (("vllm", "0.24.0"), ("sglang", "0.5.14"))}
    folder = run(tmp_path, {**members, f"{H100}/gemm/trtllm/1.3.0rc20/gemm_perf.parquet": gemm(dtype="nvfp4")})
    names = ["gemm", "gemm.sglang@0.5.14", "gemm.tensorrt-llm@1.3.0rc20"]
    assert sorted(path.stem for path in folder.glob("*.parquet")) == names
    assert read_card(folder / f"{names[1]}.yaml").sources == (("sglang", "0.5.14"),)
    assert set(read(folder, names[2]).dtype) == {"nvfp4"}
    # One part of the common table may be that engine's, too.
    both = pd.concat([gemm(), gemm(dtype="fp8_block")])
    folder = run(tmp_path, {**members, f"{H100}/gemm/trtllm/1.3.0rc20/gemm_perf.parquet": both})
    assert set(read(folder, names[2]).dtype) == {"bf16", "fp8_block"}


def test_fp8_cache_window_and_kernel_of_an_engine(tmp_path: Path) -> None:
    """An FP8 cache is read by FP8 queries where measured; the default kernel comes before a faster one."""
    keys = {"batch_size": 1, "num_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "isl": 128, "window_size": 0}
    one = {**keys, "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "kernel_source": "trtllm_mha", "latency": 1.0}
    rows = [
        one,
        {**one, "attn_dtype": "fp8", "latency": 2.0},
        {**one, "attn_dtype": "fp8", "kernel_source": "triton", "latency": 3.0},
        {**one, "attn_dtype": "fp8", "window_size": 128, "head_dim": 128, "latency": 4.0},
    ]
    path = f"{H100}/attention/sglang/0.5.14/context_attention_perf.parquet"
    folder = run(tmp_path, {path: pd.DataFrame(rows)})
    assert read(folder, "attention_prefill.sglang@0.5.14").latency_s.tolist() == pytest.approx([3e-3], rel=2e-4)
    windowed = read(folder, "attention_prefill_window.sglang@0.5.14")
    assert (windowed.window.item(), windowed.kv_dtype.item()) == (128, "fp8")


def test_a_linear_layer_adds_its_kernels(tmp_path: Path) -> None:
    one = {"phase": "generation", "batch_size": 4, "seq_len": 1, "num_k_heads": 2, "num_v_heads": 4}
    rows = [{**one, "kernel_source": "conv", "latency": 1.0}, {**one, "kernel_source": "rule", "latency": 2.0}]
    folder = run(tmp_path, {f"{H100}/linear_attention/vllm/0.24.0/gdn_perf.parquet": pd.DataFrame(rows)})
    table = read(folder, "linear_decode")
    assert table.columns.tolist() == ["k_heads", "v_heads", "batch", "latency_s"]
    assert table.latency_s.item() == pytest.approx(3e-3, rel=2e-4)


def test_message_size_counts_elements(tmp_path: Path) -> None:
    """int8 at twice the count takes the time of half: both are the same bytes once elements are converted."""
    rows = read(run(tmp_path, {f"{H100}/comm/nccl/2.29.2/nccl_perf.parquet": nccl((2, 4, 8))}), "collective")
    by_bytes = rows.pivot_table(index=["gpus", "num_bytes"], columns="dtype", values="latency_s", observed=True)
    assert sorted(set(rows.num_bytes)) == [2048, 8192]
    assert (by_bytes["int8"] == by_bytes["fp16"]).all()


def test_newest_collective_table_with_every_group_size_is_taken(tmp_path: Path) -> None:
    newest, complete = f"{H100}/comm/nccl/2.29.2/nccl_perf.parquet", f"{H100}/comm/nccl/2.9.1/nccl_perf.parquet"
    folder = run(tmp_path, {newest: nccl((2, 4)), complete: nccl((2, 4, 8), 2.0)})
    assert set(read(folder, "collective").gpus) == {2, 4, 8}
    assert yaml.safe_load((folder / "collective.yaml").read_text())["sources"][0]["framework_version"] == "2.9.1"


def test_expert_exchange_is_in_microseconds_and_adds_dispatch_and_combine(tmp_path: Path) -> None:
    shape = {"ep_size": 8, "node_num": 1, "hidden_size": 7168, "topk": 8, "num_experts": 256, "num_tokens": 128}
    rows = pd.DataFrame(
        [{**shape, "phase": "dispatch", "latency": 100.0}, {**shape, "phase": "combine", "latency": 50.0}]
    )
    folder = run(tmp_path, {f"{H100}/comm/vllm/0.24.0/moe_a2a_perf.parquet": rows.assign(comm_backend="deepep_ll")})
    table = read(folder, "moe_all_to_all")
    assert table.latency_s.item() == pytest.approx(150e-6, rel=2e-4) and table.phase.item() == "decode"


def test_decode_step_becomes_the_tokens_read_and_windows_are_left_out(tmp_path: Path) -> None:
    keys = {"batch_size": 1, "num_heads": 8, "num_key_value_heads": 1, "head_dim": 128, "kv_cache_dtype": "fp8"}
    keys |= {"attn_dtype": "bfloat16", "kernel_source": "a"}
    full = pd.DataFrame([{**keys, "step": 127, "window_size": 0, "latency": 1.0}])
    rows = pd.concat([full, full.assign(window_size=128, latency=9.0), full.assign(head_dim=1024)])
    path = f"{H100}/attention/vllm/0.24.0/generation_attention_perf.parquet"
    table = read(run(tmp_path, {path: rows}), "attention_decode")
    assert (len(table), table.context.item(), table.kv_dtype.item()) == (1, 128, "fp8")
    # A table that is older than sliding windows has no such column.
    table = read(run(tmp_path, {path: full.drop(columns="window_size")}), "attention_decode")
    assert len(table) == 1


def test_mla_falls_back_to_the_kernel_and_says_so(tmp_path: Path) -> None:
    keys = {"num_heads": [16], "batch_size": [1], "kv_cache_dtype": ["bfloat16"], "latency": [1.0]}
    kernel = pd.DataFrame({**keys, "isl": [128], "mla_dtype": ["bfloat16"]})
    folder = run(tmp_path, {f"{H100}/mla/trtllm/1.0.0/context_mla_perf.parquet": kernel})
    assert yaml.safe_load((folder / "mla_prefill.yaml").read_text())["facts"] == {"covers_projections": False}
    both = {f"{H100}/mla/vllm/0.24.0/mla_context_module_perf.parquet": kernel.assign(gemm_type="bfloat16")}
    folder = run(tmp_path, {**both, f"{H100}/mla/trtllm/1.0.0/context_mla_perf.parquet": kernel})
    assert yaml.safe_load((folder / "mla_prefill.yaml").read_text())["facts"] == {"covers_projections": True}


def test_repeats_take_the_median_and_kernels_the_fastest(tmp_path: Path) -> None:
    one = gemm()[lambda r: (r.m == 1) & (r.n == 64) & (r.k == 64)]
    repeats = [one.assign(latency=x) for x in (0.10, 0.11, 0.50)]
    other = one.assign(latency=0.12, kernel_source="b")
    table = read(run(tmp_path, {f"{H100}/gemm/vllm/0.24.0/gemm_perf.parquet": pd.concat([*repeats, other])}), "gemm")
    assert table.latency_s.tolist() == pytest.approx([0.11e-3], rel=2e-4)


def test_a_row_slower_than_a_larger_problem_is_dropped_and_counted(tmp_path: Path) -> None:
    rows = gemm()
    rows.loc[(rows.m == 2) & (rows.n == 64) & (rows.k == 64), "latency"] = 50.0
    folder = run(tmp_path, {f"{H100}/gemm/vllm/0.24.0/gemm_perf.parquet": rows})
    assert len(read(folder, "gemm")) == 11
    assert "1 rows slower by more than 25%" in " ".join(yaml.safe_load((folder / "gemm.yaml").read_text())["dropped"])


def test_only_operator_tables_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end-to-end samples that a planner is judged by must stay unseen."""
    seen: list[str] = []
    original = zipfile.ZipFile.read
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda self, name: (seen.append(name), original(self, name))[1])
    forbidden = {
        f"{DATA_DIR}/silicon_sample.csv": b"secret",
        "aiconfigurator_core/systems/support_matrix.csv": b"secret",
        f"{H100}/fpm/vllm/0.24.0/fpm_perf.parquet": b"secret",
    }
    run(tmp_path, {**forbidden, f"{H100}/gemm/vllm/0.24.0/gemm_perf.parquet": gemm()})
    assert [name for name in seen if "METADATA" not in name] == [f"{H100}/gemm/vllm/0.24.0/gemm_perf.parquet"]
    part = importer.RULES[0].slots[0][0]
    with pytest.raises(InputError, match="may not be imported"):
        importer._member("h100-80gb-sxm", importer.Part("fpm", "vllm", "x", (), part.convert), "1")  # noqa: SLF001


def test_an_installed_copy_serves_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, member = tmp_path / "site", f"{H100}/gemm/vllm/0.24.0/gemm_perf.parquet"
    info = site / "aiconfigurator_core-0.12.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "RECORD").write_text(f"{member},,\n")
    (site / member).parent.mkdir(parents=True)
    (site / member).write_bytes(parquet(gemm()))
    monkeypatch.syspath_prepend(str(site))
    written = import_tables(None, ["h100-80gb-sxm"], tmp_path / "out")
    assert [path.name for path in written] == ["gemm.parquet", "gemm.yaml"]


def test_without_an_installed_copy_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PACKAGE", "aiconfigurator-core-that-nobody-has")
    with pytest.raises(InputError, match="install it, or give the path of its wheel"):
        import_tables(None, ["h100-80gb-sxm"], tmp_path)


GEMM_MEMBER = f"{H100}/gemm/vllm/0.24.0/gemm_perf.parquet"


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ({GEMM_MEMBER: gemm().drop(columns="k")}, FileFormatError, "no column k"),
        ({GEMM_MEMBER: parquet(gemm())[:-40]}, FileFormatError, "truncated or not a parquet file"),
        ({GEMM_MEMBER: b"PAR1"}, FileFormatError, "truncated or not a parquet file"),
        ({}, InputError, "no operator tables of h100-80gb-sxm"),
        ({f"{H100}/comm/nccl/2.29.2/nccl_perf.parquet": nccl((2,)), GEMM_MEMBER: b""}, FileFormatError, "gemm_perf"),
    ],
)
def test_a_bad_table_leaves_what_was_there(
    tmp_path: Path, members: dict[str, bytes | pd.DataFrame], error: type[Exception], message: str
) -> None:
    folder = run(tmp_path, {GEMM_MEMBER: gemm()})
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(error, match=message) as caught:
        run(tmp_path, members)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["h100-80gb-sxm"]


def test_a_bad_wheel_is_refused(tmp_path: Path) -> None:
    good = wheel(tmp_path / "good.whl", {GEMM_MEMBER: gemm()})
    (tmp_path / "cut.whl").write_bytes(good.read_bytes()[:500])
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    other = wheel(tmp_path / "other.whl", {}, METADATA.replace("aiconfigurator-core", "numpy"))
    cases = [
        (tmp_path / "cut.whl", FileFormatError, "not a wheel"),
        (tmp_path / "plain.zip", FileFormatError, "not a wheel"),
        (other, InputError, "a wheel of 'numpy'"),
        (tmp_path / "absent.whl", InputError, "cannot be opened"),
        (tmp_path, InputError, "cannot be opened"),
    ]
    for path, error, message in cases:
        with pytest.raises(error, match=message):
            import_tables(path, ["h100-80gb-sxm"], tmp_path / "out")
    with pytest.raises(UnknownNameError, match="did you mean h100-80gb-sxm"):
        import_tables(good, ["h100-80gb"], tmp_path / "out")


def test_what_was_imported_loads_as_a_device(tmp_path: Path) -> None:
    folder = run(tmp_path, {GEMM_MEMBER: gemm()})
    shutil.copy(DATA / "h100-80gb-sxm" / "device.yaml", folder)
    price = load_device(folder).gemm([1, 4], 64, 128)
    np.testing.assert_allclose(price.s, [1.93e-3, 1.96e-3], rtol=2e-4)
    assert price.weakest.tolist() == [0, 0]
