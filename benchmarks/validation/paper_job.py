"""The runs of the HybridFlow paper as jobs: its models, cluster, batch and engines (sections 8.1 and 8.2)."""

from __future__ import annotations

import re

from profiles.engine_facts import load_generation_engine, load_training_engine
from profiles.errors import InputError
from profiles.hardware import ClusterGroup
from profiles.models.catalogue import load_model
from profiles.store import load_device
from profiles.workload import LengthDistribution, Workload
from simulator.facts import Facts, Implementation, RoleSpec

MODELS = {"7B": "llama-2-7b", "13B": "llama-2-13b", "34B": "codellama-34b", "70B": "llama-2-70b"}
PROMPTS, PROMPT_TOKENS, RESPONSE_TOKENS, UPDATES = 1024, 1024, 1024, 8
TOKENS = PROMPTS * (PROMPT_TOKENS + RESPONSE_TOKENS)
"""Prompt and response tokens of the global batch: the numerator of every throughput of the paper, for ReMax too."""

ENGINE_PROMPT_TOKENS = 290
"""Mean unpadded prompt that the engine saw: fitted on Fig 15, 7B, t_g = 1 and 2. At 1,024 tokens the KV reads of
that bar alone would exceed peak bandwidth, so full-length prompts are ruled out."""

IMPLEMENTATION = Implementation(kernels="fused-norms", loss_head="unfused", attention_kernel="math")
"""verl 0.1, the system's first release, on padded batches (``ParallelLlamaModel``): norms of apex, rotary, activation,
attention and loss in tensor operations. Its other models remove padding, with which the paper's runs would be a fifth
faster than they were."""

OTHERS = Implementation()
"""What the systems that it was compared with do not say of themselves: their models' attention is FlashAttention."""

ROLES = {
    "ppo": ("actor", "critic", "reference", "reward"),
    "remax": ("actor", "reference", "reward"),
    "safe-rlhf": ("actor", "critic", "reference", "reward", "cost"),
}
"""Models of the paper's runs (Fig 1)."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*[bB]\b")
_WORDS = {"actor": "actor", "critic": "critic", "ref": "reference", "reward": "reward", "rm": "reward", "cost": "cost"}


def paper_facts(algorithm: str, models: str, num_gpus: int, built: Implementation = IMPLEMENTATION) -> Facts:
    """One run: ``models`` is a size for every role, or sizes by role as in ``13B actor+ref, 70B critic+reward``."""
    if algorithm not in ROLES:
        raise InputError(f"the paper ran ppo, safe-rlhf and remax, not '{algorithm}'")
    roles = ROLES[algorithm]
    sizes = role_sizes(models, roles)
    device = load_device("a100-80gb-sxm")
    nodes, rest = divmod(num_gpus, device.spec.gpus_per_node)
    if rest or not nodes:
        raise InputError(f"{num_gpus} GPUs are not whole machines of {device.spec.gpus_per_node}")
    return Facts(
        algorithm=algorithm,
        roles={role: RoleSpec(load_model(MODELS[sizes[role]])) for role in roles},
        workload=Workload(
            PROMPTS,
            1,
            PROMPT_TOKENS,
            LengthDistribution.fixed(RESPONSE_TOKENS),
            epochs=1,
            minibatches=UPDATES,
            prompt_tokens=ENGINE_PROMPT_TOKENS,
            pads_prompts=True,
        ),
        group=ClusterGroup.of(device.spec, nodes),
        device=device,
        training=load_training_engine("megatron-core@0.6"),
        generation=load_generation_engine("vllm@0.3.1"),
        implementation=built,
    )


def role_sizes(models: str, roles: tuple[str, ...]) -> dict[str, str]:
    """Size of each role's model; a role that the text does not name is as large as the model it pairs with."""
    found = list(_SIZE.finditer(models))
    if not found:
        raise InputError(f"'{models}' names no model size")
    ends = [*(m.start() for m in found[1:]), len(models)]
    named: dict[str, str] = {}
    for match, end in zip(found, ends, strict=True):
        words = re.findall(r"[a-z]+", models[match.end() : end].lower())
        size = f"{match[1]}B"
        if size not in MODELS:
            raise InputError(f"the paper's models are {', '.join(MODELS)}, not {size}")
        hit = {role for word in words for start, role in _WORDS.items() if word.startswith(start)}
        named |= dict.fromkeys(hit or (set(roles) - set(named)), size)
    pairs = {"reference": "actor", "reward": "critic", "cost": "reward", "critic": "reward"}
    for role in roles:
        named.setdefault(role, named.get(pairs.get(role, "actor"), next(iter(named.values()))))
    return {role: named[role] for role in roles}
