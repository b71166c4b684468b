"""Protects `init`: what it writes is a job that plans, for every algorithm, and it never overwrites by accident."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hybridmap.job.load import load_job
from hybridmap.job.template import roles_of
from simulator.plan.algorithms import ALGORITHMS
from tests.work import HANGS_S

CATALOGUE = Path(__file__).parents[3] / "profiles" / "models" / "configs"


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_gets_a_job_that_loads(run, tmp_path, algorithm):
    path = tmp_path / "job.yaml"
    result = run("init", path, "--algorithm", algorithm, "--model", "qwen2.5-0.5b")
    assert result.exit_code == 0, result.output
    document = load_job(path).document
    assert document["algorithm"] == algorithm
    assert sorted(document["models"]) == sorted(roles_of(algorithm))


def test_flags_end_up_in_the_job(run, tmp_path):
    path = tmp_path / "job.yaml"
    args = ("--algorithm", "ppo", "--model", "llama-3.2-1b", "--critic", "llama-3.2-3b", "--device", "h200-sxm")
    result = run("init", path, *args, "--nodes", 3, "--response-length", 900, "--mean-response-length", 300)
    assert result.exit_code == 0, result.output
    document = load_job(path).document
    assert document["models"]["critic"]["shape"] == "llama-3.2-3b"
    assert document["cluster"][0] | {"nodes": 3, "device": "h200-sxm"} == document["cluster"][0]
    assert document["workload"]["response_length"] == {
        "distribution": "lognormal",
        "mean": 300,
        "max": 900,
        "p99": None,
    }


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("H100", "h100-80gb-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-sxm"),
        ("a100-80g", "a100-80gb-sxm"),
        ("H200", "h200-sxm"),
        ("RTX PRO 6000", "rtx-pro-6000"),
    ],
)
def test_gpus_are_known_by_what_people_call_them(run, tmp_path, said, meant):
    path = tmp_path / "job.yaml"
    assert run("init", path, "--device", said).exit_code == 0
    assert load_job(path).document["cluster"][0]["device"] == meant
    assert run("init", tmp_path / "other.yaml", "--device", "V100").exit_code == 2


def test_a_hugging_face_id_and_a_target(run, tmp_path):
    """The words in which a verl user asks: the model's id, the GPU's short name, the system."""
    path = tmp_path / "job.yaml"
    words = ("--model", "Qwen/Qwen3-30B-A3B", "--device", "H100", "--nodes", 4, "--target", "verl/megatron")
    result = run("init", path, *words)
    assert result.exit_code == 0, result.output
    document = load_job(path).document
    assert document["algorithm"] == "grpo"
    assert document["models"]["actor"]["shape"] == "qwen3-30b-a3b"
    assert document["target"] == "verl/megatron"
    assert document["workload"]["response_length"]["max"] == 8192
    assert document["workload"]["samples_per_prompt"] == 8
    assert run("init", tmp_path / "x.yaml", "--target", "verl/none").exit_code == 2


def test_a_model_from_a_config_json(run, tmp_path):
    (tmp_path / "my model").mkdir()
    shutil.copy(CATALOGUE / "qwen3-0.6b.json", tmp_path / "my model" / "config.json")
    path = tmp_path / "jobs" / "job.yaml"
    result = run("init", path, "--model", tmp_path / "my model" / "config.json")
    assert result.exit_code == 0, result.output
    shape = load_job(path).document["models"]["actor"]["shape"]
    assert shape["config"]["hidden_size"] == 1024


def test_it_does_not_overwrite(run, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("mine")
    assert run("init", path).exit_code == 2
    assert path.read_text() == "mine"
    assert run("init", path, "--force").exit_code == 0
    assert path.read_text() != "mine"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--algorithm", "grpoo"), "did you mean grpo"),
        (("--model", "qwen2.5-7"), "did you mean"),
        (("--device", "h1000"), "h100-80gb-sxm"),
        (("--algorithm", "grpo", "--critic", "qwen2.5-7b"), "critic"),
    ],
)
def test_bad_answers_leave_no_file(run, tmp_path, args, message):
    result = run("init", tmp_path / "job.yaml", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "job.yaml").exists()


def test_json_says_what_was_written(run, tmp_path):
    answer = json.loads(run("init", tmp_path / "job.yaml", "--json").stdout)
    assert answer["written"] == [str(tmp_path / "job.yaml")]


def test_on_a_terminal_it_asks_and_asks_again(tmp_path):
    """Through a pseudo-terminal: a wrong answer is told and asked for again, an empty one takes the default."""
    questions = 9
    answers = ["ppoo", "ppo", "qwen2.5-0.5b", *[""] * (questions - 2)]
    main, side = pty.openpty()
    command = [sys.executable, "-m", "hybridmap", "init", str(tmp_path / "job.yaml")]
    with subprocess.Popen(command, stdin=side, stdout=subprocess.PIPE, stderr=side, text=True) as process:
        os.close(side)
        os.write(main, "".join(f"{answer}\n" for answer in answers).encode())
        said = process.stdout.read()
        assert process.wait(timeout=HANGS_S) == 0
    told = os.read(main, 65536).decode()
    os.close(main)
    assert "unknown algorithm 'ppoo'; did you mean" in told
    assert "next        hybridmap fit" in said
    document = load_job(tmp_path / "job.yaml").document
    assert document["algorithm"] == "ppo"
    assert document["models"]["critic"]["shape"] == "qwen2.5-0.5b"
