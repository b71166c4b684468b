"""Compose a NeMo-RL recipe as ``nemo_rl.utils.config.load_config`` does and hold its keys to a checkout.

    NEMO_RL=CHECKOUT python nemo_rl_check.py recipe.yaml

Run inside an environment with OmegaConf. A key passes if the checkout's own configuration has it, or a class of its
schema declares it; mappings that its schema leaves free (``vllm_kwargs``) take any. Prints one JSON document.
"""

import ast
import json
import os
import sys
from pathlib import Path

from omegaconf import OmegaConf

SCHEMA = (
    "nemo_rl/algorithms/grpo.py",
    "nemo_rl/models/policy/__init__.py",
    "nemo_rl/models/generation/interfaces.py",
    "nemo_rl/models/generation/vllm/config.py",
)
FREE = ("policy.generation.vllm_kwargs.",)


def declared(checkout):
    """Fields that the classes of the schema declare."""
    names = set()
    for file in SCHEMA:
        tree = ast.parse((checkout / file).read_text())
        for node in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
            names |= {line.target.id for line in node.body if isinstance(line, ast.AnnAssign)}
    return names


def composed(recipe):
    """The recipe merged on what it names as its defaults, resolved; and its own keys."""
    own = OmegaConf.load(recipe)
    base = OmegaConf.load(own.pop("defaults"))
    assert "defaults" not in base, "the base has defaults of its own"
    OmegaConf.register_new_resolver("mul", lambda a, b: a * b)
    whole = OmegaConf.to_container(OmegaConf.merge(base, own), resolve=True)
    return whole, leaves(OmegaConf.to_container(own)), set(leaves(OmegaConf.to_container(base)))


def leaves(content, prefix=""):
    out = {}
    for key, value in content.items():
        out |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return out


def rules(config):
    """What ``setup`` and ``async_grpo_train`` of release 0.7.0 assert of these keys (nemo_rl/algorithms/grpo.py)."""
    grpo, policy, loss = config["grpo"], config["policy"], config["loss_fn"]
    generation, cluster = policy["generation"], config["cluster"]
    if grpo.get("skip_reference_policy_logprobs_calculation"):
        assert loss["reference_policy_kl_penalty"] == 0
    if grpo["async_grpo"]["enabled"]:
        assert loss["use_importance_sampling_correction"]
        assert generation["vllm_cfg"]["async_engine"]
        assert not generation["colocated"]["enabled"]
    if not generation["colocated"]["enabled"]:
        resources = generation["colocated"]["resources"]
        if cluster["num_nodes"] == 1:
            assert 0 < resources["gpus_per_node"] < cluster["gpus_per_node"]
            assert resources["num_nodes"] in (None, 1)
        else:
            assert 0 < resources["num_nodes"] < cluster["num_nodes"]
            assert resources["gpus_per_node"] == cluster["gpus_per_node"]
    assert policy["dtensor_cfg"]["enabled"] is not policy["megatron_cfg"]["enabled"]
    assert grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"] % policy["train_global_batch_size"] == 0


def main():
    checkout = Path(os.environ["NEMO_RL"])
    whole, own, base = composed(sys.argv[1])
    known = declared(checkout)
    unknown = [
        key for key in own if key not in base and key.rsplit(".", 1)[-1] not in known and not key.startswith(FREE)
    ]
    assert not unknown, f"keys that NeMo-RL does not have: {', '.join(unknown)}"
    rules(whole)
    assert (checkout / "examples/run_grpo.py").is_file(), "no examples/run_grpo.py"
    print(f"\nANSWER {json.dumps({'keys': len(own)})}")


if __name__ == "__main__":
    main()
