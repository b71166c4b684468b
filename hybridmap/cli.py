"""The ``hybridmap`` command: its names, its errors, and nothing else.

Exit status: 0 done; 2 the input cannot work as given (one message, no traceback); 1 a fault of ours or of a rank;
130 stopped by Ctrl-C; 141 a run that stopped because nothing reads its lines any more.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hybridmap.commands.calibrate import calibrate
from hybridmap.commands.compare import compare
from hybridmap.commands.compare_runs import compare_runs
from hybridmap.commands.devices import devices
from hybridmap.commands.explain import explain
from hybridmap.commands.export import export
from hybridmap.commands.fit import fit
from hybridmap.commands.frontier import frontier
from hybridmap.commands.import_run import import_run
from hybridmap.commands.init import init
from hybridmap.commands.mcp import mcp
from hybridmap.commands.models import models
from hybridmap.commands.plan import plan
from hybridmap.commands.profile import profile
from hybridmap.commands.report import report
from hybridmap.commands.robust import robust
from hybridmap.commands.run import run
from hybridmap.commands.simulate import simulate
from hybridmap.commands.support import support
from hybridmap.commands.trace import trace
from hybridmap.commands.ui import ui
from hybridmap.commands.validate import validate
from hybridmap.commands.watch import watch
from hybridmap.commands.what_if import what_if
from hybridmap.console import EXIT_INTERRUPTED, fail, shown, stop_writing, unread_is_fine
from hybridmap.text.help_examples import epilog
from hybridmap.version import __version__
from profiles.errors import HybridmapError, InputError

PRINT_AT_WORK = ("run", "profile", "validate")
"""Commands that print while they work; the others print an answer when they are done, and nobody needs all of it."""
EXIT_UNREAD = 141
"""What a shell says of a program that a broken pipe ended."""


class Face(TyperGroup):
    """The command group, with one way for every expected outcome to end a command."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit. ``--json`` holds for errors too, those of the command line itself included."""
        given = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in given
        try:
            status = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except SystemExit as stop:
            pipe = stop.__context__  # Typer ends a command so, whichever pipe broke
            if not isinstance(pipe, BrokenPipeError):
                raise
            if not stop_writing():
                raise pipe from None
            status = EXIT_UNREAD if given[0] in PRINT_AT_WORK else 0
        except HybridmapError as error:
            fail(error, as_json)
        except typer.Abort:
            raise SystemExit(1) from None
        except Exception as error:
            usage = _usage_message(error)
            if usage is None:
                raise
            if as_json or usage != shown(usage):
                fail(InputError(usage), as_json)
            with unread_is_fine():
                error.show()  # type: ignore[attr-defined]
            raise SystemExit(2) from None
        raise SystemExit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it with one word and no answer, where the command itself has no more to say."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
            raise SystemExit(EXIT_INTERRUPTED) from None


def _usage_message(error: Exception) -> str | None:
    """The message of a wrong command line; ``None`` for any other error (the class itself is private to Typer)."""
    message = getattr(error, "format_message", None)
    return str(message()) if callable(message) and hasattr(error, "show") else None


app = typer.Typer(
    cls=Face,
    name="hybridmap",
    help="Place the models of an RL post-training job on a GPU cluster: which share GPUs, and how each is split.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("init", epilog=epilog("init"))(init)
app.command("plan", epilog=epilog("plan"))(plan)
app.command("simulate", epilog=epilog("simulate"))(simulate)
app.command("compare", epilog=epilog("compare"))(compare)
app.command("robust", epilog=epilog("robust"))(robust)
app.command("explain", epilog=epilog("explain"))(explain)
app.command("frontier", epilog=epilog("frontier"))(frontier)
app.command("fit", epilog=epilog("fit"))(fit)
app.command("what-if", epilog=epilog("what-if"))(what_if)
app.command("run", epilog=epilog("run"))(run)
app.command("report", epilog=epilog("report"))(report)
app.command("ui", epilog=epilog("ui"))(ui)
app.command("mcp", epilog=epilog("mcp"))(mcp)
app.command("trace", epilog=epilog("trace"))(trace)
app.command("export", epilog=epilog("export"))(export)
app.command("import", epilog=epilog("import"))(import_run)
app.command("calibrate", epilog=epilog("calibrate"))(calibrate)
app.command("watch", epilog=epilog("watch"))(watch)
app.command("compare-runs", epilog=epilog("compare-runs"))(compare_runs)
app.command("support", epilog=epilog("support"))(support)
app.command("profile", epilog=epilog("profile"))(profile)
app.command("validate", epilog=epilog("validate"))(validate)
app.add_typer(models, name="models")
app.add_typer(devices, name="devices")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hybridmap {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the ``hybridmap`` command, also as ``python -m hybridmap``: the name is the same in each."""
    app(prog_name="hybridmap")


if __name__ == "__main__":
    main()
