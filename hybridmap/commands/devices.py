"""``hybridmap devices``: the devices with profiles, what is known of one and from where, and import of tables."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from hybridmap.commands.options import Json
from hybridmap.console import new_table, say, say_json, say_table, warn, working

devices = typer.Typer(help="List profiled devices, show one, or import tables.")


@devices.callback(invoke_without_command=True)
def _default(context: typer.Context, as_json: Json = False) -> None:
    if context.invoked_subcommand is None:
        list_devices(as_json)


@devices.command("list")
def list_devices(as_json: Json = False) -> None:
    """List every device of the catalogue."""
    from hybridmap.answers.device_facts import card_of, facts_of
    from profiles.store import device_names

    if as_json:
        say_json({"devices": [facts_of(name) for name in device_names()]})
        return
    numbers = ("GiB", "TFLOP/s", "GB/s", "NVLink", "network", "GPUs", "measured")
    table = new_table(("device", *numbers), right=numbers)
    for device in map(card_of, device_names()):
        table.add_row(device["name"], *_figures(device["spec"]), f"{sum(t['rows'] for t in device['tables']):,}")
    say_table(table)
    say("\nMemory in GiB, dense bf16 in TFLOP/s, memory and NVLink in GB/s, network of a node in Gbit/s")
    say("GPUs of a node (in reach of NVLink, where they are more); measured: rows of tables")
    say("Sources of every number: hybridmap devices show NAME")


@devices.command("show")
def show_device(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A catalogue name, or the path of a device folder.")],
    as_json: Json = False,
) -> None:
    """Show what is known of one device: each number with its basis and source, each table with its origin."""
    from hybridmap.answers.device_facts import facts_of

    facts = facts_of(name)
    if as_json:
        say_json(facts)
        return
    say(f"{facts['name']} ({facts['device_string']})\n")
    for doubt in facts["doubts"]:
        warn(doubt)
    table = new_table(("fact", "value", "unit", "basis", "source"), right=("value",))
    for key, fact in facts["spec"].items():
        table.add_row(key, f"{fact['value']:,g}" if fact["value"] < 1e6 else f"{fact['value']:.4g}", *_origin(fact))
    say_table(table)
    say()
    table = new_table(("table", "rows", "measured with", "source"), right=("rows",))
    for entry in facts["tables"]:
        table.add_row(entry["table"], f"{entry['rows']:,}", ", ".join(entry["measured_with"]), entry["package"])
    say_table(table)
    _say_origins(facts)


def _say_origins(facts: dict[str, Any]) -> None:
    """Which table is asked first by operator and engine; kernels and rows in the place of others."""
    from hybridmap.answers.table_origins import by_table

    say()
    table = new_table(("operator", "by the table of", "prices"))
    for (operator, measured_with), engines in by_table(facts["prices"]).items():
        table.add_row(operator, measured_with, ", ".join(engines))
    say_table(table)
    for line in (*facts["borrowed"], *facts["replaced"]):
        say(line)


@devices.command("import")
def import_device(
    device: Annotated[list[str], typer.Option("--device", metavar="NAME", help="A catalogue device; may be repeated.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that gets one folder per device.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="A wheel of aiconfigurator-core; else the installed copy."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Import measured operator tables from the package aiconfigurator-core."""
    from hybridmap.files.plan import require_folder

    require_folder(out)
    with working("importing tables ..."):
        from profiles.importer.import_tables import import_tables

        written = [*import_tables(source, device, out), *_device_cards(device, out)]
    if as_json:
        say_json({"written": [str(path) for path in written]})
        return
    for path in written:
        say(f"wrote {path}")
    say(f"next  name the folder in a job: device: {out / device[0]}")


def _rate(flag: str, example: str, meaning: str | None = None) -> OptionInfo:
    """A number of a new device, with its unit or without; unless it is given it is that of ``--like``."""
    option: OptionInfo = typer.Option(flag, metavar=example, help=meaning, show_default=False)
    return option


@devices.command("new")
def new_device(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called, and its folder.")],
    like: Annotated[
        str, typer.Option("--like", metavar="DEVICE", help="A shipped device with tables, the nearest of its kind.")
    ],
    memory: Annotated[str | None, _rate("--memory", "96GB")] = None,
    bandwidth: Annotated[str | None, _rate("--bandwidth", "4.0e12", "Of its memory, B/s.")] = None,
    flops: Annotated[str | None, _rate("--flops", "148e12", "Peak of dense bf16, FLOP/s.")] = None,
    fp8_flops: Annotated[str | None, _rate("--fp8-flops", "296e12", "Peak of dense fp8.")] = None,
    links: Annotated[str | None, _rate("--links", "450e9", "Between GPUs of a node, one way, B/s.")] = None,
    host_link: Annotated[str | None, _rate("--host-link", "50e9", "To host memory, B/s.")] = None,
    network: Annotated[str | None, _rate("--network", "400e9", "Of a node, one way, B/s.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", min=1, max=1024, show_default=False)] = None,
    power: Annotated[str | None, _rate("--power", "700", "Limit, W.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that gets a folder NAME.")] = Path(),
    as_json: Json = False,
) -> None:
    """Write the file of a device without tables.

    It is priced as the device of --like at its own rates, and says so; hybridmap calibrate learns from a log what it
    really does.
    """
    from hybridmap.files.plan import require_folder
    from profiles.new_device import RATES, device_file, memory_bytes, quantity, write_device
    from profiles.store import device_called

    like = device_called(like)
    texts = {
        "peak_flop_per_s": flops,
        "fp8_flop_per_s": fp8_flops,
        "memory_bytes_per_s": bandwidth,
        "nvlink_bytes_per_s": links,
        "pcie_bytes_per_s": host_link,
        "inter_node_bytes_per_s_per_node": network,
        "power_w": power,
    }
    given = {field: quantity(RATES[field], text) for field, text in texts.items() if text is not None}
    if memory is not None:
        given["memory_bytes"] = memory_bytes(memory)
    text = device_file(name, like, given, gpus_per_node)
    require_folder(out)
    path = write_device(out / name, text)
    if as_json:
        say_json({"written": [str(path)]})
        return
    say(f"wrote {path}: the kernels of {like} at the rates given, nothing measured")
    say(f"next  name the folder in a job: device: {out / name}")
    say(f"      and learn from a log: hybridmap calibrate LOG --script run.sh --device {out / name} --out {out / name}")


def _device_cards(names: list[str], out: Path) -> list[Path]:
    """Beside its tables a device folder needs the card of hardware facts; one that is there is the user's own."""
    from profiles.device_file import DEVICE_FILE
    from profiles.store import DATA

    missing = [name for name in names if not (out / name / DEVICE_FILE).exists()]
    return [shutil.copyfile(DATA / name / DEVICE_FILE, out / name / DEVICE_FILE) for name in missing]


def _figures(spec: dict[str, Any]) -> list[str]:
    from hybridmap.text.notation import gib

    def value(key: str) -> float:
        return float(spec[key]["value"])

    node, reach = value("gpus_per_node"), value("nvlink_domain_gpus")
    return [
        gib(value("memory_bytes")),
        f"{value('peak_flop_per_s.bf16') / 1e12:,.0f}",
        f"{value('memory_bytes_per_s') / 1e9:,.0f}",
        f"{value('nvlink_bytes_per_s') / 1e9:,.0f}",
        f"{value('inter_node_bytes_per_s_per_node') * 8 / 1e9:,.0f}",
        f"{node:.0f}" if reach <= node else f"{node:.0f} ({reach:.0f})",
    ]


def _origin(fact: dict[str, Any]) -> tuple[str, str, str]:
    return str(fact["unit"]), str(fact["basis"]), str(fact["source"])
