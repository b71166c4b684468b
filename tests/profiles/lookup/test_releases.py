"""Protects which table prices an engine: its own, of the nearest release, and the common one for what it lacks."""

import shutil
from pathlib import Path

import pytest
import yaml

from profiles.errors import NoBasisError
from profiles.lookup.releases import engine_of, operator_of, ordered
from profiles.lookup.table import TableCard
from profiles.records import Basis
from profiles.store import DATA, load_device


def card(*sources: tuple[str, str]) -> TableCard:
    return TableCard("", {}, "", sources=sources)


CARDS = {
    "gemm": card(("vllm", "0.24.0"), ("trtllm", "1.3.0rc20")),
    "gemm.sglang@0.5.9": card(),
    "gemm.sglang@0.5.14": card(),
    "gemm.tensorrt-llm@1.3.0rc10": card(),
    "gemm.tensorrt-llm@1.3.0rc20": card(),
    "gemm.vllm@0.18.0": card(),
    "moe.sglang@0.5.10": card(),
}


@pytest.mark.parametrize(
    ("engine", "release", "names"),
    [
        ("sglang", "0.5.6.post2", ["gemm.sglang@0.5.9", "gemm.sglang@0.5.14"]),
        ("sglang", "0.5.13", ["gemm.sglang@0.5.14", "gemm.sglang@0.5.9"]),
        ("tensorrt-llm", "1.0.0rc3", ["gemm.tensorrt-llm@1.3.0rc20", "gemm.tensorrt-llm@1.3.0rc10"]),
        ("vllm", "0.12", ["gemm.vllm@0.18.0", "gemm"]),
        ("vllm", "0.32", ["gemm", "gemm.vllm@0.18.0"]),
        ("deepspeed-hybrid", "0.14", []),
    ],
)
def test_the_nearest_release_comes_first(engine: str, release: str, names: list[str]) -> None:
    assert ordered("gemm", CARDS, engine, release) == names


MOE = {
    "moe": card(("vllm", "0.24.0")),
    "moe.vllm@0.19.0": card(),
    "moe.sglang@0.5.10": card(),
    "moe.sglang@0.5.14": card(),
    "moe.tensorrt-llm@1.3.0rc20": card(),
}


@pytest.mark.parametrize(
    ("engine", "release", "dtype", "part", "first"),
    [
        ("vllm", "0.16.0", "fp8_block", "NVIDIA H200", "moe.tensorrt-llm@1.3.0rc20"),
        ("vllm", "0.16.0", "fp8_block", "NVIDIA B200", "moe"),
        ("vllm", "0.16.0", "int4", "NVIDIA H200", "moe"),
        ("vllm", "0.14.1", "fp8_block", "NVIDIA H200", "moe"),
        ("vllm", "0.18.0", "fp8_block", "NVIDIA H200", "moe"),
        ("vllm", "0.18.0", "mxfp4_mxfp8", "NVIDIA B200", "moe.sglang@0.5.14"),
        ("sglang", "0.5.9", "mxfp4", "NVIDIA H100 80GB HBM3", "moe"),
        ("sglang", "0.5.9", "mxfp4", "NVIDIA B200", "moe.sglang@0.5.10"),
        ("tensorrt-llm", "1.2.0rc6", "nvfp4", "NVIDIA GB300", "moe"),
        ("tensorrt-llm", "1.2.0rc6", "nvfp4", "NVIDIA B200", "moe.tensorrt-llm@1.3.0rc20"),
        ("sglang", "0.5.9", "fp8_block", "NVIDIA H200", "moe.sglang@0.5.10"),
        ("sglang", "0.5.14", "fp8_block", "NVIDIA H200", "moe.sglang@0.5.14"),
    ],
)
def test_experts_are_priced_by_the_kernels_that_a_release_runs(
    engine: str, release: str, dtype: str, part: str, first: str
) -> None:
    assert ordered("moe", MOE, engine, release, dtype, part)[0] == first


def test_names_say_operator_and_engine() -> None:
    assert operator_of("attention_decode.sglang@0.5.14") == "attention_decode"
    assert engine_of("moe.sglang@0.5.10", card()) == ("sglang", "0.5.10")
    assert engine_of("gemm", CARDS["gemm"]) == ("vllm", "0.24.0")
    assert engine_of("gemm", card()) == ("", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A device whose GEMM table another engine has too, under a name of its own and with other times."""
    copied = tmp_path / "device"
    shutil.copytree(DATA / "a100-80gb-sxm", copied, ignore=lambda _, names: [n for n in names if "@" in n])
    other = DATA / "h100-80gb-sxm"
    shutil.copy(other / "gemm.parquet", copied / "gemm.sglang@0.5.9.parquet")
    text = yaml.safe_load((other / "gemm.yaml").read_text())
    (copied / "gemm.sglang@0.5.9.yaml").write_text(yaml.safe_dump(text))
    return copied


def test_an_engine_is_priced_by_its_own_table_and_by_the_common_one_for_the_rest(folder: Path) -> None:
    device = load_device(folder)
    engine = device.of_engine("sglang", "0.5.14")
    assert engine.gemm(64, 4096, 4096).s != device.gemm(64, 4096, 4096).s
    assert engine.gemm(64, 4096, 4096).s == pytest.approx(load_device("h100-80gb-sxm").gemm(64, 4096, 4096).s, rel=0.7)
    assert engine.attention_decode(8, 1024, 32, 8, 128).s == device.attention_decode(8, 1024, 32, 8, 128).s
    assert engine.facts_hash != device.facts_hash
    assert device.of_engine("sglang", "0.5.14") is engine
    assert device.of_engine("another", "1.0") is device
    assert engine.tables.names("gemm") == ["gemm.sglang@0.5.9", "gemm"]


def test_what_no_table_holds_is_said_for_the_best_table(folder: Path) -> None:
    with pytest.raises(NoBasisError, match="fp32"):
        load_device(folder).of_engine("sglang", "0.5.14").gemm(1, 128, 128, "fp32")


def test_another_engines_table_stands_in_for_a_format_that_an_engines_own_lack() -> None:
    device = load_device("rtx-pro-6000")
    shape = (4096, 1536, 8, 128)
    vllm, sglang = (device.of_engine(f, "0.12").moe(64, *shape, tp=4, dtype="fp8_block") for f in ("vllm", "sglang"))
    assert vllm.s == sglang.s
    assert sglang.weakest < Basis.ANALYTIC <= vllm.weakest


B300 = ("b300-sxm", "gb300")


@pytest.mark.parametrize("name", B300)
def test_four_bit_experts_are_no_slower_on_the_newer_part(name: str) -> None:
    """TensorRT-LLM's own table of them has 60 us for one token, three times B200's."""
    shape, tokens = (7168, 2048, 8, 256), [1, 64, 1024, 8192]
    newer, older = (load_device(n).of_engine("tensorrt-llm", "1.2.0") for n in (name, "b200-sxm"))
    times = [e.moe(tokens, *shape, tp=8, dtype="nvfp4").s for e in (newer, older)]
    assert (times[0] < 1.45 * times[1]).all()
