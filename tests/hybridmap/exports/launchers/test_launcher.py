"""Protects launch files: shells and readers accept them, and the Slurm script starts a run on a Ray of two nodes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from hybridmap.exports.launchers.launcher import FILES, launcher_files
from hybridmap.exports.systems import export_plan
from hybridmap.files.plan import plan_file_of
from hybridmap.job.load import job_from_document, job_from_mapping
from mapper.search.find_plan import find_plan
from profiles.errors import UnknownNameError

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    job = job_from_mapping(
        {
            "algorithm": "grpo",
            "models": {"actor": "llama-3.2-1b", "reference": "llama-3.2-1b"},
            "workload": {"prompts": 64, "samples_per_prompt": 4, "prompt_length": 256, "response_length": 512},
            "cluster": [{"device": "h100-80gb-sxm", "nodes": 2, "gpus_per_node": 4}],
            "pin": {"actor": {"training": {"dp": 8, "tp": 1, "pp": 1}}},
        },
        "job",
        tmp_path_factory.mktemp("job"),
    )
    result = find_plan(job.request())
    assert result.plan.num_gpus == 8
    return job, result.plan, export_plan(plan_file_of(job, result, "any", False), "plan.json", "verl")


@pytest.fixture
def folder(planned, tmp_path):
    """Everything that an export with each launcher writes."""
    job, plan, export = planned
    for launcher in FILES:
        for name, text in {**export.files, **launcher_files(launcher, plan, job, export)}.items():
            (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", ["slurm.sh", "submit.sh", "run_verl.sh"])
def test_shellcheck_finds_nothing(folder, name):
    found = subprocess.run([BIN / "shellcheck", name], cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_nodes_and_gpus_are_those_of_the_plan(folder):
    slurm = (folder / "slurm.sh").read_text()
    assert "#SBATCH --nodes=2\n" in slurm
    assert "#SBATCH --gpus-per-node=4\n" in slurm
    manifest = yaml.safe_load((folder / "rayjob.yaml").read_text())["spec"]["rayClusterSpec"]
    head, (workers,) = manifest["headGroupSpec"], manifest["workerGroupSpecs"]
    assert workers["replicas"] == 1
    for group in (head, workers):
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
        assert {v["name"] for v in group["template"]["spec"]["volumes"]} == {
            v["name"] for v in container["volumeMounts"]
        }
    task = yaml.safe_load((folder / "skypilot.yaml").read_text())
    assert (task["num_nodes"], task["resources"]["accelerators"]) == (2, "H100:4")


@pytest.mark.parametrize(("name", "schema"), [("rayjob.yaml", "rayjob"), ("skypilot.yaml", "skypilot")])
def test_manifests_have_the_fields_of_their_schemas(folder, name, schema):
    rules = json.loads((HERE / f"{schema}.schema.json").read_text())
    written = yaml.safe_load((folder / name).read_text())
    assert [error.message for error in Draft202012Validator(rules).iter_errors(written)] == []
    assert [*Draft202012Validator(rules).iter_errors({**written, "spec": {"entrypoints": 1}})] != []


SYSTEM_VARIABLES = {
    "verl": (["TRAIN_FILES"], ["TRAIN_FILES", "VAL_FILES"]),
    "openrlhf": (["PROMPTS"], ["PROMPTS"]),
    "nemo-rl": (["NEMO_RL"], ["NEMO_RL"]),
    "slime": (
        ["SLIME", "HF_CHECKPOINT", "PROMPT_DATA"],
        ["SLIME", "HF_CHECKPOINT", "REF_LOAD", "PROMPT_DATA", "MODEL_ARGUMENTS", "NUM_ROLLOUT"],
    ),
}


@pytest.mark.parametrize("system", SYSTEM_VARIABLES)
def test_a_run_gets_the_variables_of_its_script(planned, system):
    """Whoever brings it up must give those that it cannot do without; a job that is submitted takes all along."""
    job, plan, export = planned
    needed, taken = SYSTEM_VARIABLES[system]
    export = export_plan(plan_file_of(job, find_plan(job.request()), "any", False), "plan.json", system)
    files = {kind: launcher_files(kind, plan, job, export)[FILES[kind]] for kind in ("ray", "kuberay", "skypilot")}
    assert f"for name in {' '.join(taken)}; do" in files["ray"]
    assert yaml.safe_load(files["skypilot"])["envs"] == dict.fromkeys(needed)
    environment = yaml.safe_load(yaml.safe_load(files["kuberay"])["spec"]["runtimeEnvYAML"])
    assert environment == {"env_vars": dict.fromkeys(needed, "VALUE")}


def test_an_a100_of_80_gb_has_a_name_of_its_own_in_skypilot(planned):
    job, plan, export = planned
    older = job_from_document({**job.document, "cluster": [{**job.document["cluster"][0], "device": "a100-80gb-sxm"}]})
    task = yaml.safe_load(launcher_files("skypilot", plan, older, export)["skypilot.yaml"])
    assert task["resources"]["accelerators"] == "A100-80GB:4"


def test_what_a_task_runs_is_a_shell_script(folder):
    (folder / "task.sh").write_text(
        "#!/usr/bin/env bash\n" + yaml.safe_load((folder / "skypilot.yaml").read_text())["run"]
    )
    found = subprocess.run([BIN / "shellcheck", "task.sh"], cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_every_place_is_filled(folder):
    assert not [name for name in FILES.values() if re.search(r"@[A-Z]+@", (folder / name).read_text())]


def test_an_unknown_launcher_names_those_that_there_are(planned):
    job, plan, export = planned
    with pytest.raises(UnknownNameError, match="unknown launcher 'pbs'"):
        launcher_files("pbs", plan, job, export)


def test_a_launcher_needs_a_folder(run, tmp_path):
    done = run("export", "plan.json", "--to", "verl", "--launcher", "slurm")
    assert done.exit_code == 2
    assert "--launcher slurm needs --out DIR" in done.stderr


SRUN = """#!/usr/bin/env bash
# Stands for Slurm: every node is this machine, and says which one it plays.
for word in "$@"; do
  case "$word" in
    --nodelist=*) node=${word#--nodelist=}; shift ;;
    --*) shift ;;
    *) break ;;
  esac
done
echo "$node: $*" >> "$CALLS"
exec "$@"
"""
RUN = """set -e
python3 -c "import ray, json; ray.init(address='auto'); print(json.dumps(ray.cluster_resources()))" > seen.json
"""


def as_slurm(folder, hosts, **more):
    """The batch script, with a Slurm of stand-ins before it on the path."""
    stubs = folder / "stubs"
    stubs.mkdir()
    files = {
        "srun": SRUN,
        "scontrol": "#!/usr/bin/env bash\nprintf '%s\\n' " + " ".join(hosts) + "\n",
        "hostname": "#!/usr/bin/env bash\necho 127.0.0.1\n",
    }
    for name, text in files.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{stubs}:{BIN}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": ",".join(hosts),
        "CALLS": str(folder / "calls"),
        **more,
    }
    environment.pop("RAY_ADDRESS", None)
    return subprocess.run(
        ["bash", "slurm.sh"], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200
    )


def test_too_few_nodes_are_refused_before_anything_starts(folder):
    done = as_slurm(folder, ["n1"])
    assert done.returncode == 2
    assert "the plan needs 2 nodes, this allocation has 1" in done.stderr
    assert not (folder / "calls").exists()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("awk") is None, reason="needs awk")
def test_the_batch_script_brings_up_two_nodes_and_starts_the_run(folder):
    pytest.importorskip("ray")
    (folder / "run_verl.sh").write_text(RUN)
    done = as_slurm(folder, ["n1", "n2", "n3"], RAY_PORT="6399", START_TIMEOUT_S="120")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ray has 8 GPUs on 2 nodes" in done.stdout
    assert json.loads((folder / "seen.json").read_text())["GPU"] == 8.0
    starts = [line for line in (folder / "calls").read_text().splitlines() if " ray start " in line]
    assert [line.partition(":")[0] for line in sorted(starts)] == ["n1", "n2"]


PEERS = Path(os.environ.get("HYBRIDMAP_PEERS", Path(__file__).parents[4] / ".venv-peers"))
"""Its Ray has the dashboard's packages, which take jobs."""
PORTS = {"port": "6397", "dashboard-port": "8397", "dashboard-agent-listen-port": "8398"}
JOB = """set -e
python3 - <<END
import time, ray
ray.init(address="auto")
for _ in range(120):
    if len(ray.nodes()) == 2:
        break
    time.sleep(1)
print("GPUS", ray.cluster_resources()["GPU"], len(ray.nodes()))
END
echo "FILES $TRAIN_FILES in $(ls)"
"""


def _wait_for(url):
    for _ in range(120):
        try:
            with urllib.request.urlopen(url, timeout=60):
                return
        except OSError:
            time.sleep(1)


@pytest.fixture
def ray_of_two_nodes(tmp_path):
    """A head and a worker on this machine that say they have four GPUs each, and the address that takes jobs."""
    at, started = PEERS / "bin", []
    environment = os.environ | {"PATH": f"{at}:{os.environ['PATH']}", "RAY_TMPDIR": "/tmp"}
    environment.pop("RAY_ADDRESS", None)
    common = ["--num-gpus=4", "--num-cpus=2", "--disable-usage-stats", "--block", "--object-store-memory=100000000"]
    head = ["--head", "--include-dashboard=true", *(f"--{name}={port}" for name, port in PORTS.items())]
    worker = [f"--address=127.0.0.1:{PORTS['port']}", "--dashboard-agent-listen-port=8399"]
    with (tmp_path / "ray.log").open("w") as log:
        for more in (["--node-ip-address=127.0.0.1", *head], worker):
            command = [at / "python", at / "ray", "start", *common, *more]
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
            _wait_for(f"http://127.0.0.1:{PORTS['dashboard-port']}/api/version")
        yield environment, f"http://127.0.0.1:{PORTS['dashboard-port']}"
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            process.wait(timeout=60)


@pytest.mark.external
@pytest.mark.skipif(
    not (PEERS / "bin" / "ray").exists(), reason="`make check-all` makes an environment that takes jobs"
)
def test_a_job_is_submitted_to_a_ray_of_two_nodes_with_its_variables(folder, ray_of_two_nodes):
    (folder / "run_verl.sh").write_text(JOB)
    environment, dashboard = ray_of_two_nodes
    variables = {"RAY_DASHBOARD": dashboard, "TRAIN_FILES": "/data/train.parquet"}
    done = subprocess.run(
        ["bash", "submit.sh"],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GPUS 8.0 2" in done.stdout
    assert "FILES /data/train.parquet in " in done.stdout  # the folder went with it
    assert "succeeded" in done.stdout
