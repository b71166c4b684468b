"""Small architectures for measurements and tests, by their sizes."""

from __future__ import annotations

from executor.weights.architecture import Architecture, architecture_of


def architecture(
    family: str,
    *,
    hidden: int,
    num_layers: int,
    vocab: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    ffn: int,
    tied: bool = False,
    num_experts: int = 0,
    experts_per_token: int = 1,
) -> Architecture:
    """A decoder of some family; ``ffn`` is an expert's width where there are experts."""
    experts = {
        "num_experts": num_experts,
        "num_local_experts": num_experts,
        "num_experts_per_tok": experts_per_token,
        "moe_intermediate_size": ffn,
    }
    document = {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": num_layers,
        "vocab_size": vocab,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": tied,
        **(experts if num_experts else {}),
    }
    return architecture_of(document, family)
