"""Run inside an environment with verl: one update of verl's own trainer on CPU ranks, as an export configures it.

    python verl_step_check.py MODELS SCRIPT.sh...

For each script one process a GPU is forked (gloo). Each makes verl's ``TrainingWorker`` of the actor from the script's
settings, with a tiny model of random weights, and has it do what verl's trainer asks of it in an iteration: a pass for
old log-probs, then ``train_mini_batch`` with verl's own loss over all its mini-batches. What stands in: a platform for
CPUs, registered the way that verl's plugins are, and PyTorch's attention for FlashAttention. Prints one JSON document:
by script, optimizer steps, micro-batches, the loss, the norm of the gradient, and how far the weights moved.
"""

import json
import os
import socket
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))

from verl_check import composed, overrides_of, with_local_models
from verl_engines_check import engine_parts

PROMPT, RESPONSE, SEED = 40, 32, 7


# Long by what of verl asks for a GPU: a stand-in for each.
def use_cpu():
    """Let verl take the CPU for its device: a platform of ours, and its FSDP engine registered for it."""
    import torch
    from verl.plugin.platform import set_platform
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    module = SimpleNamespace(
        **{name: getattr(torch.cpu, name) for name in ("current_device", "synchronize", "set_device", "device_count")},
        empty_cache=lambda: None,
        max_memory_allocated=lambda: 0,
        max_memory_reserved=lambda: 0,
        memory_allocated=lambda: 0,
        memory_reserved=lambda: 0,
        mem_get_info=lambda: (0, 0),
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        get_device_name=lambda *_: "cpu",
        ipc_collect=lambda: None,
    )

    class PlatformCPU(PlatformCUDA):
        device_name, vendor_name, device_module = "cpu", "none", module

        def is_available(self):
            return True

        def current_device(self):
            return "cpu"

        def communication_backend_name(self):
            return "gloo"

        def __getattribute__(self, name):
            known = object.__getattribute__(self, name) if name in PlatformCPU.__dict__ or name[:2] == "__" else None
            return known or getattr(module, name, None) or object.__getattribute__(self, name)

    set_platform(PlatformCPU())
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])(
        FSDPEngineWithLMHead
    )


def write_weights(folder):
    """Random weights beside every configuration that has none."""
    from transformers import AutoConfig, AutoModelForCausalLM

    for place in (path.parent for path in folder.glob("*/config.json")):
        if not any(place.glob("*.safetensors")):
            AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place)).save_pretrained(place)


def samples(rank, num, vocabulary):
    """A rank's samples without padding, as verl's rollout hands them on."""
    import torch
    from verl.utils import tensordict_utils as tu

    generator = torch.Generator().manual_seed(SEED + rank)
    lengths = [PROMPT + RESPONSE] * num
    rows = [torch.randint(vocabulary, (length,), generator=generator) for length in lengths]

    def jagged(values):
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    responses = [length - PROMPT for length in lengths]
    ones = jagged([torch.ones(n) for n in responses])
    tensors = {
        "input_ids": jagged(rows),
        "position_ids": jagged([torch.arange(n) for n in lengths]),
        "prompts": jagged([row[:PROMPT] for row in rows]),
        "responses": jagged([row[PROMPT:] for row in rows]),
        "response_mask": ones.long(),
        "loss_mask": ones.long(),
        "attention_mask": jagged([torch.ones(n, dtype=torch.long) for n in lengths]),
        "advantages": jagged([torch.randn(n, generator=generator) for n in responses]),
        "old_log_probs": jagged([torch.zeros(n) for n in responses]),
        "ref_log_prob": jagged([torch.zeros(n) for n in responses]),
    }
    return tu.get_tensordict(tensor_dict=tensors, non_tensor_dict={"temperature": 1.0})


# Long as one script: a step of verl's own classes from first to last.
def updated(config, rank, world):
    """One iteration of the actor's worker."""
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import ppo_loss

    kind, model, engine, optimizer, checkpoint = engine_parts(config, "actor")
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    rollout = config.actor_rollout_ref.rollout
    # As ActorRolloutRefWorker.init_model hands them on (workers/engine_workers.py:619).
    engine.use_dynamic_bsz = actor.use_dynamic_bsz
    engine.max_token_len_per_gpu, engine.micro_batch_size_per_gpu = (
        actor.ppo_max_token_len_per_gpu,
        actor.ppo_micro_batch_size_per_gpu,
    )
    engine.infer_max_token_len_per_gpu = rollout.log_prob_max_token_len_per_gpu
    engine.infer_micro_batch_size_per_gpu = rollout.log_prob_micro_batch_size_per_gpu
    how = TrainingWorkerConfig(
        model_type=kind,
        model_config=model,
        engine_config=engine,
        optimizer_config=optimizer,
        checkpoint_config=checkpoint,
        profiler_config=None,
    )
    worker = TrainingWorker(how)
    worker.reset()
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    per_prompt = rollout.n
    num = config.data.train_batch_size * per_prompt // worker.engine.get_data_parallel_size()
    batch = samples(rank, num, model.hf_config.vocab_size)
    worker.to("device")
    before = [parameter.full_tensor().clone() for parameter in worker.engine.module.parameters()]
    scored = batch.clone()
    tu.assign_non_tensor(scored, compute_loss=False, calculate_entropy=False)
    old = worker.infer_batch(scored)
    counted = []
    step = worker.engine.forward_step
    worker.engine.forward_step = lambda *args, **named: counted.append(1) or step(*args, **named)
    mini = config.actor_rollout_ref.actor.ppo_mini_batch_size * per_prompt
    tu.assign_non_tensor(batch, global_batch_size=mini, mini_batch_size=mini, epochs=actor.ppo_epochs)
    found = worker.train_mini_batch(batch)
    metrics = tu.get(found, "metrics")
    after = [parameter.full_tensor() for parameter in worker.engine.module.parameters()]
    moved = max(float((a - b).abs().max()) for a, b in zip(after, before, strict=True))
    return {
        "scored": bool(torch.isfinite(old["log_probs"].values()).all()),
        "steps": len(metrics["grad_norm"]) if isinstance(metrics["grad_norm"], list) else 1,
        "micro_batches": len(counted),
        "samples": num,
        "grad_norm": metrics["grad_norm"],
        "moved": moved,
        "world": world,
    }


def rank_main(rank, world, port, config, out):
    """One rank, from process group to answer."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=rank, world_size=world)  # verl would name gloo for the CPU twice
    found = updated(config, rank, world)
    if rank == 0:
        Path(out).write_text(json.dumps(found))


def step(script, models):
    """What an iteration of a script's actor does."""
    plain = ["+actor_rollout_ref.model.override_config.attn_implementation=sdpa"]
    config = with_local_models(composed([*overrides_of(script), *plain]), models)
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tempfile.mktemp(suffix=".json")
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            try:
                rank_main(rank, world, port, config, out)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        children.append(pid)
    ended = [os.waitpid(pid, 0)[1] for pid in children]
    assert not any(ended), f"{script}: a rank ended with {ended}"
    return json.loads(Path(out).read_text())


def main():
    """Print what each script's iteration did."""
    models, scripts = Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]]
    write_weights(models)
    use_cpu()
    import verl.workers.engine_workers  # noqa: F401  # imported once; ranks are forked from here

    print(f"\nANSWER {json.dumps({str(script): step(script, models) for script in scripts})}")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
