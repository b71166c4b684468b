"""Number formats, adapters and drafts of a job: what a system has settings for, and the run that it makes without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from profiles.errors import InputError
from profiles.models.catalogue import hf_id, model_names

if TYPE_CHECKING:
    from hybridmap.exports.export import Points, Source

Drafter = Literal["own layers", "draft model"]
"""Who drafts: the prediction layers of the model itself (MTP), or a model of its own."""


@dataclass(frozen=True)
class Formats:
    """What a system has settings for.

    Parameters
    ----------
    served, trained
        Number formats beside bf16 of the engine's weights, and of the trainer's products.
    drafters
        Who may draft tokens in its engines.
    adapters
        Whether it trains LoRA adapters.
    source
        Where its source says so.
    """

    served: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    drafters: tuple[Drafter, ...] = ()
    adapters: bool = True
    source: str = ""


def drafter(source: Source) -> Drafter | None:
    """Who drafts in a job; ``None`` where nobody does."""
    section = source.job.speculation
    if section is None or not source.draft_tokens:
        return None
    return "own layers" if section.draft is None else "draft model"


def vllm_drafts(source: Source) -> dict[str, Any] | None:
    """The drafts of a job as vLLM's ``speculative_config``."""
    section = source.job.speculation
    if section is None or not source.draft_tokens:
        return None
    name = section.draft
    by: dict[str, Any] = (
        {"method": "mtp"} if name is None else {"model": hf_id(name) if name in model_names() else name}
    )
    return by | {"num_speculative_tokens": source.draft_tokens}


def in_formats_of(source: Source, out: Points, system: str, formats: Formats) -> Source:
    """The job with what the system has settings for; what it lacks runs in bf16, and without drafts, and is noted.

    Raises ``InputError`` for adapters where the system has none: training whole models is another run.
    """
    where = f" ({formats.source})" if formats.source else ""
    if source.facts.implementation.lora_rank and not formats.adapters:
        raise InputError(f"{system} has no LoRA{where}; export to verl, nemo-rl or openrlhf, or take lora_rank out")
    source = _models_in(source, out, system, formats, where)
    dtype = source.facts.implementation.training_dtype
    if dtype not in ("bf16", *formats.trained):
        place = "implementation.training_dtype"
        out.cannot(place, f"{system} has no setting for {dtype} here{where}: it trains in bf16")
        source = source.with_job(implementation=source.job.implementation.model_copy(update={"training_dtype": "bf16"}))
    drafts = drafter(source)
    if drafts is not None and drafts not in formats.drafters:
        out.cannot("speculation", f"{system} has no setting for tokens drafted by {drafts}{where}: none are")
        source = source.with_plan(draft_tokens=None).with_job(speculation=None)
    return source


def _models_in(source: Source, out: Points, system: str, formats: Formats, where: str) -> Source:
    models = dict(source.job.document["models"])
    for role, spec in source.facts.roles.items():
        if spec.precision == "bf16" or (role == "actor" and spec.precision in formats.served):
            continue
        out.cannot(
            f"models.{role}.precision",
            f"{system} has no setting for {spec.precision} here{where}: it runs in bf16",
        )
        models[role] = {**models[role], "precision": "bf16"}
    return source if models == source.job.document["models"] else source.with_job(models=models)
