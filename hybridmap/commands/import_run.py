"""``hybridmap import``: read a run of another system, and say what would be faster."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import Json, TimeLimit, known_devices
from hybridmap.console import new_table, say, say_json, say_table, working
from profiles.errors import InputError

if TYPE_CHECKING:
    from hybridmap.exports.verl_config import VerlConfig
    from hybridmap.exports.verl_import import Imported
    from mapper.result import Result
    from simulator.plan import Record
    from simulator.timeline import Timeline

ROLLOUT = "actor_rollout_ref.rollout"
SHARE, CACHE = f"{ROLLOUT}.gpu_memory_utilization", f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"
"""Two keys for one thing: the engine's share of memory, and its KV cache in bytes, which has the last word."""


class Origin(StrEnum):
    """Systems whose runs can be read."""

    VERL = "verl"


def import_run(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A launch script, or overrides.yaml or config.yaml of Hydra.")
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device", help="The GPU it runs on; a name of `hybridmap devices list`.", autocompletion=known_devices
        ),
    ],
    origin: Annotated[Origin, typer.Option("--from", help="The system whose run it is.")] = Origin.VERL,
    gbps: Annotated[
        float | None, typer.Option("--inter-node-gbps", help="Network of a node; else its card's.", show_default=False)
    ] = None,
    mean_response: Annotated[
        int | None,
        typer.Option("--mean-response-length", min=1, metavar="N", help="Tokens, from your logs.", show_default=False),
    ] = None,
    prompt_tokens: Annotated[
        float | None,
        typer.Option("--prompt-tokens", metavar="N", help="Mean prompt, from your logs.", show_default=False),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="ROLE=NAME", help="A role's model, where its path is unknown."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the plans.")] = Path("hybridmap-out"),
    time_limit: TimeLimit = 60.0,
    as_json: Json = False,
) -> None:
    """Read a verl run, and say what would be faster.

    Simulates the run as it is configured, finds the best plan for the same job, and lists the keys to change. Writes
    both plans, and the job, into a folder.
    """
    from hybridmap.exports.verl_config import read_verl_config
    from hybridmap.exports.verl_import import Given, import_verl
    from hybridmap.plan_file import require_folder

    assert origin is Origin.VERL, "the only one there is"
    require_folder(out)
    given = Given(device, gbps, mean_response, prompt_tokens, _models(model or []))
    read = read_verl_config(config)
    imported = import_verl(read, given)
    now, why = _simulated(imported)
    with working("searching a better plan ..."):
        from mapper.search import find_plan

        best = find_plan(imported.job.facts(), runners_up=False, time_limit_s=time_limit)
    written = _write(imported, now, best, out)
    changes = changed_keys(imported, best, read)
    if as_json:
        say_json(_document(imported, now, why, best, changes, written))
        return
    _show(imported, now, why, best, changes)
    say(f"wrote       {', '.join(written)}")


def _models(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for role, sign, name in pairs:
        if not sign or not role or not name:
            raise InputError(f"--model {role}{sign}{name}: expected ROLE=NAME, such as actor=qwen2.5-7b")
    return {role: name for role, _, name in pairs}


def _simulated(imported: "Imported") -> "tuple[Timeline | None, list[str]]":
    """The run's timeline, or why it could not run by our count."""
    from simulator.feasibility import check_plan
    from simulator.simulate import simulate

    found = check_plan(imported.plan, imported.job.facts())
    if found:
        return None, [violation.message for violation in found]
    return simulate(imported.plan, imported.job.facts()), []


def changed_keys(imported: "Imported", best: "Result", read: "VerlConfig") -> list[tuple[str, Any, Any]]:
    """Every verl key in which the run and the best plan differ: key, as it is, as it should be."""
    from hybridmap.exports.export import Source
    from hybridmap.exports.verl_settings import verl_settings

    source = imported.source
    ours = verl_settings(source).values
    theirs = verl_settings(Source(best.plan, source.facts, source.job)).values
    keys = dict.fromkeys([*ours, *theirs])
    differing = [(key, ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)]
    in_bytes = CACHE.lstrip("+") in read.given
    told = [change for change in differing if change[0] != (SHARE if in_bytes else CACHE)]
    return [(key, read.get(SHARE) if key == SHARE else old, new) for key, old, new in told]


def _write(imported: "Imported", now: "Timeline | None", best: "Result", out: Path) -> list[str]:
    import yaml

    from hybridmap.plan_file import plan_file_of, write_records
    from hybridmap.text_file import write_text

    record = plan_file_of(imported.job, best, "any", False)
    records: dict[str, Record] = {"plan.json": record, "timeline.json": best.timeline}
    if now is not None:
        update = {
            "plan": imported.plan, "iteration_s": now.iteration_s, "stages": dict(now.stages), "status": "feasible",
            "gap": (now.iteration_s - best.bound_s) / now.iteration_s, "tokens_per_s": now.tokens_per_s,
            "num_gpus": now.num_gpus, "runners_up": (),
        }  # fmt: skip
        records["imported.json"] = record.model_copy(update=update)
    written = [str(path) for path in write_records(out, records)]
    write_text(out / "job.yaml", yaml.safe_dump(dict(imported.job.document), sort_keys=False))
    return [*written, str(out / "job.yaml")]


def _show(
    imported: "Imported", now: "Timeline | None", why: list[str], best: "Result", changes: list[tuple[str, Any, Any]]
) -> None:
    from hybridmap.exports.verl import override_text
    from hybridmap.plan_text import header_lines, show_plan

    say("\n".join(header_lines(imported.job.facts(), imported.notes)))
    if now is None:
        say("your run does not fit by this count:")
        for line in why:
            say(f"  {line}")
    else:
        say("your run:")
        show_plan(imported.plan, now)
    say()
    say("the best plan for the same job:")
    show_plan(best.plan, best.timeline)
    say()
    ahead = now is None or best.iteration_s < 0.999 * now.iteration_s
    you = "your run does not fit" if now is None else f"you run at {now.iteration_s:,.2f} s an iteration"
    if not ahead:
        say(f"{you}; no plan is faster")
        return
    say(f"{you}, this plan takes {best.iteration_s:,.2f} s; change these {len(changes)} keys:")
    table = new_table(("key", "now", "change to"))
    for key, old, new in changes:
        table.add_row(key.lstrip("+"), _text(old, override_text(old)), _text(new, override_text(new)))
    say_table(table)


def _text(value: object, text: str) -> str:
    return "-" if value is None else text


def _document(
    imported: "Imported", now: "Timeline | None", why: list[str], best: "Result", changes: list[tuple[str, Any, Any]],
    written: list[str],
) -> dict[str, Any]:  # fmt: skip
    return {
        "job": dict(imported.job.document),
        "run": {
            "plan": imported.plan.model_dump(mode="json"), "fits": now is not None, "why_not": why,
            "iteration_s": None if now is None else now.iteration_s,
            "stages": {} if now is None else dict(now.stages),
        },
        "best": {"plan": best.plan.model_dump(mode="json"), "iteration_s": best.iteration_s, "status": best.status},
        "changes": [{"key": key, "now": old, "change_to": new} for key, old, new in changes],
        "notes": list(imported.notes),
        "written": written,
    }  # fmt: skip
