"""Run inside an environment with verl: compose its configuration with an export's overrides and validate it.

    python verl_check.py SCRIPT.sh MODELS [TRAINER.py]

``MODELS`` is a folder with one Hugging Face folder per model id (``/`` as ``--``), since verl reads configs and
tokenizers when it validates. Prints one JSON document: what was checked, or ends with verl's own error.
"""

import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import OmegaConf

MODEL_KEYS = ("actor_rollout_ref.model.path", "critic.model.path", "reward.reward_model.model_path")


def overrides_of(script):
    """The ``key=value`` words of the launch script, with the data files that a user would set."""
    words = shlex.split(script.read_text(), comments=True)
    found = [w for w in words if re.match(r"^\+{0,2}[a-z][\w.@]*=", w)]
    return [w.replace("$TRAIN_FILES", "train.parquet").replace("$VAL_FILES", "val.parquet") for w in found]


CONFIGS = {"one_step_off_policy": "one_step_off_ppo_trainer", "fully_async_policy": "fully_async_ppo_trainer"}
"""Folders of verl's programs beside the main one, and what their ``main`` composes."""


def program_of(script):
    """The folder below ``verl/experimental`` of the program that a script starts; ``None`` for the main one."""
    found = re.search(r"-m verl\.experimental\.(\w+)\.", script.read_text())
    return found[1] if found else None


def composed(overrides, program=None):
    if program is None:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", overrides=overrides)
    import verl

    folder = Path(verl.__file__).parent / "experimental" / program / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(CONFIGS[program], overrides=overrides)
    config.actor_rollout_ref.rollout.nnodes = config.rollout.nnodes  # as both programs' main does
    config.actor_rollout_ref.rollout.n_gpus_per_node = config.rollout.n_gpus_per_node
    return config


def with_local_models(config, models):
    for key in MODEL_KEYS:
        name = OmegaConf.select(config, key)
        if name and "/" in name and not name.startswith("~"):
            OmegaConf.update(config, key, str(models / name.replace("/", "--")))
    return config


def validate(config):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    critic, reference = need_critic(config), need_reference_policy(config)
    validate_config(config, use_reference_policy=reference, use_critic=critic)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    reward = omega_conf_to_dataclass(config.reward.reward_model)
    if reference:
        omega_conf_to_dataclass(reference_as_its_worker_reads_it(config))
    return {"critic": critic, "reference": reference, "rollout": rollout.name, "reward_model": reward.enable}


def reference_as_its_worker_reads_it(config):
    """``ActorRolloutRefWorker.init_model`` renames the log-prob keys before it reads the section."""
    ref = OmegaConf.create(OmegaConf.to_container(config.actor_rollout_ref.ref, resolve=True))
    for name in ("micro_batch_size", "micro_batch_size_per_gpu", "max_token_len_per_gpu"):
        ref[f"ppo_{name}"] = ref.pop(f"log_prob_{name}", None)
    ref["use_dynamic_bsz"] = ref.pop("log_prob_use_dynamic_bsz", False)
    ref["ppo_mini_batch_size"] = config.actor_rollout_ref.actor.ppo_mini_batch_size
    return ref


def sizes(config):
    """GPUs of the pools that verl's own trainer, or the subclass, would make."""
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    rollout = config.actor_rollout_ref.rollout
    replica = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    own = rollout.nnodes * rollout.n_gpus_per_node if rollout.nnodes else world
    assert own % replica == 0, f"{own} GPUs do not divide into replicas of {replica}"
    return {"world": world, "replicas": own // replica}


def separate_pools(config, program):
    """The pools of a program beside the main one: its trainer is made with its roles, and nothing is started."""
    from torch.utils.data import RandomSampler
    from verl.experimental.separation import utils

    config.trainer.logger = ["console"]
    roles, group = utils.create_role_worker_mapping(config)
    manager = utils.create_resource_pool_manager(config, roles.keys())
    given = {"config": config, "tokenizer": None, "ray_worker_group_cls": group, "device_name": "cpu"}
    given |= {"role_worker_mapping": roles, "resource_pool_manager": manager}
    prompts = [{"index": i} for i in range(max(config.data.train_batch_size, 1))]
    if program == "one_step_off_policy":
        from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer

        data = {"train_dataset": prompts, "val_dataset": prompts, "collate_fn": list}
        made = OneStepOffRayTrainer(**given, **data, train_sampler=RandomSampler(prompts))
    else:
        from verl.experimental.fully_async_policy import fully_async_rollouter as rollouter
        from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer

        made = plain(FullyAsyncTrainer)(**given)
        rollouter.create_rl_dataset = lambda *_, **__: prompts
        rollouter.create_rl_sampler = lambda *_: RandomSampler(prompts)
        generates = plain(rollouter.FullyAsyncRollouter)(config=config, tokenizer=None, device_name="cpu")
        assert generates.required_samples == config.actor_rollout_ref.actor.ppo_mini_batch_size * made.require_batches
    pools = {name: list(nodes) for name, nodes in manager.resource_pool_spec.items()}
    roles = {str(role): name for role, name in manager.mapping.items()}
    return {"trainer": type(made).__name__, "pools": pools, "roles": roles}


def plain(remote):
    """The class behind a Ray actor."""
    return remote.__ray_metadata__.modified_class


def pools(config, trainer):
    """The pools of the trainer that the script starts; it is made and places its roles, nothing is started."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    mode = config.trainer.v1.trainer_mode
    if trainer is None:
        cls = get_trainer_cls(mode)
    else:
        spec = importlib.util.spec_from_file_location("hybridmap_verl", trainer)
        module = importlib.util.module_from_spec(spec)
        sys.modules["hybridmap_verl"] = module
        spec.loader.exec_module(module)
        cls = {"hybridmap_pools": module.PoolsTrainer, "hybridmap_pools_async": module.PoolsTrainerAsync}[mode]
    made = cls(config)  # with the checks of its constructor
    made._init_resource_pool_mgr()
    manager = made.resource_pool_manager
    order = {"order": step_order(made)} if trainer is not None else {}
    return {
        **order,
        "trainer": cls.__name__,
        "pools": {name: list(nodes) for name, nodes in manager.resource_pool_spec.items()},
        "roles": {str(role): name for role, name in manager.mapping.items()},
    }


# Long by the calls of verl's trainer that are watched.
def step_order(made):
    """In which order the subclass starts and collects one step's work; verl's trainer and groups only note it."""
    from verl.trainer.ppo.v1 import PPOTrainer

    noted = []

    class Later:
        futures = ()

        def get(self):
            noted.append("critic updated")
            return {"metrics": {"loss": [1.0], "mfu": [0.5]}}

    class Critic:
        def infer_batch(self, batch):
            noted.append("values started")
            return Later()

        def train_mini_batch(self, batch):
            noted.append("critic started")
            return Later()

    class Batch:
        extra_info = {}

    def step(self, metrics, timing_raw, size):
        batch = Batch()
        self._compute_old_log_prob(batch, metrics)
        self._compute_values(batch, metrics)
        self._update_critic(batch, metrics)
        noted.append("actor updated")
        return batch

    saved = {name: getattr(PPOTrainer, name) for name in ("_step_once", "_compute_old_log_prob", "_compute_values")}
    made.critic_wg = Critic()
    try:
        PPOTrainer._step_once = step
        PPOTrainer._compute_old_log_prob = lambda self, batch, metrics: noted.append("log-probs")
        PPOTrainer._compute_values = lambda self, batch, metrics: self.critic_wg.infer_batch(batch)
        metrics = {}
        made._step_once(metrics, {}, 1)
    finally:
        for name, method in saved.items():
            setattr(PPOTrainer, name, method)
    assert metrics == {"critic/loss": 1.0, "perf/mfu/critic": 0.5}, metrics
    return noted


def main():
    script, models = Path(sys.argv[1]), Path(sys.argv[2])
    trainer = sys.argv[3] if len(sys.argv) > 3 else None
    overrides = overrides_of(script)
    program = program_of(script)
    config = with_local_models(composed(overrides, program), models)
    placed = pools(config, trainer) if program is None else separate_pools(config, program)
    answer = {"overrides": len(overrides), "validated": validate(config), **sizes(config), **placed}
    print(f"\nANSWER {json.dumps(answer)}")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
