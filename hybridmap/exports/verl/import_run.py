"""A verl run as a job and a plan: the other way round of ``verl.settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridmap.exports.export import Source
from hybridmap.exports.imported import NOT_IN_SETTINGS, Given, Imported, drafting, of_lengths
from hybridmap.exports.verl.job import drafted_tokens, job_of, pools_of, roles_of
from hybridmap.exports.verl.limits import require_read
from hybridmap.exports.verl.plan import plan_of
from hybridmap.exports.verl.read import VerlConfig, config_of_script
from hybridmap.job.load import job_from_mapping


def import_verl(config: VerlConfig, given: Given) -> Imported:
    """Read a run.

    Raises ``InputError`` for what hybridmap has no word for: an advantage estimator, a model outside the catalogue,
    a batch that is no whole number, another engine.
    """
    require_read(config)
    roles = roles_of(config)
    pools = pools_of(config, roles, given.device)
    raw = job_of(config, given, roles, pools)
    job = job_from_mapping(raw, config.source, Path())
    name = job.facts().group.device  # a device folder's path is no name
    named = {role: pool.model_copy(update={"device": name}) for role, pool in pools.items()}
    plan, notes = plan_of(config, job, named)
    return Imported(job, plan, (*of_lengths(given, job), *notes))


def as_read(config: VerlConfig, source: Source) -> Source:
    """The plan of a run whose job is known: what no key says comes from there, everything else from the keys."""
    device = source.plan.pools[0].device
    roles = roles_of(config)
    pools = pools_of(config, roles, device)
    raw = job_of(config, Given(device, models=dict.fromkeys(roles, "")), roles, pools)
    known = source.job.document
    raw["implementation"].pop("loss_head", None)  # no key that an export writes decides it
    sections: dict[str, Any] = {
        "algorithm": source.facts.algorithm,  # of several that one estimator stands for
        "models": {role: known["models"][role] for role in roles},
        "workload": raw["workload"]
        | {key: known["workload"][key] for key in NOT_IN_SETTINGS if key in known["workload"]},
        "implementation": {**known["implementation"], "packed_tokens": None, **raw["implementation"]},
    }
    tokens = drafted_tokens(config)
    if not tokens:
        sections["speculation"] = None
    job = job_from_mapping({**known, **sections}, config.source, Path())
    return drafting(Source(plan_of(config, job, pools)[0], job), tokens)


def as_written(script: str, name: str, source: Source) -> Source:
    """What verl runs when it is started with a script that an export wrote, for the export's own job."""
    return as_read(config_of_script(script, name, {"TRAIN_FILES": "train.parquet"}), source)
