"""Files that bring a run up: nodes and GPUs from the plan, containers and mounts as variables on top."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from hybridmap.exports.export import Export
    from hybridmap.job.job import Job
    from simulator.plan.plan import Plan

HERE = Path(__file__).parent
FILES = {"slurm": "slurm.sh", "ray": "submit.sh", "kuberay": "rayjob.yaml", "skypilot": "skypilot.yaml"}
"""The file of each launcher; scripts are run, the others are given to the launcher's own command."""
NEXT = {
    "slurm": "sbatch {file}",
    "ray": "RAY_DASHBOARD=http://HEAD:8265 ./{file}",
    "kuberay": "kubectl apply -f {file}",
    "skypilot": "sky launch {file} --env NAME=VALUE",
}
"""What to type then."""

SKY_NAMES = {"a100-80gb-sxm": "A100-80GB", "rtx-pro-6000": "RTXPRO6000"}
"""SkyPilot's names of devices (sky/catalog/__init__.py:340 of 0.14.1), where they are not the first word of ours: its
A100 is the one of 40 GB."""
_TEMPLATES = {"slurm": "slurm.sh.in", "ray": "ray.sh.in", "kuberay": "kuberay.yaml.in", "skypilot": "skypilot.yaml.in"}
_WORKERS = """    workerGroupSpecs:
      - groupName: workers
        replicas: {rest}
        minReplicas: {rest}
        maxReplicas: {rest}
        rayStartParams: {{}}
        template:
          spec:
            containers:
              - name: ray-worker
                image: *image
                resources:
                  limits: {{cpu: "16", memory: 128Gi, nvidia.com/gpu: "{gpus}"}}
                volumeMounts: [{{name: workspace, mountPath: /workspace}}, {{name: shm, mountPath: /dev/shm}}]
            volumes: *volumes"""


def launcher_files(launcher: str, plan: Plan, job: Job, export: Export) -> dict[str, str]:
    """The launcher's file by name.

    Raises
    ------
    InputError
        An unknown launcher, or a plan on several kinds of GPU.
    """
    if launcher not in FILES:
        raise UnknownNameError("launcher", launcher, FILES)
    if len(job.cluster) > 1:
        raise InputError(f"--launcher {launcher}: the job has {len(job.cluster)} kinds of GPU; plan for one of them")
    nodes, gpus = nodes_of(plan, job)
    (needed, taken), device = variables_of(export), job.cluster[0].device
    words = {
        "NAME": f"{export.system}-{plan.algorithm}".replace("+", "p").lower(),
        "NODES": str(nodes),
        "GPUS": str(gpus),
        "SCRIPT": export.script,
        "SYSTEM": export.system,
        "VERSION": export.version,
        "FILE": FILES[launcher],
        "ACCELERATOR": SKY_NAMES.get(device, device.split("-")[0].upper()),
        "VARIABLES": " ".join(taken),
        "ENVS": "\n".join(f"  {name}: null" for name in needed),
        "ENV_VARS": "\n".join(f"      {name}: VALUE" for name in needed),
        "WORKERS": _WORKERS.format(rest=nodes - 1, gpus=gpus) if nodes > 1 else "",
    }
    text = (HERE / _TEMPLATES[launcher]).read_text()
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return {FILES[launcher]: text.rstrip("\n") + "\n"}


def variables_of(export: Export) -> tuple[list[str], list[str]]:
    """Variables that a script cannot do without, and all that it takes."""
    script = export.files[export.script]
    return re.findall(r"\$\{(\w+):\?", script), re.findall(r"\$\{(\w+):[?=]", script)


def nodes_of(plan: Plan, job: Job) -> tuple[int, int]:
    """Nodes that a plan needs, and GPUs of each of them."""
    per_node = job.facts().group.gpus_per_node
    if plan.num_gpus <= per_node:
        return 1, plan.num_gpus
    return -(-plan.num_gpus // per_node), per_node
