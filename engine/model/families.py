"""FAMILIES: how each family of models differs from a Llama, and how its config.json writes it.

A value here is what a config.json means when it leaves the setting out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.model.rope import KINDS

WAY_OUT = (
    "choose a Llama, Mistral, Qwen2, Qwen3, SmolLM, Gemma, Phi-3, OLMo 2, Granite, StarCoder2, "
    "GPT-NeoX, Cohere2, StableLM, Falcon, BLOOM, MPT, Mixtral or Qwen3-MoE model"
)
WAY_OUT_OF_GGUF = (
    "choose a Llama, Mistral, Qwen2, Qwen3, SmolLM, Gemma, Phi-3, OLMo 2, Granite, StarCoder2, "
    "Cohere2 or StableLM file, or the model's folder with safetensors"
)


@dataclass(frozen=True, slots=True)
class Family:
    """One family. A bias is there (True), not there (False), or as the named key says."""

    # biases
    qkv_bias: bool | str = "attention_bias"
    output_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = False
    bias_default: bool = False
    # norms
    norm: str = "rms"
    norm_bias: bool = False
    norm_offset: float = 0.0
    eps_key: str = "rms_norm_eps"
    eps: float = 1e-6
    pre_norm: bool = True
    post_norm: bool = False
    embedding_norm: bool = False
    qk_norm: bool | str = False
    qk_norm_over: str = "head"
    # how parts are joined
    parallel: str = ""  # by default, or where `parallel_key` says so
    parallel_key: str = ""
    parallel_default: bool = False
    fused_qkv: str = ""
    fused_gate_up: bool = False
    names: str = "llama"
    # activation
    activation_key: str = "hidden_act"
    activation: str = "silu"
    gated: bool = True
    # mixtures of experts
    experts_key: str = ""  # the number of experts; empty: there are none
    num_experts: int = 0
    num_chosen: int = 0
    expert_size_key: str = "intermediate_size"
    expert_size: int | None = None
    normalised: bool | str = True
    some_layers_dense: bool = False
    # sizes
    tied_head: bool = False
    head_dim: int | None = None
    own_head_dim: bool = True  # False: always hidden_size // heads
    context_tokens: int = 32_768
    num_kv_heads: int | None = None  # None: as many as query heads
    kv_heads_key: str = "num_key_value_heads"  # empty: always as many as query heads
    # positions
    rope_theta: float = 10_000.0
    theta_key: str = "rope_theta"
    local_theta: float | None = None  # windowed layers have rotary positions of their own
    rope_kinds: tuple[str, ...] = KINDS
    partial: float | None = None  # the turned part of a head; None: a part cannot be asked for
    partial_key: str = "partial_rotary_factor"
    interleaved_rope: bool = False
    window: int | None = 4096
    windows_by: str = "none"  # or "all", "asked", "from_layer", "no_rope", "pattern"
    pattern: int = 0  # every n-th layer is a full one
    pattern_key: str = ""
    rope_in_full: bool = True  # False: only windowed layers have positions
    alibi: str = ""  # whose, see `alibi`; instead of rotary positions
    # scales: the key of a config.json and its default
    scales: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    # settings that change the result and are not run: all values that change nothing
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # GGUF files
    permuted_in_gguf: bool = False
    in_gguf: bool = False
    name_in_gguf: str = ""  # where it is another


_BOTH_WAYS = {"use_bidirectional_attention": (None, False)}
_LAYER_NORM: dict[str, Any] = {"norm": "layer", "norm_bias": True, "eps": 1e-5}
_GEMMA: dict[str, Any] = {
    "norm_offset": 1.0,
    "post_norm": True,
    "activation_key": "hidden_activation",
    "activation": "gelu_pytorch_tanh",
    "tied_head": True,
    "head_dim": 256,
    "num_kv_heads": 4,
    "windows_by": "pattern",
}

FAMILIES: dict[str, Family] = {
    "llama": Family(mlp_bias="mlp_bias", context_tokens=2048, permuted_in_gguf=True, in_gguf=True),
    "mistral": Family(
        qkv_bias=False,
        output_bias=False,
        context_tokens=131_072,
        num_kv_heads=8,
        windows_by="all",
        permuted_in_gguf=True,
        in_gguf=True,
    ),
    "qwen2": Family(
        qkv_bias=True, output_bias=False, num_kv_heads=32, windows_by="from_layer", in_gguf=True
    ),
    "qwen3": Family(
        qk_norm=True, head_dim=128, num_kv_heads=32, windows_by="from_layer", in_gguf=True
    ),
    "smollm3": Family(
        mlp_bias="mlp_bias",
        tied_head=True,
        rope_theta=2_000_000.0,
        num_kv_heads=4,
        window=None,
        windows_by="no_rope",
        permuted_in_gguf=True,
        in_gguf=True,
    ),
    "gemma2": Family(
        **_GEMMA,
        context_tokens=8192,
        pattern=2,
        scales={
            "query_scalar": ("query_pre_attn_scalar", 256.0),
            "attention_softcap": ("attn_logit_softcapping", 50.0),
            "logit_softcap": ("final_logit_softcapping", 30.0),
        },
        neutral=_BOTH_WAYS,
        in_gguf=True,
    ),
    "gemma3_text": Family(
        **_GEMMA,
        context_tokens=131_072,
        qk_norm=True,
        pattern=6,
        pattern_key="sliding_window_pattern",
        rope_theta=1_000_000.0,
        local_theta=10_000.0,
        scales={
            "query_scalar": ("query_pre_attn_scalar", 256.0),
            "logit_softcap": ("final_logit_softcapping", 0.0),
        },
        # transformers reads this key and does not apply it: nobody can say what is meant.
        neutral={**_BOTH_WAYS, "attn_logit_softcapping": (None, 0.0)},
        in_gguf=True,
        name_in_gguf="gemma3",
    ),
    "phi3": Family(
        qkv_bias=False,
        output_bias=False,
        eps=1e-5,
        context_tokens=4096,
        fused_qkv="rows",
        fused_gate_up=True,
        rope_kinds=("default", "longrope"),  # "yarn" means longrope here
        partial=1.0,
        window=None,
        windows_by="all",
        in_gguf=True,
    ),
    "olmo2": Family(
        eps=1e-5,
        pre_norm=False,
        post_norm=True,
        qk_norm=True,
        qk_norm_over="row",
        context_tokens=2048,
        in_gguf=True,
    ),
    "granite": Family(
        mlp_bias="mlp_bias",
        context_tokens=2048,
        scales={
            "attention_scale": ("attention_multiplier", 1.0),
            "embedding_scale": ("embedding_multiplier", 1.0),
            "residual_scale": ("residual_multiplier", 1.0),
            "logit_divisor": ("logits_scaling", 1.0),
        },
        permuted_in_gguf=True,
        in_gguf=True,
    ),
    "starcoder2": Family(
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        bias_default=True,
        **_LAYER_NORM,
        eps_key="norm_epsilon",
        activation="gelu_pytorch_tanh",
        gated=False,
        names="starcoder2",
        tied_head=True,
        context_tokens=4096,
        num_kv_heads=2,
        window=None,
        windows_by="all",
        in_gguf=True,
    ),
    "gpt_neox": Family(
        mlp_bias=True,
        bias_default=True,
        **_LAYER_NORM,
        eps_key="layer_norm_eps",
        activation="gelu",
        gated=False,
        parallel="two norms",
        parallel_key="use_parallel_residual",
        parallel_default=True,
        fused_qkv="groups",
        names="gpt_neox",
        own_head_dim=False,
        kv_heads_key="",
        context_tokens=2048,
        theta_key="rotary_emb_base",
        partial=0.25,
        partial_key="rotary_pct",
        neutral={"num_key_value_heads": (None,)},
    ),
    "cohere2": Family(
        norm="layer",
        eps=1e-5,
        eps_key="layer_norm_eps",
        parallel="one norm",
        tied_head=True,
        own_head_dim=False,
        context_tokens=8192,
        interleaved_rope=True,
        windows_by="pattern",
        pattern=4,
        pattern_key="sliding_window_pattern",
        rope_in_full=False,
        scales={"logit_scale": ("logit_scale", 0.0625)},
        # Keys of kin models that transformers' Cohere2 does not have.
        neutral={"use_qk_norm": (None, False), "use_parallel_block": (None, True)},
        in_gguf=True,
    ),
    "mixtral": Family(
        qkv_bias=False,
        output_bias=False,
        eps=1e-5,
        names="mixtral",
        experts_key="num_local_experts",
        num_experts=8,
        num_chosen=2,
        context_tokens=131_072,
        num_kv_heads=8,
        rope_theta=1_000_000.0,
        window=None,
        windows_by="all",
    ),
    "qwen3_moe": Family(
        qk_norm=True,
        experts_key="num_local_experts",
        num_experts=128,
        num_chosen=8,
        expert_size_key="moe_intermediate_size",
        expert_size=768,
        normalised="norm_topk_prob",
        some_layers_dense=True,
        num_kv_heads=4,
        windows_by="asked",
    ),
    # Parts that these turn on and off are in `variants`.
    "falcon": Family(
        qkv_bias="bias",
        output_bias="bias",
        mlp_bias="bias",
        **_LAYER_NORM,
        eps_key="layer_norm_epsilon",
        activation_key="activation",
        activation="gelu",
        gated=False,
        fused_qkv="groups",
        tied_head=True,
        own_head_dim=False,
        context_tokens=2048,
        # transformers does not read it; older code of these models did.
        neutral={"apply_residual_connection_post_layernorm": (None, False)},
    ),
    "bloom": Family(
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        **_LAYER_NORM,
        eps_key="layer_norm_epsilon",
        embedding_norm=True,
        activation="gelu_pytorch_tanh",
        gated=False,
        fused_qkv="groups",
        names="bloom",
        tied_head=True,
        own_head_dim=False,
        kv_heads_key="",
        context_tokens=2048,
        alibi="bloom",
        neutral={
            "apply_residual_connection_post_layernorm": (None, False),
            "slow_but_exact": (None, False),
            "n_inner": (None,),
        },
    ),
    "mpt": Family(
        qkv_bias=False,
        output_bias=False,
        norm="layer",
        eps=1e-5,
        eps_key="layer_norm_epsilon",
        activation="gelu",
        gated=False,
        fused_qkv="rows",
        names="mpt",
        tied_head=True,
        own_head_dim=False,
        kv_heads_key="",
        context_tokens=2048,
        alibi="mpt",
        scales={"attention_scale": ("attention_scale", 0.0)},
        neutral={
            "expansion_ratio": (None, 4),
            "logit_scale": (None,),
            "no_bias": (None, True),
            "norm_type": (None, "low_precision_layernorm", "layernorm"),
        },
    ),
    "stablelm": Family(
        qkv_bias="use_qkv_bias",
        output_bias=False,
        **_LAYER_NORM,
        eps_key="layer_norm_eps",
        parallel="one norm",
        parallel_key="use_parallel_residual",
        qk_norm="qk_layernorm",
        qk_norm_over="heads",
        own_head_dim=False,
        context_tokens=4096,
        num_kv_heads=32,
        partial=0.25,
        in_gguf=True,
    ),
}
SUPPORTED = tuple(FAMILIES)
IN_GGUF = {  # by the name that a GGUF gives
    family.name_in_gguf or name: family for name, family in FAMILIES.items() if family.in_gguf
}
