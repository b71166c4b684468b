"""From a complete job to the facts that a price may look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hybridmap.job.lengths import Histogram, HistogramSection
from hybridmap.job.schema import EmbeddedConfig
from profiles.calibration import CALIBRATION_FILE, CalibrationFile, digest_of, read_calibration
from profiles.engine_facts import load_generation_engine, load_training_engine
from profiles.errors import InputError
from profiles.hardware import ClusterGroup
from profiles.models.catalogue import load_known
from profiles.models.hf_config import shape_from_hf_config
from profiles.store import load_device
from profiles.units import gbit_per_s_to_bytes_per_s
from profiles.workload import LengthDistribution, Workload
from simulator.calibration.factors import calibrated
from simulator.calibration.meant_for import layer_for
from simulator.facts import DeviceGroup, Facts, Implementation, RoleSpec
from simulator.speculation import Speculation

if TYPE_CHECKING:
    from hybridmap.job.job import Job
    from hybridmap.job.lengths import LognormalSection
    from hybridmap.job.schema import ClusterSection, RoleSection, WorkloadSection


def facts_of(job: Job) -> Facts:
    """The facts of a complete job; ``InputError`` for a name that does not exist or sizes that cannot be."""
    first, *others = map(_device_kind, job.cluster)
    assert job.engines.training and job.engines.generation, "a complete job names its engines"
    facts = Facts(
        algorithm=job.algorithm,
        roles={role: _role(role, section) for role, section in job.models.items()},
        workload=_workload(job.workload),
        group=first.group,
        device=first.device,
        training=load_training_engine(job.engines.training),
        generation=load_generation_engine(job.engines.generation, job.engines.generation_settings),
        implementation=_implementation(job),
        others=tuple(others),
        memory_headroom=job.memory.headroom,
        speculation=_speculation(job),
    )
    layers = layers_of(job)
    return calibrated(facts, layer_for(layers, facts)) if layers else facts


def _speculation(job: Job) -> Speculation | None:
    """What the job says of drafts; one share of acceptance is a token's whose forerunners were kept."""
    section = job.speculation
    if section is None:
        return None
    shares, lengths = section.acceptance, tuple(sorted(set(section.draft_tokens)))
    longest = lengths[-1]
    if not longest:
        raise InputError("speculation.draft_tokens lists no draft; leave speculation out for none")
    if len(shares) == 1:
        shares = [shares[0] ** position for position in range(1, longest + 1)]
    if len(shares) != longest:
        raise InputError(
            f"speculation.acceptance has {len(shares)} shares for draft_tokens: {longest}; give one for each, or one "
            "for all"
        )
    draft = None if section.draft is None else load_known(section.draft)
    speculation = Speculation(tuple(shares), draft, lengths if len(lengths) > 1 else ())
    speculation.require_drafts_for(_role("actor", job.models["actor"]).shape)
    return speculation


def _implementation(job: Job) -> Implementation:
    stated = job.implementation.model_dump(exclude_none=True)
    lists = {key: tuple(value) for key, value in stated.items() if isinstance(value, list)}
    return Implementation(**{**stated, **lists})


def layers_of(job: Job) -> list[CalibrationFile]:
    """What runs said of the prices: of the device folder, then of the job."""
    measured = Path(job.cluster[0].device) / CALIBRATION_FILE
    found = [read_calibration(measured)] if measured.is_file() else []
    embedded = [layer for layer in job.calibration if isinstance(layer, CalibrationFile)]
    assert len(embedded) == len(job.calibration), "a complete job has its layers in it"
    once = {digest_of(layer): layer for layer in (*found, *embedded)}  # a job in the device's folder has its layer, too
    return list(once.values())


def _role(role: str, section: RoleSection) -> RoleSpec:
    shape = section.shape
    if isinstance(shape, EmbeddedConfig):
        model = shape_from_hf_config(shape.config, shape.name, f"models.{role} ({shape.name})")
    else:
        model = load_known(shape)
    return RoleSpec(model, section.precision)


def _device_kind(entry: ClusterSection) -> DeviceGroup:
    device = load_device(entry.device)
    assert entry.gpus_per_node and entry.inter_node_gbps and entry.nvlink_domain_gpus, "a complete job says them"
    group = ClusterGroup(
        device=device.name,
        nodes=entry.nodes,
        gpus_per_node=entry.gpus_per_node,
        inter_node_bytes_per_s=gbit_per_s_to_bytes_per_s(entry.inter_node_gbps),
        nvlink_domain_gpus=entry.nvlink_domain_gpus,
        nodes_per_pod=entry.nodes_per_pod or 0,
    )
    return DeviceGroup(group, device)


def _workload(section: WorkloadSection) -> Workload:
    return Workload(
        prompts=section.prompts,
        samples_per_prompt=section.samples_per_prompt,
        prompt_length=section.prompt_length,
        response=_response(section.response_length),
        epochs=section.epochs,
        minibatches=section.minibatches,
        reward_s_per_sample=section.reward_s_per_sample,
        prompt_tokens=section.prompt_tokens,
        pretrain_update=section.pretrain_update,
        pads_prompts=section.pads_prompts,
    )


def _response(length: int | LognormalSection | HistogramSection) -> LengthDistribution:
    if isinstance(length, int):
        return LengthDistribution.fixed(length)
    if isinstance(length, HistogramSection):
        columns = length.histogram
        assert isinstance(columns, Histogram), "a complete job has the columns in it"
        return LengthDistribution.histogram(tuple(columns.lengths), tuple(columns.counts))
    return LengthDistribution("lognormal", length.mean, length.max, length.p99)
