"""What the commands do, from Python: typed records and DataFrames in place of tables and files.

``import hybridmap as hm`` has all of it. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from plotly.graph_objects import Figure

    from hybridmap.answers.fit import Fit
    from hybridmap.exports.export import Export
    from hybridmap.exports.imported import Imported
    from hybridmap.exports.targets import Planned
    from hybridmap.files.plan import PlanFile
    from hybridmap.job.job import Job
    from mapper.analysis.explain import Explanation
    from mapper.analysis.regret import Robustness
    from mapper.result import Result
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

    StrPath = str | os.PathLike[str]


def load_job(path: StrPath, *, model_config: StrPath | None = None, allow_download: bool = False) -> Job:
    """Read a ``JOB.yaml``; raises ``profiles.errors.InputError`` with one message for whatever is wrong in it.

    ``model_config`` is the ``config.json`` of a model that the job names and nobody here knows; ``allow_download``
    fetches such files from Hugging Face, which nothing does without it.
    """
    from hybridmap.job import load

    config = None if model_config is None else Path(model_config)
    return load.load_job(path, model_config=config, allow_download=allow_download)


def make_job(document: Mapping[str, Any], folder: StrPath = ".") -> Job:
    """A job from a mapping with the keys of a job file; paths in it start from ``folder``. Errors as ``load_job``."""
    from hybridmap.job.load import job_from_mapping

    return job_from_mapping(dict(document), "job", Path(folder))


def plan(
    job: Job,
    *,
    placement: str = "any",
    even: bool = False,
    seed: int = 0,
    time_limit_s: float = 60.0,
    runners_up: bool = True,
    hint: Plan | None = None,
) -> Result:
    """Find the best plan of a job under its objective, schedule and pins; ``plan_for`` has rules of a target, too.

    ``mapper.request.SearchRequest`` has the parameters, ``mapper.search.find_plan.find_plan`` the errors.
    """
    from mapper.search.find_plan import find_plan

    return find_plan(
        replace(
            job.request(),
            placement=placement,
            even=even,
            seed=seed,
            time_limit_s=time_limit_s,
            runners_up=runners_up,
            hint=hint,
        )
    )


def plan_for(job: Job, target: str, *, seed: int = 0, time_limit_s: float = 60.0) -> Planned:
    """Find the best plan that another system runs as it is written, such as ``verl/megatron``.

    ``Planned`` has the result, the job that is then run, and where that is not what was asked for;
    ``hybridmap.exports.targets.plan_for`` has the errors.
    """
    from hybridmap.exports.targets import plan_for as plan_within
    from hybridmap.exports.targets import target_of
    from mapper.search.find_plan import find_plan

    def search(one: Job) -> Result:
        return find_plan(replace(one.request(), runners_up=False, seed=seed, time_limit_s=time_limit_s))

    return plan_within(job, target_of(target), search)


def simulate(plan: Plan, job: Job) -> Timeline:
    """Predict one iteration of ``plan``; raises ``InfeasibleError`` with every reason if it cannot run."""
    from simulator.play.simulate import simulate as simulate_plan

    return simulate_plan(plan, job.facts())


def compare(job: Job, target: str | None = None) -> pd.DataFrame:
    """The best plan by time of colocate, split, standalone and of all placements, one row each.

    With a ``target``, as in ``plan_for``, or one that the job names, each is what that system runs.

    Columns ``placement``, ``status``, ``iteration_s``, ``tokens_per_s``, ``num_gpus``, one ``STAGE_s`` per stage,
    ``plan`` and ``error``; numbers are missing where a placement does not fit.
    """
    import pandas as pd

    from hybridmap.answers.comparison import PLACEMENTS, best_of
    from hybridmap.exports.targets import planned, target_of

    if target is not None:
        target_of(target)  # its own error, not rows without a plan

    rows: list[dict[str, Any]] = []
    for name in PLACEMENTS:
        row = best_of(job, name, lambda one, search: planned(one, target, search))
        if row.result is None:
            rows.append({"placement": name, "status": "infeasible", "error": str(row.error)})
            continue
        timeline = row.result.timeline
        rows.append(
            {
                "placement": name,
                "status": row.result.status,
                "iteration_s": timeline.iteration_s,
                "tokens_per_s": timeline.tokens_per_s,
                "num_gpus": timeline.num_gpus,
                **{f"{stage}_s": seconds for stage, seconds in timeline.stages.items()},
                "plan": row.result.plan,
            }
        )
    return pd.DataFrame(rows)


def frontier(job: Job, *, seed: int = 0, time_limit_s: float = 60.0) -> pd.DataFrame:
    """Iteration time against GPUs, one row a point; columns as ``mapper.analysis.frontier.FrontierPoint``."""
    import dataclasses

    import pandas as pd

    from mapper.analysis.frontier import frontier as find_frontier

    points = find_frontier(replace(job.request(), seed=seed, time_limit_s=time_limit_s))
    names = [field.name for field in dataclasses.fields(points[0])]
    rows = [{name: getattr(point, name) for name in names} for point in points]
    return pd.DataFrame(rows).assign(tokens_per_s=[point.timeline.tokens_per_s for point in points])


def what_if(
    path: StrPath, settings: Mapping[str, Sequence[Any]], *, seed: int = 0, time_limit_s: float = 60.0
) -> pd.DataFrame:
    """Plan the job of a file again under every combination of ``settings``, the job as it stands first.

    ``settings`` has values by dotted place in the job file, ``{"workload.response_length": [512, 1024]}``. The frame
    has a column per setting (missing in the first row), then the fields of ``answers.what_if.CaseRecord``.
    """
    import pandas as pd

    from hybridmap.answers.what_if import record_of
    from hybridmap.answers.what_if import what_if as planned
    from hybridmap.job.edit import Setting

    parsed = [Setting(key, tuple(values)) for key, values in settings.items()]
    base, cases = planned(Path(path), parsed, seed=seed, time_limit_s=time_limit_s)
    rows = []
    for case in (base, *cases):
        record = record_of(case, base)
        fields = {name: getattr(record, name) for name in type(record).model_fields if name != "settings"}
        rows.append(record.settings | fields)
    return pd.DataFrame(rows, columns=[*settings, *(name for name in rows[0] if name not in settings)])


def fit(job: Job, plan: Plan | None = None, *, time_limit_s: float = 60.0) -> Fit:
    """Whether the best plan, or a given one, fits in memory, and what would make it fit."""
    from hybridmap.answers.fit import fit_of_job, fit_of_plan

    return fit_of_job(job, time_limit_s) if plan is None else fit_of_plan(job, plan, "the plan", time_limit_s)


def memory(plan: Plan, job: Job) -> pd.DataFrame:
    """GPU memory of the fullest GPU of each pool: columns ``pool``, ``role``, ``when``, ``kind``, ``bytes``.

    ``when`` is ``always`` or the call that needs it on top; at any time all ``always`` rows count and one call's.
    """
    import pandas as pd

    from hybridmap.text.fit import memory_rows

    rows = [
        {"pool": pool.name, "role": row["role"], "when": row["when"], "kind": kind, "bytes": size}
        for pool in plan.pools
        for row in memory_rows(plan, pool, job.facts())
        for kind, size in row["classes"].items()
    ]
    return pd.DataFrame(rows)


def explain(job: Job, result: Result, *, time_limit_s: float = 10.0) -> Explanation:
    """Why a plan takes as long as it does, and what would make another one win."""
    from mapper.analysis.explain import explain as explain_plan

    rivals = result.runners_up if result.objective.goal == "time" else ()
    return explain_plan(job.request(), result.plan, rivals, time_limit_s)


def robust(job: Job, *, draws: int = 20, seed: int = 0, time_limit_s: float = 120.0) -> Robustness:
    """What the plan of a job loses when the estimates are off, and which family of them to measure first."""
    from mapper.analysis.robust import robustness

    return robustness(replace(job.request(), seed=seed), draws=draws, budget_s=time_limit_s)


def plan_record(job: Job, result: Result, placement: str = "any", even: bool = False) -> PlanFile:
    """What ``hybridmap plan`` writes as ``plan.json``: the plan, its proof and the job it is for."""
    from hybridmap.files.plan import plan_file_of

    return plan_file_of(job, result, placement, even)


def read_plan(path: StrPath) -> tuple[PlanFile, Job]:
    """Read a ``plan.json``, and the job that it embeds."""
    from hybridmap.files.plan import read_plan_file
    from hybridmap.job.load import job_from_document

    file = read_plan_file(Path(path))
    return file, job_from_document(file.job, f"{path}: job")


def write_plan(job: Job, result: Result, folder: StrPath) -> list[Path]:
    """Write ``plan.json`` and ``timeline.json`` as ``hybridmap plan`` does; gives their paths."""
    from hybridmap.files.plan import planned_records, write_records

    return write_records(Path(folder), planned_records(plan_record(job, result), result.timeline))


def write_report(job: Job, result: Result, path: StrPath, *, measured: Timeline | None = None) -> Path:
    """Write the page that ``hybridmap report`` writes, without a frontier."""
    from hybridmap.files.write import write_file
    from hybridmap.report.content import content_of
    from hybridmap.report.html import page

    write_file(Path(path), page(content_of(plan_record(job, result), job, measured=measured)))
    return Path(path)


def plot_timeline(timeline: Timeline, measured: Timeline | None = None) -> Figure:
    """The calls of an iteration over its seconds, one row for each role of a pool; a run's below, if one is given."""
    from plotly.graph_objects import Figure

    from hybridmap.report.gantt import gantt

    return Figure(gantt(timeline, measured))


def plot_memory(job: Job, plan: Plan, pool: str | None = None) -> Figure:
    """GiB of a pool's fullest GPU over the iteration by role; of the plan's first pool unless one is named."""
    from plotly.graph_objects import Figure

    from hybridmap.report.memory_figure import memory_over_time

    there = plan.pools[0] if pool is None else plan.pool(pool)
    return Figure(memory_over_time(plan, there, simulate(plan, job), job.facts()))


def trace(timelines: Mapping[str, Timeline], plan: Plan | None = None) -> dict[str, Any]:
    """Timelines by name as a Chrome trace: ``json.dump`` it for Perfetto."""
    from hybridmap.files.trace import trace_document

    return trace_document(timelines, plan)


def export(job: Job, plan: Plan, to: Literal["verl", "nemo-rl", "openrlhf", "slime"]) -> Export:
    """A plan for another RL system: its settings, its files, and where it cannot follow."""
    from hybridmap.exports.export import Source
    from hybridmap.exports.systems import SYSTEMS
    from profiles.errors import UnknownNameError
    from simulator.feasibility import require_feasible

    if to not in SYSTEMS:
        raise UnknownNameError("system", to, SYSTEMS)
    require_feasible(plan, job.facts())
    return SYSTEMS[to](Source(plan, job))


def import_verl(
    path: StrPath,
    device: str,
    *,
    inter_node_gbps: float | None = None,
    mean_response_length: int | None = None,
    prompt_tokens: float | None = None,
    models: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Imported:
    """Read a verl run (a launch script, or Hydra's overrides.yaml or load.yaml) as a job and a plan.

    ``environment``: variables that the script finds set; those of this process are not looked at.
    """
    from hybridmap.exports.imported import Given
    from hybridmap.exports.verl.import_run import import_verl as read
    from hybridmap.exports.verl.read import read_verl_config

    given = Given(device, inter_node_gbps, mean_response_length, prompt_tokens, models)
    return read(read_verl_config(Path(path), environment), given)


def models() -> pd.DataFrame:
    """The models known by name: ``name``, ``parameters``, ``layers``, ``hidden``, ``heads``, ``kv_heads``."""
    import pandas as pd

    from profiles.models.catalogue import load_model, model_names

    shapes = [(name, load_model(name)) for name in model_names()]
    return pd.DataFrame(
        [
            {
                "name": name,
                "parameters": s.num_params,
                "layers": s.num_layers,
                "hidden": s.hidden,
                "heads": s.num_heads,
                "kv_heads": s.num_kv_heads,
                "positions": s.max_position,
            }
            for name, s in shapes
        ]
    )


def devices() -> pd.DataFrame:
    """The profiled devices: ``name``, ``memory_bytes``, ``bf16_flop_per_s``, ``memory_bytes_per_s``, and links."""
    import pandas as pd

    from profiles.store import device_names, load_device

    specs = [load_device(name).spec for name in device_names()]
    return pd.DataFrame(
        [
            {
                "name": s.name,
                "memory_bytes": s.memory_bytes,
                "bf16_flop_per_s": s.peak("bf16"),
                "memory_bytes_per_s": s.memory_bytes_per_s,
                "nvlink_bytes_per_s": s.nvlink_bytes_per_s,
                "gpus_per_node": s.gpus_per_node,
                "inter_node_bytes_per_s": s.inter_node_bytes_per_s_per_node,
            }
            for s in specs
        ]
    )
