"""What the page asks, as a record; and the job that it stands for."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Mapping

GOALS = {"time": "shortest iteration", "throughput_per_gpu": "most tokens/s per GPU", "gpus": "fewest GPUs in time"}
NUMBERS = {
    "prompts": "prompts",
    "samples_per_prompt": "responses per prompt",
    "prompt_length": "prompt length",
    "response_length": "longest response",
    "mean_response_length": "mean response (empty: all the longest)",
    "minibatches": "optimizer steps",
}


Entry = float | None
"""A number as it was typed, ``None`` where the field is empty; whether it can be is for the job to say."""


@dataclass(frozen=True)
class Form:
    """The fields of the page; lengths in tokens. ``rest`` are the parts of a job that the page does not show."""

    algorithm: str = "ppo"
    models: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(
            (*ALGORITHMS["ppo"].roles, *ALGORITHMS["ppo"].optional_roles), "llama-3.1-8b"
        )
    )
    prompts: Entry = 1024
    samples_per_prompt: Entry = 1
    prompt_length: Entry = 1024
    response_length: Entry = 1024
    mean_response_length: Entry = None
    minibatches: Entry = 8
    device: str = "h100-80gb-sxm"
    nodes: Entry = 2
    goal: str = "time"
    target_iteration_s: Entry = 200.0
    rest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles to choose a model for: those the algorithm needs, then those it may have."""
        return (*ALGORITHMS[self.algorithm].roles, *ALGORITHMS[self.algorithm].optional_roles)

    @property
    def own_models(self) -> set[str]:
        """Names of models whose shape the job brought along."""
        return {_name(shape) for shape in self.rest.get("shapes", {}).values()}

    def with_algorithm(self, algorithm: str) -> Form:
        """Another algorithm: the models of roles it shares stay, new required ones get the actor's."""
        required = ALGORITHMS[algorithm].roles
        possible = (*required, *ALGORITHMS[algorithm].optional_roles)
        kept = {role: name for role, name in self.models.items() if role in possible}
        models = {role: kept.get(role, self.models["actor"]) for role in required} | kept
        return replace(self, algorithm=algorithm, models=models)


def form_of(document: Mapping[str, Any]) -> Form:
    """The form that shows a job's document. A model outside the catalogue, or a histogram, is shown by its name."""
    work, cluster, response = document["workload"], document["cluster"][0], document["workload"]["response_length"]
    fixed = isinstance(response, int)
    simple = fixed or "mean" in response
    objective = document["objective"]
    rest = {key: document[key] for key in ("engines", "implementation", "memory", "pin", "schedule", "search")}
    hidden: dict[str, Any] = {"workload": {k: work[k] for k in ("epochs", "reward_s_per_sample", "prompt_tokens")}}
    shown = ("device", "nodes")
    hidden["cluster"] = {key: value for key, value in cluster.items() if key not in shown}
    hidden["device"] = cluster["device"]
    hidden["others"] = document["cluster"][1:]
    hidden["shapes"] = {r: m["shape"] for r, m in document["models"].items() if isinstance(m["shape"], dict)}
    if not simple:
        hidden["response"] = response
    longest = response if fixed else int(response["max"] if simple else max(response["histogram"]["lengths"]))
    return Form(
        algorithm=document["algorithm"],
        models={role: _name(model["shape"]) for role, model in document["models"].items()},
        prompts=work["prompts"],
        samples_per_prompt=work["samples_per_prompt"],
        prompt_length=work["prompt_length"],
        response_length=longest,
        mean_response_length=None if fixed or not simple else round(response["mean"]),
        minibatches=work["minibatches"],
        device=cluster["device"],
        nodes=cluster["nodes"],
        goal=objective.get("minimise", objective.get("maximise", "time")),
        target_iteration_s=objective.get("target_iteration_s") or 200.0,
        rest={"document": rest, **hidden},
    )


def _name(shape: str | Mapping[str, Any]) -> str:
    return shape if isinstance(shape, str) else str(shape["name"])


def document_of(form: Form) -> dict[str, Any]:
    """The job of a form, as a job file would say it."""
    rest = copy.deepcopy(dict(form.rest))
    shapes = rest.get("shapes", {})
    models = {
        role: {"shape": shapes.get(role) if _name(shapes.get(role, {"name": ""})) == name else name}
        for role, name in form.models.items()
        if name
    }
    same_device = rest.get("device") == form.device
    return {
        **rest.get("document", {}),
        "algorithm": form.algorithm,
        "models": models,
        "workload": {
            **rest.get("workload", {}),
            "prompts": form.prompts,
            "samples_per_prompt": form.samples_per_prompt,
            "prompt_length": form.prompt_length,
            "response_length": _response(form, rest),
            "minibatches": form.minibatches,
        },
        "cluster": [
            {"device": form.device, "nodes": form.nodes, **(rest.get("cluster", {}) if same_device else {})},
            *rest.get("others", []),
        ],
        "objective": _objective(form),
    }


def _response(form: Form, rest: Mapping[str, Any]) -> Any:
    if form.mean_response_length is not None:
        return {"distribution": "lognormal", "mean": form.mean_response_length, "max": form.response_length}
    given = rest.get("response")
    return given if given and form.response_length == max(given["histogram"]["lengths"]) else form.response_length


def _objective(form: Form) -> dict[str, Any]:
    if form.goal == "gpus":
        return {"minimise": "gpus", "target_iteration_s": form.target_iteration_s}
    return {"maximise": form.goal} if form.goal == "throughput_per_gpu" else {"minimise": "time"}
