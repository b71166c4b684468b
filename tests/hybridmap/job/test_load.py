"""Protects the contract of JOB.yaml: what may be left out, what is embedded, and that the normal form reads back."""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

import hybridmap
from hybridmap.job.implementation import ImplementationSection
from hybridmap.job.load import job_from_document, load_job
from mapper.execution_mode import ExecutionMode
from mapper.pins import Pin, Spare
from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.models.catalogue import load_model
from profiles.workload import LengthDistribution
from simulator.facts import Implementation

MODELS = Path(hybridmap.__file__).parents[1] / "profiles" / "models" / "configs"


def test_defaults_come_from_the_contract_and_the_device_card(write_job, small_job):
    document = load_job(write_job(small_job)).document
    assert document["models"]["actor"] == {"shape": "llama-3.2-1b", "precision": "bf16"}
    work = document["workload"]
    assert (work["samples_per_prompt"], work["epochs"], work["reward_s_per_sample"]) == (1, 1, 0.0)
    assert work["prompt_tokens"] is None
    assert document["cluster"] == [
        {"device": "h100-80gb-sxm", "nodes": 1, "gpus_per_node": 8, "inter_node_gbps": 3200.0, "nvlink_domain_gpus": 8}
    ]
    assert document["engines"]["training"].startswith("megatron-core@")
    assert document["engines"]["generation"].startswith("vllm@")


def test_a_stated_network_is_converted_and_nvlink_ends_with_the_node(write_job, small_job):
    small_job["cluster"] = [{"device": "a100-80gb-sxm", "nodes": 2, "gpus_per_node": 4, "inter_node_gbps": 100}]
    group = load_job(write_job(small_job)).facts().group
    assert (group.num_gpus, group.nvlink_domain_gpus) == (8, 4)
    assert group.inter_node_bytes_per_s == 12.5e9


def test_a_rack_scale_fabric_is_wider_than_its_nodes(write_job, small_job):
    small_job["cluster"] = [{"device": "gb200", "nodes": 2}]
    group = load_job(write_job(small_job)).facts().group
    assert (group.gpus_per_node, group.nvlink_domain_gpus) == (4, 72)


def test_facts_say_what_the_job_says(write_job, small_job):
    small_job["models"]["reward"] = {"shape": "qwen2.5-0.5b", "precision": "fp8"}
    small_job["workload"] |= {"samples_per_prompt": 2, "epochs": 3, "prompt_tokens": 100, "reward_s_per_sample": 0.5}
    facts = load_job(write_job(small_job)).facts()
    assert facts.roles["reward"].precision == "fp8"
    assert facts.roles["reward"].shape == load_model("qwen2.5-0.5b")
    work = facts.workload
    assert (work.num_samples, work.epochs, work.minibatches, work.prompt_tokens) == (128, 3, 2, 100)
    assert work.reward_s_per_sample == 0.5
    assert work.response == LengthDistribution.fixed(256)


def test_learning_from_pretraining_text_belongs_to_safe_rlhf(write_job, small_job):
    small_job["workload"] |= {"pretrain_update": True}
    with pytest.raises(InputError, match=r"pretrain_update is part of safe-rlhf; ppo has no pretraining text"):
        load_job(write_job(small_job))
    small_job["algorithm"] = "safe-rlhf"
    small_job["models"]["cost"] = small_job["models"]["reward"]
    job = load_job(write_job(small_job))
    assert job.facts().workload.pretrain_update
    assert job_from_document(job.document).facts().workload.pretrain_update


def test_facts_are_made_once(write_job, small_job):
    job = load_job(write_job(small_job))
    assert job.facts() is job.facts()


@pytest.mark.parametrize("p99", [None, 3500])
def test_lognormal_lengths(write_job, small_job, p99):
    lengths = {"distribution": "lognormal", "mean": 900.5, "max": 4096}
    small_job["workload"]["response_length"] = lengths | ({} if p99 is None else {"p99": p99})
    response = load_job(write_job(small_job)).facts().workload.response
    assert response == LengthDistribution("lognormal", 900.5, 4096, p99)


def test_a_histogram_is_embedded(write_job, small_job, tmp_path):
    (tmp_path / "lengths.csv").write_text("length,count\n100,3\n200, 1\n\n")
    small_job["workload"]["response_length"] = {"histogram": "lengths.csv"}
    job = load_job(write_job(small_job))
    assert job.document["workload"]["response_length"] == {"histogram": {"lengths": [100, 200], "counts": [3.0, 1.0]}}
    assert job.facts().workload.response.mean == 125


def test_a_config_is_embedded_relative_to_the_job(write_job, small_job, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    shutil.copy(MODELS / "qwen2.5-0.5b.json", tmp_path / "mine" / "config.json")
    small_job["models"]["reward"] = "mine/config.json"
    path = write_job(small_job)
    monkeypatch.chdir("/")
    job = load_job(path)
    shape = job.document["models"]["reward"]["shape"]
    assert shape["name"] == "mine"
    assert shape["config"]["model_type"] == "qwen2"
    shutil.rmtree(tmp_path / "mine")  # the document needs nothing else
    again = job_from_document(json.loads(json.dumps(job.document)))
    assert again.facts().roles["reward"].shape.num_params == load_model("qwen2.5-0.5b").num_params


def test_the_normal_form_reads_back_as_itself(write_job, small_job):
    job = load_job(write_job(small_job))
    assert job_from_document(json.loads(json.dumps(job.document))) == job


def test_two_spellings_of_one_job_are_equal(write_job, small_job):
    first = load_job(write_job(small_job))
    small_job["workload"]["samples_per_prompt"] = 1
    small_job["models"] = dict(reversed([*small_job["models"].items(), ("reward", {"shape": "llama-3.2-1b"})]))
    assert load_job(write_job(small_job)) == first


def test_an_embedded_job_reads_no_files_of_this_machine(write_job, small_job, tmp_path):
    shutil.copy(MODELS / "qwen2.5-0.5b.json", tmp_path / "config.json")
    small_job["models"]["actor"] = str(tmp_path / "config.json")
    with pytest.raises(UnknownNameError, match=r"models\.actor: unknown model"):
        job_from_document(small_job)


def test_one_line_per_problem(write_job, small_job):
    small_job["workload"] |= {"prompts": "64", "epochs": True, "minibatchs": 2}
    small_job["cluster"][0]["nodes"] = 1.5
    del small_job["algorithm"]
    with pytest.raises(FileFormatError) as caught:
        load_job(write_job(small_job))
    first, *lines = str(caught.value).splitlines()
    assert first.endswith("job.yaml has 5 problems:")
    assert sorted(line.strip() for line in lines) == [
        "algorithm is missing",
        "cluster[0].nodes: got 1.5, expected a whole number from 1 to 16,384",
        "unknown key 'minibatchs' in workload; did you mean minibatches?",
        "workload.epochs: got true (a yes/no value), expected a whole number from 1 to 1,000",
        "workload.prompts: got '64', expected a whole number from 1 to 10,000,000",
    ]


def test_a_misspelt_key_is_not_missing_too(write_job, small_job):
    small_job["workload"]["promts"] = small_job["workload"].pop("prompts")
    with pytest.raises(InputError) as caught:
        load_job(write_job(small_job))
    assert str(caught.value).endswith("job.yaml: unknown key 'promts' in workload; did you mean prompts?")


@pytest.mark.parametrize(("given", "share"), [(None, 0.05), ("5%", 0.05), ("12.5%", 0.125), (0, 0.0), (0.1, 0.1)])
def test_the_headroom_of_memory(write_job, small_job, given, share):
    job = load_job(write_job(small_job if given is None else small_job | {"memory": {"headroom": given}}))
    assert job.facts().memory_headroom == share
    assert job.facts().memory_usable_bytes == int(job.facts().memory_capacity_bytes * (1 - share))
    assert job_from_document(job.document).document == job.document


@pytest.mark.parametrize("given", ["5", "x%", 1, "95%", -0.1, True, None])
def test_a_headroom_that_is_none(write_job, small_job, given):
    with pytest.raises(InputError, match=r"memory\.headroom: .*a share such as 5% or 0.05"):
        load_job(write_job(small_job | {"memory": {"headroom": given}}))


@pytest.mark.parametrize(
    ("given", "modes"),
    [
        (None, ["sync, generation on the actor's GPUs"]),
        ("sync", ["sync, generation on the actor's GPUs"]),
        ({"generation_pool": "own"}, ["sync, a dedicated generation pool"]),
        ("one-step-off", ["one-step-off, a dedicated generation pool"]),
        (
            "any",
            [
                "sync, generation on the actor's GPUs",
                "sync, a dedicated generation pool",
                "one-step-off, a dedicated generation pool",
            ],
        ),
    ],
)
def test_a_schedule_is_the_modes_that_are_searched(write_job, small_job, given, modes):
    job = load_job(write_job(small_job | ({} if given is None else {"schedule": given})))
    assert [str(mode) for mode in job.request().modes] == modes
    assert job_from_document(job.document).request().modes == job.request().modes


def test_async_keeps_its_steps_and_updates(write_job, small_job):
    given = {"kind": "async", "steps_in_flight": 3, "in_flight_updates": True}
    assert load_job(write_job(small_job | {"schedule": given})).request().modes == (
        ExecutionMode("async", True, 3, True),
    )


def test_implementation_reaches_the_price_and_the_embedded_job(write_job, small_job):
    chosen = {"loss_head": "fp32", "attention_kernel": "flash-2", "fsdp_exposure": 0.5}
    job = load_job(write_job(small_job | {"implementation": chosen}))
    assert chosen.items() <= job.document["implementation"].items()
    assert job.facts().implementation == Implementation(**chosen)
    assert job_from_document(job.document).facts().implementation == Implementation(**chosen)


def test_a_job_can_say_all_that_an_implementation_is(write_job, small_job):
    """What validation states of published runs a user can state too, and a plan keeps it."""
    said = {f.name for f in fields(Implementation)}
    assert said == set(ImplementationSection.model_fields)
    chosen = {"captured": ["attention", "router"], "expert_dispatch": "hybrid", "engine_driver": "ray-graph"}
    job = load_job(write_job(small_job | {"implementation": chosen}))
    built = Implementation(captured=("attention", "router"), expert_dispatch="hybrid", engine_driver="ray-graph")
    assert job.facts().implementation == job_from_document(job.document).facts().implementation == built


def test_a_misspelt_implementation_key_is_recognised(write_job, small_job):
    with pytest.raises(UnknownNameError, match="unknown key 'loss_haed' in implementation; did you mean loss_head"):
        load_job(write_job(small_job | {"implementation": {"loss_haed": "fused"}}))


def test_a_cluster_may_have_several_kinds_with_pins_spares_and_prices_of_each(write_job, small_job):
    small_job["cluster"].append({"device": "a100-80gb-sxm", "nodes": 3})
    prices = {"h100-80gb-sxm": 2.5, "a100-80gb-sxm": 1.25}
    small_job |= {
        "objective": {"minimise": "cost", "price_per_gpu_hour": prices},
        "pin": {"spare_nodes": {"a100-80gb-sxm": 2}, "actor": {"device": "h100-80gb-sxm"}},
    }
    job = load_job(write_job(small_job))
    facts = job.facts()
    assert facts.device_types == ("h100-80gb-sxm", "a100-80gb-sxm")
    assert facts.on("a100-80gb-sxm").group.nodes == 3
    assert job.request().objective.prices == tuple(prices.items())
    assert job.request().pins == (Spare(2, "a100-80gb-sxm"), Pin("actor", device="h100-80gb-sxm"))
    assert job_from_document(job.document).facts().facts_hash == facts.facts_hash


def test_aliases_cannot_blow_up(write_job):
    levels = "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(30))
    with pytest.raises(FileFormatError):
        load_job(write_job(f"a0: &a0 [x]\n{levels}"))


def test_public_api(write_job, small_job):
    job = hybridmap.load_job(write_job(small_job))
    result = hybridmap.plan(job, placement="colocate", runners_up=False)
    assert hybridmap.simulate(result.plan, job) == result.timeline
    assert set(hybridmap.__all__) <= set(dir(hybridmap))
