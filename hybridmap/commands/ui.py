"""``hybridmap ui``: a local page on which a job's plan follows every change."""

from pathlib import Path
from typing import Annotated

import typer

from profiles.errors import InputError


def ui(
    job: Annotated[
        Path | None, typer.Argument(metavar="[JOB.yaml]", help="Start from this.", show_default=False)
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; anything but this machine is a choice.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8080,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Change a job in the browser and see its plan.

    Models, lengths, cluster and objective on one side; plan, timeline, memory and frontier on the other. Listens on
    127.0.0.1 unless told otherwise, and has no password. Needs the extra `ui`: pip install 'hybridmap[ui]'.
    """
    from hybridmap.job.load import load_job
    from hybridmap.ui.form import Form, form_of

    form = form_of(load_job(job).document) if job is not None else Form()
    try:
        from hybridmap.ui.page import serve
    except ModuleNotFoundError as error:
        if error.name != "nicegui":
            raise
        raise InputError("the page needs NiceGUI, which is not installed: pip install 'hybridmap[ui]'") from None
    typer.echo(f"http://{host}:{port} (Ctrl-C stops it)", err=True)
    serve(form, host, port, browser)
