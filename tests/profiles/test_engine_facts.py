"""Protects the engines' constants: every file loads, every number has a meaning and a source, and equal files have
equal hashes.
"""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import yaml

from profiles import engine_facts
from profiles.engine_facts import (
    GenerationEngine,
    TrainingEngine,
    default_engine,
    engine_constants,
    engine_names,
    load_generation_engine,
    load_training_engine,
)
from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.records import Basis

NOT_FACTS = {
    "name",
    "facts_hash",
    "cuda_graphs",
    "prefix_sharing",
    "shares_weights",
    "zero_stages",
    "scheduler",
    "plans_ahead",
    "fp8_cache_with",
    "fused_quantization",
    "mxfp8_activations",
    "drafts_in_graph",
    "family",
    "release",
    "grouped_query_kernels",
    "window_frees_cache",
    "share_holds_activations",
    "bases",
}


@pytest.mark.parametrize("kind", ["training", "generation"])
def test_every_shipped_engine_loads_with_exactly_its_facts(kind: str) -> None:
    load = load_training_engine if kind == "training" else load_generation_engine
    names = engine_names(kind)
    assert names
    for name in names:
        engine = load(name)
        assert engine.name == name
        known = [
            f for f in fields(TrainingEngine if kind == "training" else GenerationEngine) if f.name not in NOT_FACTS
        ]
        constants = engine_constants(name)
        assert {f.name for f in known if f.default is MISSING} <= set(constants) <= {f.name for f in known}
        for key, fact in constants.items():
            assert getattr(engine, key) == fact.value
            assert engine.basis(key).name.lower() == fact.basis
            assert fact.unit
            assert fact.meaning
            assert fact.source
            assert fact.value >= 0


def test_the_trainer_of_the_paper_keeps_18_bytes_per_parameter() -> None:
    engine = load_training_engine("megatron-core@0.6")
    assert 2 + engine.grad_bytes_per_param + engine.optimizer_bytes_per_param == 18
    assert engine.zero_stages == (1,)
    assert load_training_engine("fsdp@2.13").zero_stages == (3,)


def test_a_fitted_constant_names_the_rows_it_was_fitted_on() -> None:
    for kind in ("training", "generation"):
        for name in engine_names(kind):
            for key, fact in engine_constants(name).items():
                if fact.source.startswith("fit on"):
                    assert fact.fit_rows, f"{name}: {key}"


NOT_PUBLISHED = re.compile(
    r"carried over|not fitted|placeholder|as recalled|commonly|we assume|our assumption|^counted"
)
"""What the source of a number says that nobody else has published."""


@pytest.mark.parametrize("name", engine_names("training") + engine_names("generation"))
def test_a_published_constant_is_what_its_source_published(name: str) -> None:
    """What RDMA commonly reaches and what we count ourselves stood as published."""
    published = {key: fact.source for key, fact in engine_constants(name).items() if fact.basis == "published"}
    assert {key: source for key, source in published.items() if NOT_PUBLISHED.search(source)} == {}


def test_a_constant_that_no_file_states_is_assumed_unless_it_leaves_its_term_out() -> None:
    engine = load_training_engine("megatron-core@0.6")
    assert engine.basis("offload_bytes_per_s") is Basis.ASSUMED
    assert engine.basis("call_s", "element_wise_ratio") is Basis.MEASURED
    assert load_training_engine("fsdp@2.13").basis("step_fixed_s", "call_s") is Basis.FITTED


def test_versions_sort_as_numbers_and_the_newest_is_the_default() -> None:
    versions = [n for n in engine_names("training") if "megatron-core" in n]
    assert versions == ["megatron-core@0.6", "megatron-core@0.14", "megatron-core@0.16"]
    assert default_engine("training") == "megatron-core@0.16"
    assert default_engine("generation") == engine_names("generation")[-1] == "vllm@0.32"


def test_hashes_tell_files_apart() -> None:
    hashes = {load_training_engine(n).facts_hash for n in engine_names("training")}
    hashes |= {load_generation_engine(n).facts_hash for n in engine_names("generation")}
    assert len(hashes) == len(engine_names("training")) + len(engine_names("generation"))
    assert load_training_engine("megatron-core@0.6").facts_hash == load_training_engine("megatron-core@0.6").facts_hash


def test_unknown_names_and_wrong_kinds() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown generation engine 'vllm@V0.31'; did you mean"):
        load_generation_engine("vllm@V0.31")
    with pytest.raises(InputError, match=r"'vllm@0.32' is a generation engine; known: .*fsdp@2.13"):
        load_training_engine("vllm@0.32")
    with pytest.raises(InputError, match=r"'megatron-core@0.6' is a training engine"):
        load_generation_engine("megatron-core@0.6")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of one engine file under a new name, in a folder of its own."""
    content = yaml.safe_load((Path(engine_facts.__file__).parent / "engines" / "megatron-core@0.6.yaml").read_text())
    (tmp_path / "mine@1.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(engine_facts, "_FOLDER", tmp_path)
    return tmp_path


SECONDS = {"value": 1.0, "unit": "s", "meaning": "", "basis": "assumed", "source": ""}


def edit(folder: Path, **changes: object) -> None:
    path = folder / "mine@1.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def test_a_new_file_is_an_engine(folder: Path) -> None:
    assert engine_names("training") == ["mine@1"]
    assert load_training_engine("mine@1").name == "mine@1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "cooking"}, "kind"),
        ({"colour": "red"}, "colour"),
        ({"facts": {}}, "states no .*overlap_dp"),
        ({"facts": {"start_skew_s": SECONDS}}, "no fact of a training engine is start_skew_s; .* profile"),
        ({"facts": {"overlap_dp": {"value": 1}}}, "unit"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, changes: dict[str, object], message: str) -> None:
    edit(folder, **changes)
    with pytest.raises(FileFormatError, match=rf"(?s)mine@1.*{message}"):
        load_training_engine("mine@1")


@pytest.mark.parametrize(
    ("kind", "fact", "value", "message"),
    [
        ("training", "overlap_dp", 1.7, "a share is at most 1, got 1.7"),
        ("training", "forward_s_per_layer", -1.0, "greater than or equal to 0"),
        ("training", "forward_s_per_layer", float("nan"), "finite"),
        ("generation", "max_num_seqs", 0.0, "is at least 1, got 0"),
    ],
)
def test_a_number_that_no_engine_has_is_refused(folder: Path, kind: str, fact: str, value: float, message: str) -> None:
    """Negative host times and a share of 1.7 were planned with."""
    known = {"value": value, "unit": "share" if fact == "overlap_dp" else "s", "meaning": "", "basis": "assumed"}
    edit(folder, kind=kind, facts={fact: known | {"source": ""}})
    with pytest.raises(FileFormatError, match=rf"mine@1.*{fact}.*{message}"):
        load_training_engine("mine@1")


def test_an_engine_is_as_a_job_starts_it() -> None:
    plain = load_generation_engine("vllm@0.32")
    settings = {"kv_memory_share": 0.5, "plans_ahead": False, "fp8_cache_with": ["bf16"]}
    started = load_generation_engine("vllm@0.32", settings)
    assert (started.kv_memory_share, started.plans_ahead, started.fp8_cache_with) == (0.5, False, ("bf16",))
    assert started.basis("kv_memory_share") is Basis.ASSUMED and started.max_num_seqs == plain.max_num_seqs
    assert len({plain.facts_hash, started.facts_hash, load_generation_engine("vllm@0.32", {}).facts_hash}) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_memory_share": 1.7}, "engines.generation_settings.kv_memory_share: a share is at most 1, got 1.7"),
        ({"host_s_per_step": -1}, "engines.generation_settings.host_s_per_step: .*greater than or equal to 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is at least 1, got 0"),
        ({"scheduler": "random"}, "engines.generation_settings.scheduler: .*prefill-first"),
        ({"kv_memory_shar": 0.5}, "kv_memory_share"),
        ({"engine": "mine"}, "setting 'engine'"),
        ({"interleaving": True}, "setting 'interleaving'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_generation_engine("vllm@0.32", settings)


@pytest.mark.parametrize(
    ("name", "stands_in"),
    [
        ("vllm@0.31", ("vllm@0.32", "vllm@0.12")),
        ("vllm@0.13", ("vllm@0.12", "vllm@0.32")),
        ("vllm@1.2", ("vllm@0.32", "vllm@0.12")),
        ("vllm@0.2", ("vllm@0.3.1", "vllm@0.12")),
        ("vllm@0.12", ()),
    ],
)
def test_a_release_that_is_not_profiled_takes_the_facts_of_the_nearest(name: str, stands_in: tuple[str, ...]) -> None:
    engine = load_generation_engine(name)
    assert (engine.name, engine.release, engine.stands_in) == (name, name.split("@")[1], stands_in)
    nearest = load_generation_engine(stands_in[0] if stands_in else name)
    assert engine.host_s_per_sequence == nearest.host_s_per_sequence
    assert (engine.basis("host_s_per_sequence") is Basis.ASSUMED) == bool(stands_in)
