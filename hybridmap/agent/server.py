"""The tools, and the server that offers them over standard input and output (``hybridmap mcp``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import hybridmap as hm
from hybridmap.agent.answers import (
    ComparedAnswer,
    ExportAnswer,
    FitAnswer,
    ImportAnswer,
    LearnedAnswer,
    PlanAnswer,
    compared_answer,
    plan_answer,
    proof_of,
)
from hybridmap.version import __version__
from profiles.errors import HybridmapError, InputError
from profiles.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.mcpserver import MCPServer

    from hybridmap.job.job import Job

SKILL = Path(__file__).parent / "SKILL.md"
"""When an agent uses which tool; also the server's instructions."""

Given = dict[str, Any] | str
"""A job: its mapping, or the path of a JOB.yaml."""
MOST_SEARCH_S = 300.0


def job_of(given: Given) -> Job:
    """A job from either form; ``InputError`` as in ``load_job``."""
    return hm.load_job(given) if isinstance(given, str) else hm.make_job(given)


def plan(job: Given, out: str = "hybridmap-out", placement: str = "any", time_limit_s: float = 60.0) -> PlanAnswer:
    """Find the fastest plan of a job and write it: which models share GPUs, and how each is parallelised.

    job: a mapping with algorithm, models, workload, cluster, or the path of a JOB.yaml. placement: any, colocate, split
    or standalone. Writes plan.json and timeline.json into ``out``.
    """
    from hybridmap.files.plan import require_folder

    require_folder(Path(out))
    known = job_of(job)
    result = hm.plan(known, placement=placement, time_limit_s=min(time_limit_s, MOST_SEARCH_S))
    hm.write_plan(known, result, out)
    answer = plan_answer(result.plan, result.timeline, known.facts(), proof_of(result), tuple(result.notes))
    return answer.model_copy(update={"plan_file": str(Path(out) / "plan.json")})


def simulate(plan_file: str) -> PlanAnswer:
    """Predict one iteration of a plan.json: time by stage with its interval, and memory by pool."""
    file, job = hm.read_plan(plan_file)
    return plan_answer(file.plan, hm.simulate(file.plan, job), job.facts())


def fit(job: Given, time_limit_s: float = 60.0) -> FitAnswer:
    """Whether a job fits in GPU memory, on how few GPUs, and what would make it fit."""
    found = hm.fit(job_of(job), time_limit_s=min(time_limit_s, MOST_SEARCH_S))
    fewest = found.fewest.plan.num_gpus if found.fewest is not None else found.fewest_beyond
    return FitAnswer(
        fits=found.fits,
        fewest_gpus=fewest,
        needs_gib=None if found.needs_bytes is None else found.needs_bytes / GIB,
        remedies=[remedy.what for remedy in found.remedies],
    )


def compare(job: Given) -> list[ComparedAnswer]:
    """The best plan of each placement (colocate, split, standalone, any), to see what sharing GPUs is worth."""
    return [compared_answer(row) for row in hm.compare(job_of(job)).to_dict(orient="records")]


def explain(plan_file: str, time_limit_s: float = 10.0) -> list[str]:
    """Why a plan takes as long as it does: what each resource at double speed would save, and what was found."""
    from mapper.analysis.explain import explain as explain_plan

    file, job = hm.read_plan(plan_file)
    found = explain_plan(job.request(), file.plan, (), min(time_limit_s, MOST_SEARCH_S))
    now_s = found.timeline.iteration_s
    saved = [f"{name} twice as fast: {now_s - s:,.1f} s less" for name, s in found.twice_as_fast.items()]
    return [f"an iteration takes {now_s:,.1f} s", *saved, *(finding.sentence for finding in found.findings)]


def export(plan_file: str, to: Literal["verl", "nemo-rl", "openrlhf", "slime"]) -> ExportAnswer:
    """A plan.json as the settings of verl, NeMo-RL or OpenRLHF."""
    file, job = hm.read_plan(plan_file)
    made = hm.export(job, file.plan, to)
    return ExportAnswer(files=dict(made.files), cannot_follow=[str(point) for point in made.points])


def import_script(
    script: str, device: str, mean_response_length: int | None = None, prompt_tokens: float | None = None
) -> ImportAnswer:
    """What a verl launch script would take as it is configured. device: a GPU by name, such as h100-80gb-sxm."""
    from hybridmap.exports.doubt import as_it_runs

    found = hm.import_verl(script, device, mean_response_length=mean_response_length, prompt_tokens=prompt_tokens)
    timeline, why_not = as_it_runs(found.plan, found.job.facts())
    run = None if timeline is None else plan_answer(found.plan, timeline, found.job.facts())
    return ImportAnswer(fits=not why_not, why_not=why_not, run=run, notes=list(found.notes))


def calibrate(log: str, plan_file: str, out: str = ".") -> LearnedAnswer:
    """Learn from the log of a run of verl, NeMo-RL, OpenRLHF or slime what its machines make of the prices.

    Writes calibration.yaml.
    """
    from hybridmap.calibration.learn import learn
    from hybridmap.files.write import write_file
    from hybridmap.runlogs.read import read_log
    from profiles.calibration import CALIBRATION_FILE, text_of

    file, job = hm.read_plan(plan_file)
    learned = learn(read_log(Path(log)), file.plan, job.facts())
    target = Path(out) / CALIBRATION_FILE
    write_file(target, text_of(learned.file))
    return LearnedAnswer(
        steps=learned.file.steps,
        factors=learned.belief.factors,
        errors_before={" + ".join(s.calls): s.error_before for s in learned.file.stages},
        errors_after={" + ".join(s.calls): s.error_after for s in learned.file.stages},
        mean_response_tokens=learned.lengths.response_mean if learned.lengths else None,
        lacks=list(learned.lacks),
        calibration_file=str(target),
    )


def known_names() -> dict[str, list[str]]:
    """The models and the GPUs that a job may name."""
    from profiles.models.catalogue import model_names
    from profiles.store import device_names

    return {"models": list(model_names()), "devices": list(device_names())}


TOOLS: tuple[Callable[..., Any], ...] = (
    plan,
    simulate,
    fit,
    compare,
    explain,
    export,
    import_script,
    calibrate,
    known_names,
)


def make_server() -> MCPServer[Any]:
    """The server with every tool; ``InputError`` without the package ``mcp``."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise InputError("the tools for agents need the package mcp: pip install 'hybridmap[agent]'") from error
    server = MCPServer("hybridmap", instructions=SKILL.read_text(), version=__version__)
    for tool in TOOLS:
        server.tool()(_told(tool, ToolError))
    return server


def _told(tool: Callable[..., Any], failure: type[Exception]) -> Callable[..., Any]:
    """A tool whose expected errors are answers; faults of ours stay faults."""
    import functools

    @functools.wraps(tool)
    def told(*words: Any, **named: Any) -> Any:
        try:
            return tool(*words, **named)
        except HybridmapError as error:
            raise failure(str(error)) from None

    return told
