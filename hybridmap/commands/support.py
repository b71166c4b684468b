"""``hybridmap support``: what prices of generation rest on, by engine, kind of model and number format."""

from pathlib import Path
from typing import Annotated

import typer

from hybridmap.commands.options import Json
from hybridmap.console import new_table, say, say_json, say_table


def support(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="A catalogue name, or the path of a device folder.")],
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", metavar="NAME", help="A generation engine, engine@version; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what generation on a device is priced from: the share of a step that measured tables give."""
    from hybridmap.answers.support import MODELS, PRECISIONS, support_of
    from profiles.store import device_called

    device = device if Path(device).is_dir() else device_called(device)
    cells = support_of(device, tuple(engine or ()))
    if as_json:
        say_json({"device": device, "cells": [cell.__dict__ for cell in cells]})
        return
    shown = {(cell.engine, cell.kind, cell.precision): cell.measured for cell in cells}
    for name in dict.fromkeys(cell.engine for cell in cells):
        table = new_table((name, "model", *PRECISIONS), right=PRECISIONS)
        for kind, model in MODELS.items():
            found = [shown[name, kind, precision] for precision in PRECISIONS]
            table.add_row(kind, model, *("-" if share is None else f"{share:.0%}" for share in found))
        say_table(table)
        say()
    say("Share of the GPU's time that tables of the device give: half a decode step of 64 sequences at 4,096 tokens,")
    say("half a prefill of 4,096, on 8 GPUs. The rest is by rule; - has no price.")
