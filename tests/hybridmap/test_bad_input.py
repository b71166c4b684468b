"""Protects the promise about wrong input: exit 2, one message that says what to do, no traceback, nothing written."""

import json

import pytest

HF_CONFIG = {"model_type": "mamba", "hidden_size": 64}


def at(place, value):
    """An edit of the small job: ``at("workload.prompts", 0)``; ``...`` as value takes the key out."""

    def edit(job):
        *parents, last = [int(p) if p.isdigit() else p for p in place.split(".")]
        section = job
        for part in parents:
            section = section[part]
        if value is ...:
            del section[last]
        else:
            section[last] = value
        return job

    return edit


def priced(device, price=2.5):
    """The objective of least cost at a price."""
    return {"minimise": "cost", "price_per_gpu_hour": {device: price}}


def with_a100(job):
    """The small job on a cluster that has A100s too."""
    job["cluster"].append({"device": "a100-80gb-sxm", "nodes": 2})
    return job


BAD_JOBS = {
    # names that do not exist, with what they are near to
    "unknown model": (at("models.actor", "llama-3.2-1c"), ["models.actor", "did you mean llama-3.2-1b"]),
    "hf id": (at("models.actor", "meta-llama/Llama-2-7b"), ["models.actor", "llama-2-7b"]),
    "unknown device": (at("cluster.0.device", "h100"), ["cluster[0]", "did you mean h100-80gb-sxm"]),
    "unknown training engine": (at("engines", {"training": "megatron-core@9"}), ["did you mean megatron-core@0"]),
    "unknown generation engine": (at("engines", {"generation": "vlm@0.32"}), ["did you mean vllm@0.32"]),
    "engine of the other kind": (at("engines", {"generation": "megatron-core@0.16"}), ["megatron-core@0.16"]),
    "unknown algorithm": (at("algorithm", "pppo"), ["unknown algorithm 'pppo'", "ppo"]),
    "unknown role": (at("models.crtic", "llama-3.2-1b"), ["unknown role of ppo 'crtic'", "critic"]),
    "role of another algorithm": (at("models.cost", "llama-3.2-1b"), ["role of ppo 'cost'"]),
    "role left out": (at("models.critic", ...), ["ppo needs a model for critic"]),
    # sizes that cannot be
    "no prompts": (at("workload.prompts", 0), ["workload.prompts: got 0, expected a whole number from 1"]),
    "negative length": (at("workload.response_length", -5), ["response_length: got -5, expected a whole number"]),
    "no nodes": (at("cluster.0.nodes", 0), ["cluster[0].nodes: got 0"]),
    "no network": (at("cluster.0.inter_node_gbps", 0), ["inter_node_gbps: got 0, expected a positive number"]),
    "negative reward time": (at("workload.reward_s_per_sample", -1), ["reward_s_per_sample: got -1"]),
    "infinite": (at("workload.reward_s_per_sample", float("inf")), ["reward_s_per_sample: got inf"]),
    "not a number": (at("workload.reward_s_per_sample", float("nan")), ["reward_s_per_sample: got nan"]),
    "beyond all bounds": (at("workload.prompts", 10**40), ["got a number of more than 38 digits"]),
    "too many samples": (lambda j: at("workload.prompts", 10**6)(at("workload.samples_per_prompt", 999)(j)), ["999"]),
    "more prompt tokens than prompt": (at("workload.prompt_tokens", 999), ["prompt_tokens must lie in"]),
    "minibatches that do not divide": (
        at("workload.minibatches", 6),
        ["minibatches = 6", "nearest that do are 4 and 8"],
    ),
    "domains that do not nest": (at("cluster.0.nvlink_domain_gpus", 3), ["do not nest"]),
    "mean above max": (
        at("workload.response_length", {"distribution": "lognormal", "mean": 9, "max": 8}),
        ["response length: the mean must lie in"],
    ),
    # wrong types
    "bool for int": (at("workload.samples_per_prompt", True), ["samples_per_prompt: got true"]),
    "text for int": (at("workload.samples_per_prompt", "8"), ["samples_per_prompt: got '8', expected a whole number"]),
    "float for int": (at("workload.samples_per_prompt", 8.0), ["samples_per_prompt: got 8.0, expected a whole number"]),
    "list for mapping": (at("workload", [1]), ["workload: got a list of 1, expected a mapping"]),
    "mapping for list": (at("cluster", {"device": "a100-80gb-sxm"}), ["cluster: got a mapping, expected a list"]),
    "nothing at all": (at("models", None), ["models: got nothing, expected a mapping"]),
    "no cluster": (at("cluster", []), ["cluster: got an empty list"]),
    "number for a model": (at("models.actor", 7), ["models.actor: got 7, expected a model name"]),
    "unknown precision": (at("models.actor", {"shape": "llama-3.2-1b", "precision": "int3"}), ["got 'int3'", "bf16"]),
    "other distribution": (
        at("workload.response_length", {"distribution": "normal", "mean": 5, "max": 9}),
        ["distribution: got 'normal', expected lognormal"],
    ),
    "list of lengths": (at("workload.response_length", [1, 2]), ["response_length: got a list of 2", "histogram"]),
    "role that is no name": (at("models", {1: "llama-3.2-1b"}), ["models: got 1 as a key, expected a name"]),
    # keys that do not exist, with what they are near to
    "unknown key": (at("workload.promts", 5), ["unknown key 'promts' in workload; did you mean prompts?"]),
    "unknown top key": (at("wrokload", 5), ["unknown key 'wrokload'; did you mean workload?"]),
    "unknown role key": (at("models.actor", {"shap": "x"}), ["unknown key 'shap' in models.actor", "shape"]),
    "unknown cluster key": (at("cluster.0.node", 1), ["unknown key 'node' in cluster[0]; did you mean nodes?"]),
    "unknown length key": (
        at("workload.response_length", {"distribution": "lognormal", "mean": 5, "maximum": 9}),
        ["'maximum' in workload.response_length"],
    ),
    "key like nothing": (at("zzzz", 1), ["unknown key 'zzzz'; known: algorithm, models, workload, cluster, engines"]),
    "missing key": (at("workload.prompt_length", ...), ["workload.prompt_length is missing"]),
    # keys of later versions
    # schedules that cannot be meant
    "unknown schedule": (at("schedule", "asynch"), ["schedule: got 'asynch', expected one of sync, one-step-off"]),
    "misspelt schedule key": (at("schedule", {"kind": "async", "steps": 2}), ["unknown key 'steps' in schedule"]),
    "one step off on shared GPUs": (
        at("schedule", {"kind": "one-step-off", "generation_pool": "shared"}),
        ["schedule: schedule one-step-off generates while it trains", "generation_pool: own"],
    ),
    "several steps off once": (
        at("schedule", {"kind": "one-step-off", "steps_in_flight": 3}),
        ["with 3 steps in flight: only async keeps several"],
    ),
    "in-flight updates of nothing": (
        at("schedule", {"kind": "sync", "in_flight_updates": True}),
        ["in-flight updates need a schedule"],
    ),
    "any schedule with details": (
        at("schedule", {"kind": "any", "steps_in_flight": 2}),
        ["any takes the best of sync and one-step-off"],
    ),
    "pin of a generator without a pool": (
        at("pin", {"generator": {"gpus": 4}}),
        ["pin: generator: the actor generates on the GPUs that it trains on"],
    ),
    "generation pinned in the wrong place": (
        lambda j: at("pin", {"actor": {"generation": {"tp": 1}}})(at("schedule", "async")(j)),
        ["pin generator.generation"],
    ),
    # objectives that cannot be meant
    "unknown objective": (at("objective", "coost"), ["objective: got 'coost', expected one of time, cost, gpus"]),
    "misspelt objective key": (at("objective", {"minimize": "gpus"}), ["'minimize' in objective; did you mean minim"]),
    "two objectives": (
        at("objective", {"minimise": "time", "maximise": "throughput_per_gpu"}),
        ["say either minimise"],
    ),
    "cost without a price": (at("objective", "cost"), ["cost needs a price", "{h100-80gb-sxm: 2.5}"]),
    "price of another device": (at("objective", priced("a100-80gb-sxm")), ["the cluster has h100-80gb-sxm alone"]),
    "price of a misspelt device": (at("objective", priced("h100")), ["did you mean h100-80gb-sxm"]),
    "negative price": (at("objective", priced("h100-80gb-sxm", -1)), ["got -1, expected a positive price"]),
    "fewest GPUs without a target": (at("objective", "gpus"), ["gpus needs target_iteration_s"]),
    "target of another objective": (
        at("objective", {"minimise": "time", "target_iteration_s": 9}),
        ["time has no use for target_iteration_s"],
    ),
    "target that nothing reaches": (
        at("objective", {"minimise": "gpus", "target_iteration_s": 0.001}),
        ["no plan ends an iteration within 0.001 s", "the fastest on all 8 GPUs takes"],
    ),
    # pins of what is not there
    "pin of an unknown role": (at("pin", {"actr": {"gpus": 8}}), ["pin: unknown role or key 'actr'; did you mean act"]),
    "pin of an unknown key": (at("pin", {"actor": {"gps": 8}}), ["'gps' in pin.actor; did you mean gpus"]),
    "pin of an unknown degree": (
        at("pin", {"actor": {"training": {"tpp": 8}}}),
        ["unknown key 'tpp' in pin.actor.training; did you mean tp?"],
    ),
    "pin of a text": (at("pin", {"actor": {"training": {"tp": "8"}}}), ["pin.actor.training.tp: got '8', expected"]),
    "pin of a stage that does not run": (at("pin", {"reward": {"training": {"tp": 1}}}), ["no training stage to pin"]),
    "pin of an odd pool": (at("pin", {"actor": {"gpus": 3}}), ["a pool of 3 GPUs; known sizes: 1, 2, 4, 8"]),
    "pin of another device": (
        at("pin", {"actor": {"device": "a100-80gb-sxm"}}),
        ["actor.device: the cluster has h100"],
    ),
    "share with nobody": (at("pin", {"share": {"require": [["actor"]]}}), ["expected a list of two roles or more"]),
    "share of an unknown role": (at("pin", {"share": {"forbid": [["actor", "ref"]]}}), ["did you mean reference"]),
    "no node left": (at("pin", {"spare_nodes": 1}), ["spare_nodes: 1 of 1 nodes; at least one must be left"]),
    # pins that no plan satisfies: the fewest that conflict
    "pin that nothing divides into": (
        at("pin", {"actor": {"training": {"tp": 3}}, "critic": {"gpus": 8}}),
        ["no plan fits the pin of actor: training tp 3 on 8 x h100-80gb-sxm"],
    ),
    "pins that conflict": (
        at(
            "pin",
            {"share": {"forbid": [["actor", "critic"]]}, "actor": {"gpus": 8}, "reward": {"inference": {"tp": 1}}},
        ),
        ["these 2 conflict: share: forbid actor, critic; actor: 8"],
    ),
    "unknown loss head": (
        at("implementation", {"loss_head": "x"}),
        ["implementation.loss_head", "parallel, fused, fp32"],
    ),
    "one kind twice": (lambda j: at("cluster", j["cluster"] * 2)(j), ["give each kind of GPU once"]),
    "no node of any kind": (at("cluster", []), ["cluster: got an empty list"]),
    "spare nodes of no kind": (
        lambda j: at("pin", {"spare_nodes": 1})(with_a100(j)),
        ["pin of spare_nodes: 1 of which device?"],
    ),
    "spare nodes of another kind": (
        at("pin", {"spare_nodes": {"b200": 1}}),
        ["pin: ", "unknown device of spare_nodes"],
    ),
    "a kind without a price": (
        lambda j: at("objective", priced("h100-80gb-sxm", 2.0))(with_a100(j)),
        ["cost needs a price", "{a100-80gb-sxm: 2.5}"],
    ),
    # files that the job names
    "no config": (at("models.actor", "none.json"), ["models.actor", "none.json"]),
    "config of another architecture": (at("models.actor", "mamba.json"), ["unknown architecture 'mamba'"]),
    "config that is no config": (at("models.actor", "list.json"), ["list.json"]),
    "no histogram": (
        at("workload.response_length", {"histogram": "none.csv"}),
        ["cannot read the histogram", "none.csv"],
    ),
    "histogram without header": (at("workload.response_length", {"histogram": "bad.csv"}), ["bad.csv: line 1"]),
    "histogram with a bad row": (at("workload.response_length", {"histogram": "row.csv"}), ["row.csv: line 3", "x,5"]),
    # jobs that cannot fit: role, need, what there is, what would do
    "too large": (
        at("models", dict.fromkeys(("actor", "critic", "reference", "reward"), "llama-2-70b")),
        ["no plan fits", "llama-2-70b", "GiB per GPU", "8 x h100-80gb-sxm", "fewest GPUs that would do: "],
    ),
    # no measurement: fp8 on a device without it
    "no basis": (
        lambda j: at("cluster.0.device", "a100-80gb-sxm")(
            at("models.reward", {"shape": "llama-3.2-1b", "precision": "fp8"})(j)
        ),
        ["fp8"],
    ),
}

BAD_FILES = {
    "empty": ("", "is empty; a job is a mapping"),
    "only a comment": ("# nothing\n", "is empty"),
    "a list": ("- a\n- b\n", "holds a list of 2"),
    "a scalar": ("ppo\n", "holds 'ppo'"),
    "broken": ("algorithm: ppo\nmodels: {actor: x\n", "line 3, column 1"),
    "tab": ("algorithm: ppo\nmodels:\n\tactor: x\n", "line 3, column 1"),
    "two documents": ("a: 1\n---\nb: 2\n", "line 2"),
    "a key twice": ("algorithm: ppo\nalgorithm: grpo\n", "line 2, column 1: key 'algorithm' is given twice"),
    "a python object": ("algorithm: !!python/object/apply:os.system [echo]\n", "line 1"),
    "not utf-8": (b"algorithm: \xff\xfe\n", "not UTF-8"),
    "control characters": (b"algorithm: \x00\n", "not YAML"),
    "impossible date": ("algorithm: 2024-13-45\n", "not YAML"),
    "nested too deep": ("[" * 20_000, "nested too deep"),
    "too large": ("#" * (2**20 + 1), "larger than 1 MiB"),
}


def check_refused(run, tmp_path, args, fragments):
    before = sorted(tmp_path.rglob("*"))
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("Error: ") == 1
    assert "Traceback" not in result.stderr
    for fragment in fragments:
        assert fragment in result.stderr
    as_json = run(*args, "--json")
    assert as_json.exit_code == 2
    assert as_json.stderr == ""
    assert json.loads(as_json.stdout)["error"] == result.stderr.removeprefix("Error: ").removesuffix("\n")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", BAD_JOBS)
def test_bad_job(write_job, small_job, run, tmp_path, name):
    edit, fragments = BAD_JOBS[name]
    (tmp_path / "mamba.json").write_text(json.dumps(HF_CONFIG))
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "bad.csv").write_text("1,2\n3,4\n")
    (tmp_path / "row.csv").write_text("length,count\n4,5\nx,5\n")
    path = write_job(edit(small_job))
    check_refused(run, tmp_path, ("plan", path, "--out", tmp_path / "out"), [*fragments])


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file(run, tmp_path, name):
    content, fragment = BAD_FILES[name]
    path = tmp_path / "job.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    check_refused(run, tmp_path, ("plan", path, "--out", tmp_path / "out"), [str(path), fragment])


@pytest.mark.parametrize("command", ["plan", "compare", "frontier"])
def test_no_file(run, tmp_path, command):
    check_refused(run, tmp_path, (command, tmp_path / "none.yaml"), ["none.yaml: cannot be read"])
    check_refused(run, tmp_path, (command, tmp_path), ["cannot be read (Is a directory)"])


TAKE_A_JOB = ("plan", "compare", "fit", "what-if", "frontier", "robust", "run", "validate", "ui", "simulate")


@pytest.mark.parametrize("command", TAKE_A_JOB)
def test_a_plan_in_place_of_a_job_is_one_sentence(planned, run, command):
    more = {"simulate": ["--placement", "colocate"], "what-if": ["--set", "workload.epochs=2"]}
    result = run(command, planned.plan, *more.get(command, ()))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"Error: {planned.plan} is no job but a plan, which simulate, explain, report, trace and export take; give "
        "the JOB.yaml that it was made from\n"
    )


def test_other_files_of_ours_in_place_of_a_job(planned, run, tmp_path):
    bare = json.loads(planned.plan.read_text())["plan"]
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    (tmp_path / "frontier.json").write_text(json.dumps({"points": [], "job": {}}))
    kinds = {planned.out / "timeline.json": "a timeline", "bare.json": "a bare plan", "frontier.json": "a frontier"}
    for name, kind in kinds.items():
        check_refused(run, tmp_path, ("plan", tmp_path / name), [f"{tmp_path / name} is no job but {kind}, which"])


def test_out_is_a_file(write_job, small_job, run, tmp_path):
    (tmp_path / "out").write_text("mine")
    check_refused(run, tmp_path, ("plan", write_job(small_job), "--out", tmp_path / "out"), ["is a file"])
    assert (tmp_path / "out").read_text() == "mine"


def test_infeasible_is_told_apart_for_programs(write_job, small_job, run, tmp_path):
    small_job["models"] = dict.fromkeys(small_job["models"], "llama-2-70b")
    answer = json.loads(run("plan", write_job(small_job), "--out", tmp_path / "out", "--json").stdout)
    assert answer["status"] == "infeasible"
    assert answer["fewest_gpus"] > 8


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ('{"schema_version": 1, "job": {', "truncated?"),  # cut off in the middle
        ('{"schema_version": 7, "job": {}, "plan": {}}', "schema_version is 7"),  # of another version
        ('{"a": 1}', "not a plan file"),  # another kind of JSON
        ('{"schema_version": 1, "job": {}}', "is missing"),  # keys missing
        ("[1]", "a list of 1"),  # no object
        ("algorithm: ppo", "not JSON at line 1"),  # a job in place of a plan
        ("[" * 100_000, "not JSON"),  # nested too deep
    ],
)
def test_bad_plan_file(run, tmp_path, text, fragment):
    path = tmp_path / "plan.json"
    path.write_text(text)
    check_refused(run, tmp_path, ("simulate", "--plan", path), [str(path), fragment])


def test_plan_file_with_a_bad_job(planned, run, tmp_path):
    content = json.loads(planned.plan.read_text())
    content["job"]["workload"]["prompts"] = 0
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    check_refused(run, tmp_path, ("simulate", "--plan", path), [f"{path}: job: workload.prompts: got 0"])


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (("plan", "{job}", "--seed", "-1"), "--seed"),
        (("plan", "{job}", "--time-limit", "0"), "--time-limit"),
        (("plan", "{job}", "--time-limit", "nan"), "--time-limit"),
        (("plan", "{job}", "--placement", "everywhere"), "everywhere"),
        (("plan", "{job}", "--hint", "none.json"), "none.json: cannot be read"),
        (("plan", "{job}", "--hint", "{job}"), "not JSON"),
        (("frontier", "{job}", "--time-limit", "-1"), "--time-limit"),
        (("frontier",), "JOB.yaml"),
        (("plan", "{job}", "--even", "--placement", "colocate"), "even halves are defined for the split"),
        (("plan", "{job}", "--fast"), "--fast"),
        (("plan",), "JOB.yaml"),
        (("plann", "{job}"), "plann"),
        (("models", "show", "lama-2-7b"), "llama-2-7b"),
        (("devices", "show", "h200"), "h200-sxm"),
    ],
)
def test_bad_command_line(write_job, small_job, run, tmp_path, monkeypatch, args, fragment):
    monkeypatch.chdir(tmp_path)
    given = [arg.format(job=write_job(small_job)) for arg in args]
    result = run(*given)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert fragment in result.stderr
    assert result.stderr.count("Error: ") == 1
    as_json = run(*given, "--json")
    assert as_json.exit_code == 2
    assert fragment in json.loads(as_json.stdout)["error"]
    assert not (tmp_path / "hybridmap-out").exists()


def test_a_fault_of_ours_keeps_its_traceback(write_job, small_job, run, monkeypatch):
    def broken(*args, **options):
        raise ZeroDivisionError

    monkeypatch.setattr("hybridmap.job.load.load_job", broken)
    result = run("plan", write_job(small_job))
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)
