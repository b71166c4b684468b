"""What a job says that is probably not what was meant: not wrong, but worth a line before a long run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profiles.calibration import FACTORS
from profiles.device_file import MEASURED_HERE

if TYPE_CHECKING:
    from simulator.facts import Facts


def notes(facts: Facts) -> list[str]:
    """One line for each thing to look at; empty for most jobs."""
    return [
        *_measured(facts),
        *_calibrated(facts),
        *_settings(facts),
        *_layers(facts),
        *_speculation(facts),
        *_positions(facts),
        *_reward(facts),
        *_vocabularies(facts),
    ]


def _measured(facts: Facts) -> list[str]:
    """Which prices a profile of this machine gave; what a layer moves beside them has a line of its own."""
    if not any(source.startswith(MEASURED_HERE) for source in facts.device.spec.sources.values()):
        return []
    tables = ", ".join(name.replace("_", " ") for name in sorted(facts.device.tables.cards))
    names = dict.fromkeys(engine.name for engine in (facts.training, facts.generation))
    own = [Path(name).name.removesuffix(".yaml") for name in names if name.endswith(".yaml")]
    shipped = [name for name in names if not name.endswith(".yaml")]
    rest = [f"host times of {', '.join(own)}"] * bool(own)
    other = f"; host times of {', '.join(shipped)} as its engine file has them" if shipped else ""
    return [f"measured here by hybridmap profile: {'; '.join([f'tables {tables}', *rest])}{other}"]


def _calibrated(facts: Facts) -> list[str]:
    layer = facts.calibration
    if not layer.source:
        return []
    apart = f"; they contradict each other in {', '.join(layer.apart)}" if layer.apart else ""
    said = [name.replace("_", " ") for name in layer.learned]
    others = [name.replace("_", " ") for name in FACTORS if name not in layer.learned]
    rest = f"; {', '.join(others)} as tables and engine files have them" if others else ""
    return [f"prices are calibrated by {layer.source}: {', '.join(said) or 'nothing'}{rest}{apart}"]


def _settings(facts: Facts) -> list[str]:
    engine = facts.generation
    return [f"{engine.name} is started with {', '.join(engine.settings)}"] if engine.settings else []


def _layers(facts: Facts) -> list[str]:
    """Kinds of layers that prices or memory do not know yet."""
    out = []
    for shape in {spec.shape.name: spec.shape for spec in facts.roles.values()}.values():
        if shape.sparse is not None:
            out.append(f"{shape.name}: its sparse attention is trained and scored as if every query read every token")
        if shape.linear is not None and shape.linear.kind == "mamba2":
            out.append(
                f"{shape.name}: its Mamba layers are priced by roofline where they train, and as gated delta nets of "
                "their sizes in engines"
            )
    return out


def _speculation(facts: Facts) -> list[str]:
    drafts = facts.speculation
    if drafts is None:
        return []
    by = "its own prediction layers" if drafts.draft is None else drafts.draft.name
    known = [drafts.of(tokens) for tokens in drafts.lengths or (drafts.drafted,)]
    counts = " or ".join(str(one.drafted if one else 0) for one in known)
    given = " or ".join(f"{one.tokens_per_step if one else 1.0:.2f}" for one in known)
    return [
        f"generation drafts {counts} tokens a step by {by} and gives {given}; a draft's own weights are taken to stay "
        "as they are"
    ]


def _positions(facts: Facts) -> list[str]:
    longest = facts.workload.padded_length
    short: dict[str, list[str]] = {}
    for role, spec in facts.roles.items():
        if spec.shape.max_position < longest:
            short.setdefault(f"{spec.shape.name} was published for {spec.shape.max_position:,}", []).append(role)
    return [
        f"prompt + response reach {longest:,} tokens, {model} ({', '.join(roles)}); engines refuse that unless told"
        for model, roles in short.items()
    ]


def _reward(facts: Facts) -> list[str]:
    stated = facts.workload.reward_s_per_sample
    if "reward" in facts.roles and stated > 0:
        return [f"reward_s_per_sample = {stated:g} is not used: the reward is the model {_name(facts, 'reward')}"]
    if "reward" not in facts.roles and stated == 0:
        return ["no reward model and no workload.reward_s_per_sample: the reward function is taken to cost nothing"]
    return []


def _vocabularies(facts: Facts) -> list[str]:
    sizes = {facts.roles[role].shape.vocab for role in ("actor", "reference") if role in facts.roles}
    if len(sizes) == 1:
        return []
    return [
        f"actor {_name(facts, 'actor')} and reference {_name(facts, 'reference')} have different vocabularies: "
        "their log-probabilities cannot be compared token by token"
    ]


def _name(facts: Facts, role: str) -> str:
    return facts.roles[role].shape.name
