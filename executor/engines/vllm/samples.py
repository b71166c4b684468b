"""A batch of prompts as vLLM is asked for samples, the seeds that it draws them by, and its answers as columns."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict import TensorDict

    from executor.rl.sampling import Sampling


def seeds_are_free(llm: Any) -> bool:
    """Whether this vLLM draws samples with seeds of their own all at once, as its second model runner does.

    The first one has a generator for each such sample, and draws one after another.
    """
    return bool(llm.llm_engine.vllm_config.use_v2_model_runner)


def requests(batch: TensorDict, sampling: Sampling, *, own_seeds: bool) -> tuple[list[dict[str, Any]], list[Any]]:
    """Prompts and their sampling parameters. ``own_seeds``: each sample draws by a seed of its own.

    Else all draw by one seed for the call, which the ranks of a replica share: each of them draws for itself.
    """
    from vllm import SamplingParams

    if not own_seeds:
        _seed_all(_seed(sampling, int(batch["uid"][0])))
    prompts, params = [], []
    for tokens, mask, uid in zip(batch["prompts"], batch["prompt_mask"], batch["uid"].tolist(), strict=True):
        prompts.append({"prompt_token_ids": tokens[mask].tolist()})
        params.append(
            SamplingParams(
                max_tokens=sampling.max_tokens,
                temperature=0.0 if sampling.greedy else sampling.temperature,
                seed=_seed(sampling, uid) if own_seeds else None,
                logprobs=0,
                detokenize=False,
                ignore_eos=True,
                stop_token_ids=list(sampling.end_tokens),
                top_p=sampling.top_p,
                top_k=sampling.top_k,
            )
        )
    return prompts, params


def columns(outputs: list[Any], max_tokens: int) -> Mapping[str, torch.Tensor]:
    """Responses, mask and log-probs of the sampled tokens."""
    tokens = torch.zeros(len(outputs), max_tokens, dtype=torch.int64)
    mask = torch.zeros(len(outputs), max_tokens, dtype=torch.bool)
    log_probs = torch.zeros(len(outputs), max_tokens)
    for i, output in enumerate(outputs):
        found = output.outputs[0]
        length = len(found.token_ids)
        tokens[i, :length] = torch.tensor(found.token_ids)
        mask[i, :length] = True
        chosen = zip(found.logprobs, found.token_ids, strict=True)
        log_probs[i, :length] = torch.tensor([step[token].logprob for step, token in chosen])
    return {"responses": tokens, "response_mask": mask, "log_probs": log_probs}


def _seed(sampling: Sampling, uid: int) -> int:
    return zlib.crc32(f"{sampling.seed}:{uid}".encode())


def _seed_all(seed: int) -> None:
    """Torch's generator is what vLLM's first model runner draws by; the second one takes its seeds from numpy's."""
    import numpy as np

    np.random.seed(seed)  # noqa: NPY002 - it is this generator that vLLM reads
    torch.manual_seed(seed)
