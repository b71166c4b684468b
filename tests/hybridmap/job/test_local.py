"""Protects what a profile folder changes of a job: device, engines and number formats, and nothing else."""

from pathlib import Path

import pytest

from hybridmap.job.implementation import ImplementationSection
from hybridmap.job.local import on_this_machine
from hybridmap.job.problems import parse_job
from hybridmap.job.schema import ClusterSection, RoleSection
from hybridmap.profiling.device_file import slug, write_device_file
from hybridmap.profiling.engine_files import write_engine_files
from profiles.engine_names import TRAINING
from profiles.errors import InputError
from profiles.store import load_device

ABOUT = {"device_string": "Some(R) CPU 9000 @ 1GHz", "cores": 4, "threads_per_rank": 2, "memory_bytes": 1 << 30}
JOB = parse_job(
    {
        "algorithm": "ppo",
        "models": {"actor": "x.json", "critic": {"shape": "y"}},
        "workload": {"prompts": 4, "prompt_length": 8, "response_length": 8},
        "cluster": [{"device": "a100-80gb-sxm", "nodes": 2}],
        "run": {
            "dtype": "fp32",
            "weights": {"actor": "x.json"},
            "data": {"task": "sorted-digits", "alphabet": "0123456789=+"},
        },
        "implementation": {"old_log_prob": "trainer"},
    },
    "job",
    None,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_device_file(tmp_path, ABOUT, {}, "cpu")
    write_engine_files(tmp_path, load_device(tmp_path), {})
    return tmp_path


def test_cluster_engines_and_formats_are_this_machines(folder: Path) -> None:
    found = on_this_machine(JOB, folder, ranks=3)
    assert found.cluster == [ClusterSection(device=str(folder.resolve()), nodes=1, gpus_per_node=3)]
    assert found.engines.training is not None and found.engines.training.endswith(TRAINING)
    assert found.implementation == ImplementationSection(
        kernels="eager", loss_head="unfused", old_log_prob="trainer", training_dtype="fp32"
    )
    assert found.models["critic"] == RoleSection(shape="y", precision="fp32")
    assert found.workload == JOB.workload and found.algorithm == "ppo"
    assert on_this_machine(JOB, folder).cluster[0].gpus_per_node == 2  # cores over threads


def test_what_the_job_says_of_its_implementation_wins(folder: Path) -> None:
    given = JOB.model_copy(update={"implementation": ImplementationSection(kernels="fused")})
    assert on_this_machine(given, folder).implementation.kernels == "fused"
    assert on_this_machine(given, folder).implementation.loss_head == "unfused"


def test_a_folder_without_a_profile_is_refused_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"device\.yaml is missing\); 'hybridmap profile --quick"):
        on_this_machine(JOB, tmp_path)


def test_a_measured_card_names_the_part_and_is_a_cpu(folder: Path) -> None:
    spec = load_device(folder).spec
    assert spec.kind == "cpu" and spec.name == slug(ABOUT["device_string"]) == "some-cpu-9000-1ghz"


def test_a_known_part_keeps_its_datasheet(tmp_path: Path) -> None:
    name = write_device_file(tmp_path, {**ABOUT, "device_string": "NVIDIA H200"}, {}, "gpu")
    spec = load_device(tmp_path).spec
    assert name == spec.name == "h200-sxm-measured" and spec.kind == "gpu"
    assert spec.peak("bf16") == load_device("h200-sxm").spec.peak("bf16")
