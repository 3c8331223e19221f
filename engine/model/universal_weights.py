"""Weights of a checked model folder -> a transformers model, by transformers' own renamings.

Every tensor comes through our own reader; transformers opens no file. What it renames, stacks and
joins while it loads (experts of a mixture, mostly) is first rehearsed without a weight, on shapes.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import BadFileError, MissingWeightsError, UnsupportedModelError, shown
from engine.model.layout import some
from engine.model.safetensors import Tensors
from engine.model.universal_config import WAY_OUT

# Tables that a model computes for itself: positions, masks. A hostile context asks for more.
_MAX_COMPUTED_BYTES = 1 << 30
_SYNCHRONOUS = "HF_DEACTIVATE_ASYNC_LOAD"


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A tensor that is read when transformers asks for its content."""

    read: Callable[[], torch.Tensor]

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self.read()


def build_empty(cls: Any, config: Any, dtype: torch.dtype, attention: str, name: str) -> Any:
    """The model without memory for its weights.

    Raises:
        BadFileError: the config describes a model that cannot be built.
        UnsupportedModelError: it has kinds of attention of its own.
    """
    from transformers.initialization import no_init_weights

    try:
        with contextlib.ExitStack() as stack:
            for context in cls.get_init_context(dtype, False, False, False):
                stack.enter_context(context)
            stack.enter_context(no_init_weights())
            model = cls(config)
    except Exception as error:  # a stranger's sizes in transformers' own constructors
        if isinstance(error, KeyError) and attention in error.args:
            raise UnsupportedModelError(
                f"{name} ({config.model_type}) does not speak the attention interface of "
                f"transformers: {WAY_OUT}"
            ) from error
        raise BadFileError(
            f"{name}/config.json describes a model that cannot be built "
            f"({shown(str(error), 160)}): fetch it again"
        ) from error
    computed = sum(b.numel() * b.element_size() for _, b in model.named_non_persistent_buffers())
    if computed > _MAX_COMPUTED_BYTES:
        raise BadFileError(
            f"{name}/config.json asks for {computed / 2**30:,.0f} GiB of tables that are not "
            "weights, which cannot be: fetch the model again"
        )
    return model


def check_weights(model: Any, tensors: Tensors, dtype: torch.dtype) -> None:
    """Rehearse loading on shapes alone, into an empty model.

    Raises:
        MissingWeightsError: names a tensor that is missing, extra or mis-shaped.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    shapes = {
        key: _Lazy(functools.partial(torch.empty, place.shape, dtype=place.dtype, device="meta"))
        for key, place in tensors.places.items()
    }
    how = LoadStateDictConfig(
        dtype=dtype,
        dtype_plan=model._get_dtype_plan(dtype),
        device_map={"": "meta"},
        weight_mapping=get_model_conversion_mapping(model),
    )
    with _on_this_thread(), _damaged(tensors.name):
        info, _ = convert_and_load_state_dict_in_model(model, shapes, how)
    tied = getattr(model, "all_tied_weights_keys", {})
    info.missing_keys -= {key for key, of in tied.items() if of not in info.missing_keys}
    model._adjust_missing_and_unexpected_keys(info)
    _refuse(info.to_dict(), tensors.name, info.conversion_errors)


def load_weights(
    cls: Any,
    config: Any,
    tensors: Tensors,
    dtype: torch.dtype,
    attention: str,
    progress: Callable[[float, str], None],
) -> Any:
    """The model with its weights, on the CPU, ready to run.

    Args:
        progress: called before each tensor; what it raises ends the load.

    Raises:
        MissingWeightsError: as `check_weights`.
    """
    total = max(1, sum(place.num_bytes for place in tensors.places.values()))
    done = 0

    def read(key: str) -> torch.Tensor:
        nonlocal done
        progress(min(1.0, done / total), "Reading weights")
        done += tensors.places[key].num_bytes
        return tensors.load(key)

    state = {key: _Lazy(functools.partial(read, key)) for key in tensors.places}
    with _on_this_thread():
        model, info = cls.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=dtype,
            attn_implementation=attention,
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    _refuse(info, tensors.name, {})
    return model.eval().requires_grad_(False)


@contextlib.contextmanager
def _damaged(name: str) -> Iterator[None]:
    """What a stranger's shapes provoke in transformers' conversions is a fault of the file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, ValueError) as error:
        raise MissingWeightsError(
            f"{name} holds weights that its architecture cannot take "
            f"({shown(str(error), 160)}): fetch it again"
        ) from error


@contextlib.contextmanager
def _on_this_thread() -> Iterator[None]:
    """transformers reads with threads of its own unless told otherwise: progress, and giving up,
    belong to the thread that loads, and memory should hold one tensor at a time."""
    before = os.environ.get(_SYNCHRONOUS)
    os.environ[_SYNCHRONOUS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SYNCHRONOUS]
        else:
            os.environ[_SYNCHRONOUS] = before


def _refuse(info: dict[str, Any], name: str, errors: dict[str, str]) -> None:
    if missing := sorted(info["missing_keys"]):
        raise MissingWeightsError(
            f"{name} lacks {some(missing)}: the download is incomplete, fetch it again"
        )
    if mismatched := sorted(info["mismatched_keys"]):
        key, found, expected = mismatched[0]
        raise MissingWeightsError(
            f"{name} holds {shown(key, 120)} as {list(found)}, and its configuration asks for "
            f"{list(expected)}: configuration and weights are not of the same model"
        )
    if errors:
        raise MissingWeightsError(
            f"{name} holds {some(sorted(errors))} in parts that do not fit together: fetch it again"
        )
    if extra := sorted(info["unexpected_keys"]):
        raise MissingWeightsError(
            f"{name} holds {some(extra)}, which its architecture does not have: the model would "
            "not run as it was made"
        )
