"""Which family's keys a Hugging Face ``model_type`` reads, and where a multimodal config keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.models import hf_dense, hf_hybrid, hf_latent, hf_layered

if TYPE_CHECKING:
    from profiles.models.hf_base import Config

FAMILIES: dict[str, type[Config]] = {
    "llama": hf_dense.Llama,
    "mistral": hf_dense.Mistral,
    "mixtral": hf_dense.Mixtral,
    "qwen2": hf_dense.Qwen2,
    "mimo": hf_dense.MiMo,
    "qwen2_moe": hf_dense.Qwen2Moe,
    "qwen3": hf_dense.Qwen3,
    "qwen3_moe": hf_dense.Qwen3Moe,
    "gemma": hf_dense.Gemma,
    "gemma2": hf_dense.Gemma2,
    "gemma3_text": hf_dense.Gemma3,
    "phi3": hf_dense.Phi3,
    "seed_oss": hf_dense.SeedOss,
    "gpt_oss": hf_dense.GptOss,
    "glm4": hf_dense.Glm4,
    "glm4_moe": hf_dense.Glm4Moe,
    "minimax_m2": hf_dense.MiniMaxM2,
    "minimax_m3": hf_layered.MiniMaxM3,
    "minimax_m3_vl_text": hf_layered.MiniMaxM3,
    "gemma4_text": hf_layered.Gemma4,
    "llama4_text": hf_layered.Llama4,
    "nemotron-nas": hf_layered.LlamaNemotron,
    "deepseek_v2": hf_latent.DeepseekV2,
    "deepseek_v3": hf_latent.DeepseekV3,
    "kimi_k2": hf_latent.DeepseekV3,
    "glm4_moe_lite": hf_latent.Glm4MoeLite,
    "kimi_linear": hf_latent.KimiLinear,
    "deepseek_v32": hf_latent.DeepseekV32,
    "glm_moe_dsa": hf_latent.DeepseekV32,
    "qwen3_next": hf_hybrid.Qwen35Moe,
    "qwen3_5_text": hf_hybrid.Qwen35,
    "qwen3_5_moe_text": hf_hybrid.Qwen35Moe,
    "nemotron_h": hf_hybrid.NemotronH,
}
# Multimodal configs keep the text model's keys in text_config (older ones beside the others).
TEXT_OF = {
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "glm4v": "glm4",
    "qwen2_5_omni_thinker": "qwen2",
    "qwen3_omni_moe_thinker": "qwen3_moe",
    "smolvlm": "llama",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "llama4": "llama4_text",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_linear",
}
REFUSED = {"deepseek_v4": "caches compressed at two rates, grouped output projections and mixed residual streams"}
"""What is known of an architecture and has no price."""
THINKERS = ("qwen2_5_omni", "qwen3_omni_moe")
"""Models that also speak: what is trained, and answers in text, is a multimodal model under ``thinker_config``."""
# Configs without model_type name a class instead: Qwen2MoeForCausalLM is qwen2_moe.
BY_CLASS = {family.replace("_text", "").replace("_", "") + "forcausallm": family for family in FAMILIES}
