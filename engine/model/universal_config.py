"""What a stranger's config.json becomes for transformers, and which kinds of model are refused.

Nothing here reads a weight. No setting of the file reaches transformers that could name code, a
kernel or another file.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.model.config import MAX_LAYERS

WAY_OUT = "choose a model of another kind"

# Settings that lead to code, kernels or files, or that change what a model hands back.
_DROPPED = frozenset(
    (
        "attn_implementation", "experts_implementation", "auto_map", "custom_generate",
        "distributed_config", "fusion_config", "kernel_config", "output_attentions",
        "output_hidden_states", "output_router_logits", "return_dict", "torchscript",
        "transformers_weights", "use_kernels",
    )
)  # fmt: skip
_COUNT = re.compile(r"(num|n)_\w*(layer|expert|head|block)")
_MAX_COUNT = 4096  # of heads, or of experts in a layer
_MAX_EXPERTS = 1 << 17  # in all layers: five times the largest models known
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")

_RECURRENT = (
    "needs a recurrent state beside its keys and values ({what}), which this version does not keep"
)
_LAYER_TYPES = {
    "linear_attention": _RECURRENT,
    "mamba": _RECURRENT,
    "recurrent": _RECURRENT,
    "conv": _RECURRENT,
    "hybrid": _RECURRENT,
    "hybrid_sliding": _RECURRENT,
    "moe": _RECURRENT,  # only a model that mixes them with Mamba layers lists them
    "chunked_attention": "attends in chunks ({what}), which this version cannot run",
    "indexed_attention": "chooses by an index what it attends to ({what}), which this version "
    "cannot run",
    "compressed_sparse_attention": "attends to compressed keys ({what}), which this version cannot "
    "run",
    "heavily_compressed_attention": "attends to compressed keys ({what}), which this version "
    "cannot run",
    "minimax_m3_sparse": "attends to chosen blocks only ({what}), which this version cannot run",
}
_RECURRENT_MODULE = re.compile(
    r"Mamba|Rwkv|xLSTM|mLSTM|sLSTM|RecurrentBlock|LightningAttention|ShortConv|GatedDelta"
    r"|DeltaAttention|DeltaNet|RgLru|Rglru|LinearAttention"
)
_CHOOSING_MODULE = re.compile(r"Indexer|BlockSparse")


# Their configs say is_decoder: false, and mean nothing by it.
_DECODERS = frozenset(("gpt_neox", "gpt_neox_japanese"))


def make_config(values: Mapping[str, Any], name: str) -> Any:
    """The PreTrainedConfig of a config.json's content, and of nothing else.

    Raises:
        UnsupportedModelError: transformers does not know the model, or it is of a kind that is not
            run. BadFileError: a value is impossible.
    """
    kind = values.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise BadFileError(f"{name}/config.json does not say model_type: fetch the model again")
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    if kind not in CONFIG_MAPPING:
        if values.get("auto_map"):
            raise UnsupportedModelError(
                f"{name} ({shown(kind)}) needs code of its own, which is never run: {WAY_OUT}"
            )
        raise UnsupportedModelError(
            f"{name} is of the kind {shown(kind)}, which this version does not know: {WAY_OUT}"
        )
    _refuse_values(values, name)
    try:
        readable = PreTrainedConfig._decode_special_floats(dict(values))
        config = CONFIG_MAPPING[kind].from_dict(_cleaned(readable))
    except Exception as error:  # a stranger's values in transformers' own checks
        raise BadFileError(
            f"{name}/config.json cannot be understood ({shown(str(error), 160)}): fetch the model "
            "again"
        ) from error
    _refuse_config(config, name)
    return config


def model_class(config: Any, name: str) -> Any:
    """The class of a plain causal language model that speaks the attention interface.

    Raises:
        UnsupportedModelError: there is none for this config.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if found is None or not found.__name__.endswith(("ForCausalLM", "LMHeadModel")):
        raise _refused(name, config, "is not a plain text model that continues what it is given")
    return found


def refuse_class(cls: Any, config: Any, name: str) -> None:
    """Raises:
    UnsupportedModelError: the model's code gives us no place to attend, or takes no positions.
    """
    if not hasattr(sys.modules[cls.__module__], "ALL_ATTENTION_FUNCTIONS"):
        raise _refused(name, config, "does not speak the attention interface of transformers")
    if "position_ids" not in inspect.signature(cls.forward).parameters:
        raise _refused(name, config, "counts its positions itself, so texts cannot share a step")


def refuse_modules(model: Any, name: str) -> None:
    """Raises:
    UnsupportedModelError: a part of the model keeps a state, or chooses what it attends to.
    """
    for module in model.modules():
        kind = type(module).__name__
        if _RECURRENT_MODULE.search(kind):
            raise _refused(name, model.config, _RECURRENT.format(what=kind))
        if _CHOOSING_MODULE.search(kind):
            raise _refused(name, model.config, _LAYER_TYPES["indexed_attention"].format(what=kind))


def context_of(config: Any, name: str) -> int:
    """The longest text that the model was made for, in tokens.

    Rotary positions that change with the length of the batch (dynamic, longrope) stay as they are
    up to the length that the model was first trained with: the context ends there, so that every
    sequence gets the same answer in any company, and its blocks can be used again.

    Raises:
        BadFileError: the config does not say, or says something impossible.
    """
    found = [getattr(config, key, None) for key in _CONTEXT_KEYS]
    context = next((value for value in found if type(value) is int), None)
    if context is None or not 8 <= context <= 1 << 24:
        raise BadFileError(
            f"{name}/config.json gives {shown(context)} as the longest text "
            "(max_position_embeddings), which cannot be: fetch the model again"
        )
    nested = getattr(config, "rope_parameters", None) or {}
    for rope in (nested, *nested.values()):
        kind = rope.get("rope_type") if isinstance(rope, Mapping) else None
        if kind == "longrope":
            original = rope.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            context = min(context, original or context)
    return context


def _cleaned(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in values.items() if k not in _DROPPED and not k.startswith("_")}
    return {k: _cleaned(v) if isinstance(v, dict) else v for k, v in kept.items()}


def _refuse_values(values: Mapping[str, Any], name: str) -> None:
    quantisation = values.get("quantization_config") or values.get("compression_config")
    if quantisation:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        raise UnsupportedModelError(
            f"{name} is quantised with {shown(method or 'an unknown method')}, which this version "
            "cannot read: take the unquantised folder or a GGUF file"
        )
    _refuse_counts(values, name)


def _refuse_counts(values: Mapping[str, Any], name: str) -> None:
    """Each layer, head or expert may be an object before any file is compared."""
    most: dict[str, int] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            _refuse_counts(value, name)
        match = _COUNT.match(key)
        if match is None or type(value) is not int:
            continue
        most[match[2]] = max(value, most.get(match[2], 1))
        if value > (MAX_LAYERS if match[2] == "layer" else _MAX_COUNT):
            raise _impossible(name, key, value)
        if most.get("layer", 1) * most.get("expert", 1) > _MAX_EXPERTS:
            raise _impossible(name, key, value)


def _impossible(name: str, key: str, value: object) -> BadFileError:
    return BadFileError(
        f"{name}/config.json gives {key} as {shown(value)}, which cannot be: fetch the model again"
    )


def _refuse_config(config: Any, name: str) -> None:
    if config.is_encoder_decoder:
        raise _refused(
            name, config, "reads with an encoder and answers with a decoder, which is not run here"
        )
    if getattr(config, "vision_config", None) or getattr(config, "audio_config", None):
        raise _refused(name, config, "reads pictures or sound as well, which is not run here")
    if getattr(config, "is_decoder", None) is False and config.model_type not in _DECODERS:
        raise _refused(name, config, "reads its text in both directions, and writes none")
    for key in ("layer_types", "layers_block_type"):
        kinds = getattr(config, key, None)
        for kind in kinds if isinstance(kinds, list | tuple) else ():
            if kind in _LAYER_TYPES:
                raise _refused(name, config, _LAYER_TYPES[kind].format(what=kind))


def _refused(name: str, config: Any, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{name} ({config.model_type}) {what}: {WAY_OUT}")
