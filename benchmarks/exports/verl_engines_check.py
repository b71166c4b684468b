"""Run inside an environment with verl: build verl's own engines as an export configures them, and read their state.

    python verl_engines_check.py MODELS SCRIPT.sh...

For each script one process a GPU is forked (gloo, CPU), and each builds the engines of its roles through verl's
registry, in verl's order: the critic's with its worker, the reference's, the actor's. What their parallel state then is
comes from Megatron-Core and torch themselves. Prints one JSON document: by script and role, degrees, the ranks of rank
0's groups, and how far verl went.
"""

import json
import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from verl_check import composed, overrides_of, reference_as_its_worker_reads_it, with_local_models

ORDER = ("critic", "reference", "actor")


def engine_parts(config, role):
    """The four records that verl gives an engine, and what kind of model it is."""
    from verl.utils.config import omega_conf_to_dataclass

    if role == "critic":
        section, kind = omega_conf_to_dataclass(config.critic), "value_model"
        model = omega_conf_to_dataclass(config.critic.model)
    else:
        raw = reference_as_its_worker_reads_it(config) if role == "reference" else config.actor_rollout_ref.actor
        section, kind = omega_conf_to_dataclass(raw), "language_model"
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    return kind, model, section.engine, section.optim, section.checkpoint


def build(config, role):
    """The role's engine, or as much of it as verl builds on this machine."""
    from verl.workers.engine import EngineRegistry

    kind, model, engine, optimizer, checkpoint = engine_parts(config, role)
    engine.use_remove_padding = model.get("use_remove_padding", False)
    engine.use_fused_kernels = model.get("use_fused_kernels", False)
    model.model_type = kind
    parts = {"model_config": model, "optimizer_config": optimizer, "checkpoint_config": checkpoint}
    try:
        made = EngineRegistry.new(model_type=kind, backend=engine.strategy, engine_config=engine, **parts)
        return engine, made, "built"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return engine, None, f"{Path(last.filename).name}:{last.name}: {type(error).__name__}: {error}"[:200]


def state_of(engine, made, how_far):
    """Degrees as the engine's library has them, and rank 0's groups."""
    import torch.distributed as dist

    world = dist.get_world_size()
    if engine.strategy.startswith("fsdp"):
        assert made is not None, how_far
        sequence = made.ulysses_sequence_parallel_size
        return {
            "tp": 1,
            "pp": 1,
            "cp": sequence,
            "dp": made.get_data_parallel_size(),
            "sharded_over": made.device_mesh.size(),
            "sequence_group": dist.get_process_group_ranks(made.ulysses_parallel_group) if sequence > 1 else [0],
            "world": world,
        }
    from megatron.core import parallel_state as mpu

    return {
        "tp": mpu.get_tensor_model_parallel_world_size(),
        "pp": mpu.get_pipeline_model_parallel_world_size(),
        "cp": mpu.get_context_parallel_world_size(),
        "dp": mpu.get_data_parallel_world_size(),
        "ep": mpu.get_expert_model_parallel_world_size(),
        "vpp": mpu.get_virtual_pipeline_model_parallel_world_size() or 1,
        "tensor_group": dist.get_process_group_ranks(mpu.get_tensor_model_parallel_group()),
        "pipeline_group": dist.get_process_group_ranks(mpu.get_pipeline_model_parallel_group()),
        "world": world,
    }


def rank_main(rank, world, port, config, roles, out):
    """One rank: the engines of its roles, one after the other."""
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    found = {}
    for role in roles:
        engine, made, how_far = build(config, role)
        found[role] = {"how_far": how_far, **state_of(engine, made, how_far)}
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()


def states(script, models):
    """By role, the state of the engines that a script configures."""
    config = with_local_models(composed(overrides_of(script)), models)
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    there = {
        "critic": bool(config.critic.enable),
        "reference": config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward,
        "actor": True,
    }
    roles = [role for role in ORDER if there[role]]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tempfile.mktemp(suffix=".json")
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            try:
                rank_main(rank, world, port, config, roles, out)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(pid)
    ended = [os.waitpid(pid, 0)[1] for pid in children]
    assert not any(ended), f"{script}: a rank ended with {ended}"
    return json.loads(Path(out).read_text())


def main():
    """Print the states of all scripts."""
    models, scripts = Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]]
    # Imported once; ranks are forked from here.
    import verl.workers.engine.megatron.transformer_impl  # noqa: F401
    from verl.workers.engine.fsdp import transformer_impl, utils

    # Without an accelerator verl takes itself to be on CUDA; before weights are loaded that matters here alone.
    transformer_impl.device_name = "cpu"
    utils.get_device_name = lambda: "cpu"

    print(f"\nANSWER {json.dumps({str(script): states(script, models) for script in scripts})}")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
