"""Families whose config.json uses words of its own, as all others would say it.

What such a file turns on and off becomes the Family and the common keys that `config` reads.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.model.families import WAY_OUT, Family
from engine.model.getter import Getter

Config = Mapping[str, Any]


def plainly(config: Config, family: Family, name: str) -> tuple[Config, Family]:
    """The config in common words, and the family with all parts as this config has them.

    Raises:
        UnsupportedModelError: a setting that is not run. BadFileError: an impossible value.
    """
    write = _WRITERS.get(str(config.get("model_type")))
    return write(config, family, name) if write else (config, family)


def refuse_settings(
    config: Config, neutral: Mapping[str, tuple[Any, ...]], name: str, where: str = ""
) -> None:
    """`neutral` holds, per key, all values that change nothing.

    Raises:
        UnsupportedModelError: names the first setting with another value.
    """
    for key, values in neutral.items():
        if config.get(key) not in values:
            raise UnsupportedModelError(
                f"{name} sets {where}{key} to {shown(config.get(key))}, which this version cannot "
                f"run: {WAY_OUT}"
            )


def _falcon(config: Config, family: Family, name: str) -> tuple[Config, Family]:
    config = _renamed(config, {"n_embed": "hidden_size"}, name)
    get = Getter(config, f"{name}/config.json")
    num_heads = get.whole("num_attention_heads")
    new = get.flag("new_decoder_architecture", False)
    one_kv_head = not new and get.flag("multi_query", True)
    kv_heads = get.whole("num_kv_heads", num_heads)
    if not new and not one_kv_head and kv_heads != num_heads:
        raise get.bad("num_kv_heads", kv_heads)
    parallel = _falcon_parallel(get, new, name)
    family = replace(
        family,
        parallel=parallel,
        names="falcon two norms" if parallel == "two norms" else "falcon",
        alibi="falcon" if get.flag("alibi", False) else "",
    )
    sizes = {
        "num_key_value_heads": 1 if one_kv_head else kv_heads,
        "intermediate_size": get.whole("ffn_hidden_size", 4 * get.whole("hidden_size")),
    }
    return _over(config, sizes), family


def _falcon_parallel(get: Getter, new: bool, name: str) -> str:
    """How attention and MLP are joined; the two settings cannot be combined freely."""
    parallel = get.flag("parallel_attn", True)
    num_norms = get.whole("num_ln_in_parallel_attn", 2 if new else 1)
    if num_norms > 2 or (new and not parallel) or (parallel and not new and num_norms == 2):
        raise UnsupportedModelError(
            f"{name} combines new_decoder_architecture {new}, parallel_attn {parallel} and "
            f"num_ln_in_parallel_attn {num_norms}, which no Falcon model does: {WAY_OUT}"
        )
    if not parallel:
        return ""
    return "two norms" if num_norms == 2 else "one norm"


def _mixed(config: Config, family: Family, name: str) -> tuple[Config, Family]:
    return _renamed(config, {"num_experts": "num_local_experts"}, name), family


_BLOOM_WORDS = {
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "seq_length": "max_position_embeddings",
}


def _bloom(config: Config, family: Family, name: str) -> tuple[Config, Family]:
    config = _renamed(config, _BLOOM_WORDS, name)
    hidden_size = Getter(config, f"{name}/config.json").whole("hidden_size")
    return _over(config, _fixed_mlp(hidden_size)), family


_MPT_WORDS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
}
_MPT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attn_type": (None, "multihead_attention"),
    "clip_qkv": (None, 0),
    "prefix_lm": (None, False),
    "qk_ln": (None, False),
    "alibi": (None, True),
    "alibi_bias_max": (
        None,
        8,
    ),  # transformers does not apply another; nobody can say what is meant
}


def _mpt(config: Config, family: Family, name: str) -> tuple[Config, Family]:
    config = _renamed(config, _MPT_WORDS, name)
    attention = config.get("attn_config") or {}
    if not isinstance(attention, Mapping):
        raise BadFileError(f"{name} describes its attention wrongly: fetch the model again")
    refuse_settings(attention, _MPT_NEUTRAL, name, "attn_config.")
    hidden_size = Getter(config, f"{name}/config.json").whole("hidden_size")
    scale = {"attention_scale": attention.get("softmax_scale")}
    return _over(config, {**_fixed_mlp(hidden_size), **scale}), family


def _fixed_mlp(hidden_size: int) -> dict[str, Any]:
    """No setting of the file reaches the activation and the width."""
    return {"hidden_act": None, "intermediate_size": 4 * hidden_size}


def _renamed(config: Config, words: Mapping[str, str], name: str) -> Config:
    """Values under their common names; a value given twice must be the same."""
    renamed: dict[str, Any] = {}
    for word, common in words.items():
        value = config.get(word)
        if value is None:
            continue
        if config.get(common) not in (None, value):
            raise Getter(config, f"{name}/config.json").bad(word, value)
        renamed[common] = value
    return _over(config, renamed)


def _over(config: Config, changes: dict[str, Any]) -> Config:
    return ChainMap(changes, cast("dict[str, Any]", config))


_WRITERS: dict[str, Callable[[Config, Family, str], tuple[Config, Family]]] = {
    "falcon": _falcon,
    "bloom": _bloom,
    "mpt": _mpt,
    "mixtral": _mixed,
    "qwen3_moe": _mixed,
}
