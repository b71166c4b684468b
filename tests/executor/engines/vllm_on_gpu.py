"""vLLM beside a trainer on one GPU, in a process of its own: two rounds of transition, generation, scoring, update.

python -m tests.executor.engines.vllm_on_gpu CONFIG TRAINER OUT.json
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from tensordict import TensorDict

from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.rl.loss_terms import LossTerm
from executor.rl.sampling import Sampling
from executor.rl.sequences import sequences_of
from simulator.plan.groups import Degrees
from tests.executor.engines.on_device import alone
from tests.executor.rounds import likelihood

PROMPT, RESPONSE, SEQUENCES, ROUNDS = 64, 32, 16, 2
CACHE_BYTES = 1 << 30


def prompts():
    """Two groups of samples of one prompt each, the second prompt shorter."""
    stream = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 1000, (2, PROMPT), generator=stream).repeat_interleave(SEQUENCES // 2, 0)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[SEQUENCES // 2 :, :7] = False
    return TensorDict({"uid": torch.arange(SEQUENCES), "prompts": tokens, "prompt_mask": mask}, [SEQUENCES])


def main(config, trainer, out):
    warnings.simplefilter("ignore")  # of the libraries
    spec = ModelSpec(
        config,
        dtype="bf16",
        device="cuda",
        optimizer=OptimizerConfig(1e-4),
        micro_batch=8,
        max_num_seqs=SEQUENCES,
        kv_cache_bytes=CACHE_BYTES,
    )
    held: dict[str, list[int]] = {}

    def look(after):
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        held.setdefault(after, []).append(total_bytes - free_bytes)

    role = alone(spec, trainer, "vllm", Degrees(1, 1, 1, 1, 1))
    engine, rounds = role.resharded, []
    engine.load()
    look("load")
    for number in range(ROUNDS):
        engine.to_generation()  # it compares checksums of all weights on both sides
        look("to generation")
        batch = prompts()
        samples = role.generator.generate(batch, Sampling(RESPONSE, seed=number))
        look("generate")
        whole = TensorDict({**batch, **samples}, batch_size=batch.batch_size)
        ours = role.trainer.log_probs(whole, 1.0)
        look("to training and score")
        apart = (ours.cpu() - samples["log_probs"]).abs()[samples["response_mask"]]
        part, first = sequences_of(whole)
        step = role.trainer.update((LossTerm(part, first, likelihood),))
        look("update")
        rounds.append({"apart_mean": float(apart.mean()), "apart_most": float(apart.max()), "loss": step["loss"]})
    Path(out).write_text(json.dumps({"rounds": rounds, "held_bytes": held}))
    role.generator.generator.stop()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
