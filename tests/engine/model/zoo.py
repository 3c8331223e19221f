"""Tiny random models of many families, and what transformers says to a few prompts.

Weight seeds were fixed before the first run. The scales of weights were chosen so that a model says
many words; one that repeats itself would prove little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

NUM_NEW = 48
LENGTHS = (1, 5, 23, 40, 70)  # of the prompts; the windows are 16
NEAR = 1e-4  # relative distance of the two best logits below which either token counts
VOCAB = 307

# Head sizes 80 and 96, and 3 or 7 query heads for each KV head, where the family allows.
ODD_80_3 = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 80}
ODD_96_7 = {"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 96}
EVEN_80_3 = {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 240}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

FALCON_96 = {"num_attention_heads": 2, "hidden_size": 2 * 96}
FALCON_80_3 = {"num_attention_heads": 6, "hidden_size": 6 * 80}
BLOOM_80 = {"num_attention_heads": 3, "hidden_size": 240}

FAST: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", ODD_80_3),
    "mistral": ("Mistral", {**ODD_96_7, "sliding_window": 16}),
    "qwen2": ("Qwen2", EVEN_80_3),
    "qwen2 windows": (
        "Qwen2",
        {**EVEN_80_3, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", ODD_96_7),
    "smollm3": ("SmolLM3", {**EVEN_80_3, "num_hidden_layers": 5}),
    "gemma2": (
        "Gemma2",
        {**ODD_96_7, "hidden_size": 56, "sliding_window": 16, "query_pre_attn_scalar": 80},
    ),
    "gemma2 biases, uncapped": (
        "Gemma2",
        {
            **ODD_80_3,
            "sliding_window": 16,
            "attention_bias": True,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "gemma3_text": (
        "Gemma3Text",
        {**ODD_80_3, "sliding_window": 16, "num_hidden_layers": 7, "query_pre_attn_scalar": 60},
    ),
    "gemma3_text linear": (
        "Gemma3Text",
        {
            **ODD_80_3,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "final_logit_softcapping": 20.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
    ),
    "phi3": ("Phi3", EVEN_80_3),
    "phi3 partial, window": (
        "Phi3",
        {
            **EVEN_80_3,
            "sliding_window": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
            },
        },
    ),
    "olmo2": ("Olmo2", {**EVEN_80_3, "attention_bias": True}),
    "granite": (
        "Granite",
        {
            **EVEN_80_3,
            "attention_multiplier": 0.09,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "starcoder2": ("Starcoder2", {**EVEN_80_3, "sliding_window": 16}),
    "starcoder2 plain": ("Starcoder2", {**EVEN_80_3, "use_bias": False}),
    "gpt_neox": ("GPTNeoX", {"num_attention_heads": 3, "hidden_size": 240}),
    "gpt_neox in turn": (
        "GPTNeoX",
        {
            "num_attention_heads": 2,
            "hidden_size": 192,
            "use_parallel_residual": False,
            "hidden_act": "gelu_new",
            "attention_bias": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 1.0,
            },
        },
    ),
    "cohere2": (
        "Cohere2",
        {**EVEN_80_3, "num_hidden_layers": 5, "sliding_window": 16, "attention_bias": True},
    ),
    "stablelm": ("StableLm", {**EVEN_80_3, "use_qkv_bias": True}),
    "stablelm parallel": (
        "StableLm",
        {**EVEN_80_3, "use_parallel_residual": True, "qk_layernorm": True},
    ),
    "falcon": ("Falcon", {"num_attention_heads": 7, "hidden_size": 7 * 80}),
    "falcon biases": (
        "Falcon",
        {**FALCON_96, "bias": True, "ffn_hidden_size": 88, "tie_word_embeddings": False},
    ),
    "falcon 2 kv heads": (
        "Falcon",
        {**FALCON_80_3, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon 2 kv heads, one norm": (
        "Falcon",
        {
            **FALCON_80_3,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
        },
    ),
    "falcon alibi": (
        "Falcon",
        {
            **FALCON_80_3,
            "alibi": True,
            "parallel_attn": False,
            "tie_word_embeddings": False,
            "multi_query": False,
            "bias": True,
        },
    ),
    "falcon alibi, one kv head": ("Falcon", {**FALCON_96, "alibi": True}),
    "bloom": ("Bloom", BLOOM_80),
    "bloom 7 heads": (
        "Bloom",
        {"num_attention_heads": 7, "hidden_size": 7 * 48, "tie_word_embeddings": False},
    ),
    "mpt": ("Mpt", {**BLOOM_80, "max_seq_len": 256}),
    "mpt scaled": (
        "Mpt",
        {
            "num_attention_heads": 2,
            "hidden_size": 192,
            "max_seq_len": 256,
            "attn_config": {"softmax_scale": 0.2},
        },
    ),
    "mixtral": (
        "Mixtral",
        {**ODD_80_3, "num_local_experts": 5, "sliding_window": 16},
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            **ODD_96_7,
            "num_hidden_layers": 4,
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_moe plain shares": (
        "Qwen3Moe",
        {**ODD_80_3, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 2},
    ),
    "llama yarn": ("Llama", {**ODD_80_3, "rope_parameters": YARN}),
    "llama dynamic": (
        "Llama",
        {**ODD_80_3, "rope_parameters": {**YARN, "rope_type": "dynamic"}},
    ),
    "phi3 longrope": (
        "Phi3",
        {
            **EVEN_80_3,
            "original_max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1 + i / 9 for i in range(40)],
                "long_factor": [2.0 + i for i in range(40)],
                "original_max_position_embeddings": 128,
            },
        },
    ),
}


WINDOWED = {"sliding_window": 16, "num_hidden_layers": 4}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
LATENT = {
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 20,  # neither the keys' 40 nor a power of two
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    **EXPERTS,
}
YARN_LATENT = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}

UNIVERSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {**ODD_80_3, "num_local_experts": 5, "sliding_window": 16}),
    "qwen3_moe": ("Qwen3Moe", {**ODD_96_7, "num_experts": 7, **EXPERTS}),
    "gpt_oss": ("GptOss", {**ODD_80_3, **WINDOWED, "num_local_experts": 4, **EXPERTS}),
    "deepseek_v3": ("DeepseekV3", {**LATENT, "rope_parameters": YARN_LATENT}),
    "deepseek_v2": ("DeepseekV2", {**LATENT, "q_lora_rank": None}),
    "mimo_v2_flash": (
        "MiMoV2Flash",
        {
            "num_attention_heads": 6,
            "num_key_value_heads": 3,  # and twice as many in windowed layers
            "head_dim": 24,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            **WINDOWED,
            **EXPERTS,
        },
    ),
    "exaone4": ("Exaone4", {**ODD_80_3, **WINDOWED}),
    "glm4": ("Glm4", ODD_96_7),
    "ernie4_5": ("Ernie4_5", ODD_80_3),
    "seed_oss": ("SeedOss", ODD_80_3),
    "nemotron": ("Nemotron", EVEN_80_3),
    "phi": ("Phi", {"num_attention_heads": 3, "hidden_size": 240}),
    "opt": (
        "OPT",
        {"num_attention_heads": 3, "hidden_size": 48, "ffn_dim": 88, "word_embed_proj_dim": 48},
    ),
    "apertus": ("Apertus", EVEN_80_3),
}


@dataclass
class Prompt:
    """A prompt, what transformers says to it, and which of its tokens are near ties."""

    tokens: list[int]
    answer: list[int]
    near: list[bool]


def make_model(stem: str, changes: dict[str, Any], folder: Any) -> Any:
    import transformers

    values = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 88,
        "num_hidden_layers": 3,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    config = getattr(transformers, f"{stem}Config")(**values)
    # transformers' eager Falcon adds its ALiBi twice, to the scores and within the mask; the way it
    # takes by default adds it once, as the models were trained.
    alibi_once = stem == "Falcon" and config.alibi
    config._attn_implementation = "sdpa" if alibi_once else "eager"
    torch.manual_seed(7)
    kind = stem.removesuffix("Text")
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():  # loud weights: near ties between random logits would prove nothing
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            gemma = "Gemma" in stem  # it adds 1 to norms, and makes embeddings loud itself
            if parameter.ndim == 1:
                one = ("norm" in name or "ln_" in name) and name.endswith("weight")
                noise = noise if gemma else noise / 4 + one
                if "embeddings_layernorm" in name:  # BLOOM's head is tied: it would only repeat
                    noise /= 8
            elif gemma or "embed" not in name:
                noise *= (1 if "embed" in name else 3) / parameter.shape[-1] ** 0.5
            parameter.copy_(noise)
    model.save_pretrained(folder)
    return model


def ask(model: Any, num_tokens: int) -> Prompt:
    random = torch.Generator().manual_seed(num_tokens)
    tokens = torch.randint(3, VOCAB, (num_tokens,), generator=random)
    out = model.generate(
        tokens[None],
        attention_mask=torch.ones(1, num_tokens, dtype=torch.long),
        max_new_tokens=NUM_NEW,
        do_sample=False,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.cat(out.logits).topk(2).values  # [NUM_NEW, 2]
    near = (best[:, 0] - best[:, 1]) < NEAR * best[:, 0].abs()
    return Prompt(tokens.tolist(), out.sequences[0, num_tokens:].tolist(), near.tolist())
