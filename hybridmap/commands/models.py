"""``hybridmap models``: the models known by name, and the exact counts of one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridmap.commands.options import Json
from hybridmap.console import new_table, say, say_json, say_table

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape

models = typer.Typer(help="List the known models, or show one.")

MOE_FACTS = ("num_experts", "experts_per_token", "expert_ffn", "shared_ffn", "num_moe_layers")
KV_BYTES_PER_ELEMENT = 2  # bf16
KIB = 1024


@models.callback(invoke_without_command=True)
def _default(context: typer.Context, as_json: Json = False) -> None:
    if context.invoked_subcommand is None:
        list_models(as_json)


@models.command("list")
def list_models(as_json: Json = False) -> None:
    """List every model of the catalogue."""
    from profiles.models.catalogue import model_names

    rows = [_facts(name) for name in model_names()]
    if as_json:
        say_json({"models": rows})
        return
    numbers = ("params", "active", "KV", "context")
    table = new_table(("model", *numbers), right=numbers)
    for row in rows:
        table.add_row(
            row["name"],
            _billions(row["num_params"]),
            _billions(row["active_params"]) if row["active_params"] != row["num_params"] else "",
            f"{row['kv_bytes_per_token'] / KIB:,.0f}",
            f"{row['max_position'] / KIB:,.0f}K",
        )
    say_table(table)
    say("\nParameters in billions, KV cache in KiB a token (bf16), most tokens of a sequence")
    say("Heads, widths, experts: hybridmap models show NAME")
    say("Checkpoints of their shapes go by their Hugging Face id; of any other model give the path of its config.json.")


@models.command("show")
def show_model(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A catalogue name, a Hugging Face id, or the path of a config.json.")
    ],
    as_json: Json = False,
) -> None:
    """Show the exact parameter counts and widths of one model."""
    facts = _facts(name)
    if as_json:
        say_json(facts)
        return
    table = new_table(("fact", "value"), right=("value",))
    for key, value in facts.items():
        if isinstance(value, dict):
            for part, inner in value.items():
                table.add_row(f"{key}.{part}".replace("_", " "), _text(inner))
        elif value is not None:
            table.add_row(key.replace("_", " "), _text(value))
    say_table(table)
    say("KV bytes per token: all layers, bf16, before any split over GPUs.")


def _facts(name: str) -> dict[str, Any]:
    from profiles.models.catalogue import hf_id, load_model, model_names, published_num_params

    shape = load_model(name)
    known = name in model_names()
    return {
        "name": shape.name,
        "hf_id": hf_id(name) if known else None,
        "architecture": shape.architecture,
        "num_params": shape.num_params,
        "published_params": published_num_params(name) if known else None,
        "active_params": shape.active_params_per_token,
        "num_params_scalar_head": shape.num_params_of("scalar"),
        "num_layers": shape.num_layers,
        "hidden": shape.hidden,
        "ffn": shape.ffn,
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab": shape.vocab,
        "max_position": shape.max_position,
        "kv_bytes_per_token": shape.kv_elements_per_token * KV_BYTES_PER_ELEMENT,
        "tensor_parallel": [t for t in (1, 2, 4, 8, 16, 32, 64) if shape.max_tensor_parallel_ok(t)],
        "layers": _layers(shape),
        "state_bytes_per_sequence": _state_bytes(shape),
        "vision_params": shape.vision_params or None,
        "checkpoint_formats": _formats(shape),
        "moe": {key: getattr(shape.moe, key) for key in MOE_FACTS} if shape.moe else None,
    }


def _layers(shape: "ModelShape") -> dict[str, int] | None:
    """Layers by what they are, for a model whose layers differ in more than experts."""
    kinds = {
        "full_attention": shape.num_full_layers,
        "windowed_attention": shape.num_sliding_layers,
        "linear": shape.num_linear_layers,
        "multi_token_prediction": shape.num_mtp_layers,
    }
    if shape.num_full_layers == shape.num_layers and not shape.num_mtp_layers:
        return None
    return {kind: count for kind, count in kinds.items() if count}


def _formats(shape: "ModelShape") -> dict[str, str | None] | None:
    """Number format of each kind of matrix in the checkpoint, for one that is quantised."""
    held = shape.weights
    if held is None:
        return None
    mlps = {"dense_mlp": held.dense_mlp, "shared_experts": held.shared_experts, "experts": held.experts}
    return {"attention": held.attention, "linear_mixers": held.linear_mixers, **mlps, "kv_cache": held.kv_cache}


def _state_bytes(shape: "ModelShape") -> int | None:
    """Bytes that the linear layers keep of one sequence, whatever its length."""
    if shape.linear is None:
        return None
    one = shape.linear.state_elements * shape.linear.state_element_bytes
    return shape.num_linear_layers * (one + shape.linear.conv_elements * KV_BYTES_PER_ELEMENT)


def _billions(count: int) -> str:
    return f"{count / 1e9:,.{2 if count < 99.5e9 else 0}f}"


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
