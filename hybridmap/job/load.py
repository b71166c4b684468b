"""Job files: from ``JOB.yaml`` to ``Facts``, and back from the normal form that ``plan.json`` embeds."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.job.inputs import cluster_document, engine_document, response_document, role_document
from hybridmap.job.leaves import MOST_SAMPLES
from hybridmap.job.problems import parse_job
from hybridmap.job.read_yaml import read_yaml
from hybridmap.job.request import (
    check_pin_document,
    modes_of,
    objective_document,
    objective_of,
    pin_document,
    pins_of,
    schedule_document,
    schedule_of,
)
from mapper.execution_mode import mode_of
from mapper.request import SearchRequest
from mapper.search_options import SearchOptions, check_options
from profiles.calibration import load_calibration
from profiles.engine_facts import default_engine, load_generation_engine, load_training_engine
from profiles.errors import InputError
from profiles.hardware import ClusterGroup
from profiles.models.catalogue import load_model
from profiles.models.hf_config import shape_from_hf_config
from profiles.store import load_device
from profiles.units import gbit_per_s_to_bytes_per_s
from profiles.workload import LengthDistribution, Workload
from simulator.facts import DeviceGroup, Facts, Implementation, RoleSpec
from simulator.plan.dataflow import build_dataflow

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from executor.run_config import RunConfig
    from hybridmap.job.schema import JobFile
    from mapper.execution_mode import ExecutionMode
    from mapper.objective import Objective
    from mapper.pins import AnyPin
    from profiles.models.shape import ModelShape
    from simulator.plan.plan import Plan


@dataclass(frozen=True)
class Job:
    """One job.

    Parameters
    ----------
    document
        The job in normal form, a plain JSON-able mapping: every default filled in, roles in dataflow order, and in
        place of a path the content of its file. Two jobs mean the same if their documents are equal.
    run
        How to run a plan, if the file says so. Planning never looks at it, so it is no part of the document.
    """

    document: Mapping[str, Any] = field(hash=False)
    run: RunConfig | None = field(default=None, compare=False)

    def facts(self) -> Facts:
        """Everything a price may look at; the same object each time."""
        return self._facts

    def objective(self) -> Objective:
        """What a plan of this job is to be good at."""
        return objective_of(self.document["objective"], self.facts().device_types)

    def modes(self) -> tuple[ExecutionMode, ...]:
        """Where the actor may generate, and when."""
        return modes_of(self.document["schedule"])

    def options(self) -> SearchOptions:
        """Layouts that are searched beside the usual ones."""
        return SearchOptions(**self.document["search"])

    def pins(self) -> tuple[AnyPin, ...]:
        """What the job fixes of its plan."""
        return pins_of(self.document["pin"])

    def request(self) -> SearchRequest:
        """All that the job asks of a search; a command puts what is its own (seed, time limit) with ``replace``."""
        return SearchRequest(
            self.facts(), pins=self.pins(), modes=self.modes(), options=self.options(), objective=self.objective()
        )

    def scheduled_as(self, plan: Plan) -> Job:
        """The same job with the schedule and the generation pool of ``plan``."""
        return job_from_document({**self.document, "schedule": schedule_of(mode_of(plan))})

    @cached_property
    def _facts(self) -> Facts:
        doc = self.document
        engines = doc["engines"]
        first, *others = (_device_kind(entry) for entry in doc["cluster"])
        return Facts(
            algorithm=doc["algorithm"],
            roles={role: RoleSpec(_shape(role, x["shape"]), x["precision"]) for role, x in doc["models"].items()},
            workload=_workload(doc["workload"]),
            group=first.group,
            device=first.device,
            training=load_training_engine(engines["training"]),
            generation=load_generation_engine(engines["generation"]),
            implementation=Implementation(**{k: v for k, v in doc["implementation"].items() if v is not None}),
            others=tuple(others),
            calibration=load_calibration(Path(doc["cluster"][0]["device"])),
        )


def load_job(
    path: str | os.PathLike[str], profile: Path | None = None, ranks: int = 1, *, force_profile: bool = False
) -> Job:
    """Read ``JOB.yaml``; paths in it start from its folder.

    With a ``profile`` folder the job is that of this machine: its device, its engines, at least ``ranks`` ranks. One
    that is marked as disturbed or incomplete is taken with ``force_profile`` only.

    Raises
    ------
    InputError
        The file cannot be read, is no job, names what does not exist or asks for what cannot be; one message.
    """
    file = Path(path)
    document = read_yaml(file)
    if profile is not None:
        from hybridmap.job.local import on_this_machine

        document = on_this_machine(document, profile, ranks, force=force_profile)
    return _job(parse_job(document, str(path)), str(path), file.parent)


def job_from_mapping(raw: object, source: str, base: Path) -> Job:
    """Read what a job file holds, already parsed; paths in it start from ``base``. Errors as in ``load_job``."""
    return _job(parse_job(raw, source), source, base)


def job_from_document(document: object, source: str = "job") -> Job:
    """Read the normal form of a job again; errors as in ``load_job``, with ``source`` in place of the file."""
    return _job(parse_job(document, source), source, None)


def _job(parsed: JobFile, source: str, base: Path | None) -> Job:
    with _at(source):
        flow = build_dataflow(parsed.algorithm, tuple(parsed.models))
        job = Job(
            {
                "algorithm": parsed.algorithm,
                "models": {role: _role(role, parsed, base) for role in flow.roles},
                "workload": _workload_document(parsed, base),
                "cluster": [_cluster(parsed, base, i) for i in range(len(parsed.cluster))],
                "engines": {
                    "training": engine_document(parsed.engines.training or default_engine("training"), base),
                    "generation": engine_document(parsed.engines.generation or default_engine("generation"), base),
                },
                "implementation": parsed.implementation.model_dump(),
                "objective": objective_document(parsed.objective),
                "schedule": schedule_document(parsed.schedule),
                "search": parsed.search.model_dump(),
                "pin": pin_document(parsed.pin, flow.roles),
            },
            _run_section(parsed, source, base),
        )
        _check(job)  # whatever else is wrong shows now, not when the job is planned
    return job


def _check(job: Job) -> None:
    facts = job.facts()
    with _at("objective"):
        job.objective()
    with _at("search"):
        check_options(facts, job.options())
    with _at("schedule"):
        modes = job.modes()
    with _at("pin"):
        check_pin_document(job.document["pin"], facts, modes)


def _run_section(parsed: JobFile, source: str, base: Path | None) -> RunConfig | None:
    if parsed.run is None:
        return None
    from executor.run_config import parse_run

    return parse_run(parsed.run, f"{source}: run", base)


def _role(role: str, parsed: JobFile, base: Path | None) -> dict[str, Any]:
    with _at(f"models.{role}"):
        return role_document(parsed.models[role], base)


def _cluster(parsed: JobFile, base: Path | None, i: int) -> dict[str, Any]:
    with _at(f"cluster[{i}]"):
        return cluster_document(parsed.cluster[i], base)


def _device_kind(entry: Mapping[str, Any]) -> DeviceGroup:
    device = load_device(entry["device"])
    group = ClusterGroup(
        device=device.name,
        nodes=entry["nodes"],
        gpus_per_node=entry["gpus_per_node"],
        inter_node_bytes_per_s=gbit_per_s_to_bytes_per_s(entry["inter_node_gbps"]),
        nvlink_domain_gpus=entry["nvlink_domain_gpus"],
        nodes_per_pod=entry.get("nodes_per_pod", 0),
    )
    return DeviceGroup(group, device)


def _workload_document(parsed: JobFile, base: Path | None) -> dict[str, Any]:
    work = parsed.workload
    if work.prompts * work.samples_per_prompt > MOST_SAMPLES:
        raise InputError(
            f"workload: {work.prompts:,} prompts x {work.samples_per_prompt:,} samples_per_prompt is more than "
            f"{MOST_SAMPLES:,} samples in one iteration"
        )
    if work.pretrain_update and parsed.algorithm != "safe-rlhf":
        raise InputError(f"workload.pretrain_update is part of safe-rlhf; {parsed.algorithm} has no pretraining text")
    with _at("workload.response_length"):
        response = response_document(work.response_length, base)
    return {
        "prompts": work.prompts,
        "samples_per_prompt": work.samples_per_prompt,
        "prompt_length": work.prompt_length,
        "response_length": response,
        "epochs": work.epochs,
        "minibatches": work.minibatches,
        "reward_s_per_sample": float(work.reward_s_per_sample),
        "prompt_tokens": work.prompt_tokens,
        **({"pretrain_update": True} if work.pretrain_update else {}),
    }


def _workload(doc: Mapping[str, Any]) -> Workload:
    length = doc["response_length"]
    if isinstance(length, int):
        response = LengthDistribution.fixed(length)
    elif "histogram" in length:
        columns = length["histogram"]
        response = LengthDistribution.histogram(tuple(columns["lengths"]), tuple(columns["counts"]))
    else:
        response = LengthDistribution("lognormal", length["mean"], length["max"], length["p99"])
    return Workload(**{key: value for key, value in doc.items() if key != "response_length"}, response=response)


def _shape(role: str, shape: str | Mapping[str, Any]) -> ModelShape:
    if isinstance(shape, str):
        return load_model(shape)
    return shape_from_hf_config(shape["config"], shape["name"], f"models.{role} ({shape['name']})")


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Say where in the job an error lies."""
    try:
        yield
    except InputError as error:
        error.args = (f"{place}: {error}",)
        raise
