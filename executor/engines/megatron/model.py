"""A ``GPTModel`` of Megatron-Core for a Hugging Face architecture: settings, norms, and a head that scores."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from executor.engines.attention import packed_attention, shared_attention
from executor.engines.native.decoder import rms_norm
from executor.engines.rotary import frequencies

if TYPE_CHECKING:
    from executor.collectives import Group
    from executor.weights.architecture import Architecture
    from executor.weights.megatron_layout import MegatronLayout
    from simulator.plan.plan import Recompute


class RMSNorm(torch.nn.Module):
    """Root-mean-square norm that tells Megatron when its gradient is one of several sequence-parallel shares."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cuda":
            return one_kernel_norm(x, self.weight, self.eps)
        return rms_norm(x, self.weight, self.eps)


def one_kernel_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``rms_norm`` by torch's kernel for GPUs; elsewhere torch takes it apart again."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


class PackedAttention(torch.nn.Module):
    """Core attention by torch's fused kernels (flash attention on GPUs), one sequence after another, without a mask.

    Ranks of ``context`` share each sequence.
    """

    def __init__(self, context: Group, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self.context, self.scale = context, softmax_scale

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, packed_seq_params: Any, **__: Any
    ) -> torch.Tensor:
        """``[N, heads, D]`` each, or ``[N, 1, heads, D]``, to ``[N, 1, heads x D]``: of this rank's tokens."""
        q, k, v = (x.reshape(x.shape[0], *x.shape[-2:]) for x in (query, key, value))
        if self.context.size > 1:
            found = shared_attention(q, k, v, packed_seq_params.lengths, self.context, self.scale)
        else:
            found = packed_attention(q, k, v, packed_seq_params.lengths, self.scale)
        return found.flatten(1)[:, None]


class ScoreHead(torch.nn.Module):
    """One number per token in place of the vocabulary; whole on every tensor-parallel rank."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.sequence_parallel = config.sequence_parallel
        self.weight = torch.nn.Parameter(torch.zeros(1, config.hidden_size, dtype=config.params_dtype))

    def forward(
        self, hidden: torch.Tensor, weight: Any = None, runtime_gather_output: Any = None
    ) -> tuple[torch.Tensor, None]:
        """Hidden states ``[s, b, h]`` to scores ``[s, b, 1]``; the signature is that of Megatron's output layer."""
        if self.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return torch.nn.functional.linear(hidden, self.weight), None


RECOMPUTE: dict[Recompute, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
"""Megatron's settings by the recompute level of a plan."""


def compiles_activations(device: torch.device) -> bool:
    """Whether gate and up projection meet in one kernel, made by torch.compile: on a CPU making it outlasts a run.

    Not for experts, which have few tokens or none: torch makes one kernel each for none, one and more, then gives up.
    """
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


# Long by Megatron's settings: a line for each.
def transformer_config(
    arch: Architecture,
    layout: MegatronLayout,
    dtype: torch.dtype,
    *,
    sequence_parallel: bool,
    recompute: Recompute,
    device: torch.device,
) -> TransformerConfig:
    """Megatron's settings for ``arch``; fusions that need Apex or Transformer Engine are off.

    A mixture of experts under tensor parallelism gets sequence parallelism: Megatron trains it in no other way.
    """
    degrees = layout.degrees
    return TransformerConfig(
        num_layers=arch.num_layers,
        hidden_size=arch.hidden,
        num_attention_heads=arch.num_heads,
        num_query_groups=arch.num_kv_heads,
        kv_channels=arch.head_dim,
        ffn_hidden_size=arch.ffn,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=arch.qkv_bias,
        qk_layernorm=arch.qk_norm,
        normalization="RMSNorm",
        layernorm_epsilon=arch.norm_eps,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=degrees.t,
        pipeline_model_parallel_size=degrees.p,
        context_parallel_size=degrees.c,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        sequence_parallel=(sequence_parallel or arch.num_experts > 0) and degrees.t > 1,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=device.type == "cpu",
        perform_initialization=False,
        attention_softmax_in_fp32=True,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=not arch.num_experts and compiles_activations(device),
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        batch_p2p_comm=device.type != "cpu",
        batch_p2p_sync=False,  # with it the host waits for the device behind every transfer, for old releases of torch
        calculate_per_token_loss=True,
        deallocate_pipeline_outputs=True,
        **RECOMPUTE[recompute],
        **_expert_settings(arch, layout, device),
    )


def _expert_settings(arch: Architecture, layout: MegatronLayout, device: torch.device) -> dict[str, Any]:
    """Megatron's settings of a mixture of experts; none for a dense model."""
    if not arch.num_experts:
        return {}
    to_each = device.type != "cpu" or layout.degrees.t == 1  # gloo gathers no pieces of different sizes
    return {
        "num_moe_experts": arch.num_experts,
        "moe_router_topk": arch.experts_per_token,
        "moe_router_pre_softmax": not arch.routes_add_to_one,
        "moe_ffn_hidden_size": arch.ffn,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_token_dispatcher_type": "alltoall" if to_each else "allgather",
        "moe_grouped_gemm": False,
        "expert_model_parallel_size": layout.ep,
    }


def build_chunks(
    arch: Architecture, layout: MegatronLayout, config: TransformerConfig, context: Group
) -> list[GPTModel]:
    """The model chunks of this rank, in Megatron's parallel state; their weights are not set yet.

    Ranks of ``context`` share sequences.
    """
    chunks = []
    for i in range(layout.vpp):
        stage = i if layout.vpp > 1 else None
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage)
        num_layers = len(layout.layers(parallel_state.get_pipeline_model_parallel_rank(), i))
        model = GPTModel(
            config,
            _block_spec(arch, num_layers, context),
            layout.padded_vocab,
            arch.max_length,
            pre_process=first,
            post_process=last,
            parallel_output=True,
            share_embeddings_and_output_weights=arch.tied and not arch.has_score,
            position_embedding_type="rope",
            rotary_base=int(arch.rope_theta),
            vp_stage=stage,
        )
        _scale_angles(model, arch, config)
        if last and arch.has_score:
            model.output_layer = ScoreHead(config)
        _mark_cut(model)
        chunks.append(model)
    return chunks


def _scale_angles(model: GPTModel, arch: Architecture, config: TransformerConfig) -> None:
    """Angles by transformers' functions: Megatron's own know Llama 3.1 by fixed numbers alone.

    Megatron multiplies cosine and sine by ``0.1 ln(x) + 1`` of a factor x that it reads from here.
    """
    if arch.rope_scaling:
        embedding = model.rotary_pos_emb
        embedding.inv_freq, factor = frequencies(arch, embedding.inv_freq.device)
        vars(config).update(yarn_rotary_scaling_factor=math.exp(10.0 * (factor - 1.0)))


def _mark_cut(model: GPTModel) -> None:
    """What Megatron's own initialisation would say of its parameters: which ones tensor parallelism cuts, and where.

    Without the mark a gradient norm takes them for copies and counts those of the first rank alone.
    """
    for path, module in model.named_modules():
        columns = isinstance(module, ColumnParallelLinear | VocabParallelEmbedding)
        if columns or isinstance(module, RowParallelLinear):
            for name, parameter in module.named_parameters(recurse=False):
                if columns or name == "weight":
                    parameter.tensor_model_parallel = True
                    parameter.partition_dim = 0 if columns else 1
                    parameter.partition_stride = 2 if path.endswith("linear_fc1") else 1  # gate and up, cut apart


def _block_spec(arch: Architecture, num_layers: int, context: Group) -> TransformerBlockSubmodules:
    layer = get_gpt_layer_local_spec(
        num_experts=arch.num_experts or None, moe_grouped_gemm=False, qk_layernorm=arch.qk_norm, normalization="RMSNorm"
    )
    parts, attention = layer.submodules, ModuleSpec(PackedAttention, params={"context": context})
    vars(parts.self_attention.submodules).update(core_attention=attention)
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    if arch.qk_norm:
        parts.self_attention.submodules.q_layernorm = RMSNorm
        parts.self_attention.submodules.k_layernorm = RMSNorm
    parts.sharded_state_dict_keys_map = {}
    assert isinstance(layer, ModuleSpec)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RMSNorm)
