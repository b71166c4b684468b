"""The same job by the facts of other releases, where an engine's own release is not profiled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from profiles.engine_facts import load_generation_engine, load_training_engine

if TYPE_CHECKING:
    from simulator.facts import Facts


def other_releases(facts: Facts) -> dict[str, Facts]:
    """Facts by the name of each profiled release on the other side of one that is not.

    Parameters
    ----------
    facts
        What is known of job, device and engines.

    Returns
    -------
    dict[str, Facts]
        One engine changed in each; operator tables stay those nearest to the release that was asked for. Nothing where
        both engines' releases are profiled.
    """
    found = {}
    for name in facts.training.stands_in[1:]:
        found[name] = replace(facts, training=load_training_engine(name))
    for name in facts.generation.stands_in[1:]:
        engine = replace(load_generation_engine(name), release=facts.generation.release)
        found[name] = replace(facts, generation=engine)
    return found
