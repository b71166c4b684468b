"""What one engine does on a device, in a process of its own: learns, prefers, and makes the host wait.

python -m tests.executor.engines.on_device CONFIG ENGINE DEVICE OUT [critic]
"""

from __future__ import annotations

import socket
import sys
import warnings
from dataclasses import replace

import torch
import torch.distributed as dist

from executor.engines.spec import EngineSpec
from executor.records import Identity
from executor.rl.loss_terms import LossTerm
from executor.rl.sampling import Sampling
from executor.rl.sequences import sequences_of
from simulator.plan.groups import Degrees
from tests.executor.rounds import likelihood, rows, spec_of, trained

NUM_TOKENS = 4


def alone(model, training, generation, degrees, max_length=0):
    """The engines of a rank that is alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    spec = EngineSpec(model, training, generation, max_length=max_length)
    return spec.build(Identity("A", 0, 1), address, degrees)


def built(config, engine, device, value_head):
    """One rank that is alone; torch-native generates, too."""
    generation = engine if engine == "torch-native" and not value_head else None
    return alone(replace(spec_of(config, value_head), device=device), engine, generation, Degrees(1, 1, 1, 1, 1))


def learned(role, value_head):
    """Outputs before and after two steps, the steps, and the tokens that the trained model prefers."""
    before, steps, after, scores = trained(role.trainer, rows(), value_head)
    preferred = None
    if role.generator is not None:
        role.resharded.to_generation()
        prompts = rows().set("uid", torch.arange(8))
        preferred = role.generator.generate(prompts, Sampling(NUM_TOKENS, greedy=True))["responses"].cpu()
    outputs = [None if x is None else x.detach().cpu() for x in (before, after, scores)]
    return {"outputs": outputs, "steps": steps, "preferred": preferred}


def waits(role, value_head):
    """By call the lines at which the host waits for the GPU, by torch's own count; each call has run before."""
    part, first = sequences_of(rows())
    outputs = (lambda: role.trainer.values(rows())) if value_head else (lambda: role.trainer.log_probs(rows(), 1.0))
    calls = {
        "values" if value_head else "log_probs": outputs,
        "update": lambda: role.trainer.update((LossTerm(part, first, likelihood),)),
        "saved_state": role.trainer.saved_state,
    }
    found = {}
    for name, call in calls.items():
        call()
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
        torch.cuda.set_sync_debug_mode("default")
        found[name] = [f"{w.filename}:{w.lineno}" for w in seen if "synchroniz" in str(w.message)]
    return found


def main(config, engine, device, out, *critic):
    warnings.simplefilter("ignore")  # of the libraries
    role = built(config, engine, device, bool(critic))
    found = learned(role, bool(critic))
    found["waits"] = waits(role, bool(critic)) if device == "cuda" else {}
    torch.save(found, out)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
