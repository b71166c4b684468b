"""``hybridmap trace``: a timeline for Perfetto."""

from pathlib import Path
from typing import Annotated

import typer

from hybridmap.commands.options import Json
from hybridmap.console import say, say_json


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="A plan.json or a timeline.json.")],
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="timeline.json", help="A run's timeline, as a second process.", show_default=False
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write the trace.")] = Path(
        "trace.json"
    ),
    as_json: Json = False,
) -> None:
    """Write a timeline as a Chrome trace.

    Opens in Perfetto and chrome://tracing: one track a pool, arrows along the critical path. With --measured, the
    predicted and the measured iteration below each other.
    """
    from hybridmap.files.timeline import read_any_timeline, read_timeline
    from hybridmap.files.trace import trace_document
    from hybridmap.files.write import write_file

    timeline, plan = read_any_timeline(file)
    timelines = {"predicted" if timeline.source == "simulated" else "measured": timeline}
    if measured is not None:
        second = read_timeline(measured)
        name = "measured" if second.source == "measured" else "predicted"
        timelines[name if name not in timelines else f"{name} ({measured})"] = second
    document = trace_document(timelines, plan)
    from hybridmap.json_text import to_json

    write_file(out, to_json(document))
    seconds = {name: each.iteration_s for name, each in timelines.items()}
    if as_json:
        say_json({"written": [str(out)], "events": len(document["traceEvents"]), "iteration_s": seconds})
        return
    for name, value in seconds.items():
        say(f"{name:<11} {value:,.2f} s")
    say(f"wrote       {out}: open it at ui.perfetto.dev (nothing is uploaded) or chrome://tracing")
