"""Universal: any causal language model of transformers that speaks its attention interface, run
over the paged pool, its own code untouched.

The fit is found out, not believed: loading ends with one pass that shows what every layer keeps and
how far it sees (`universal_probe`), and with a few tokens that must come out of the pool, in chunks
and in company, as the model computes them by itself. Whatever fails there is refused by name.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.batch import Batch
from engine.config import EngineConfig
from engine.errors import UnsupportedModelError, shown
from engine.kv_cache import KVSpec
from engine.layer_groups import group_layers, layer_places
from engine.model.decoder import Cache
from engine.model.linear import choose_storage
from engine.model.safetensors import Tensors, open_tensors
from engine.model.universal_attention import (
    NAME,
    LayerFacts,
    PagedStep,
    Place,
    Unfit,
    hand_step_through,
    register,
)
from engine.model.universal_check import check_answers
from engine.model.universal_config import (
    WAY_OUT,
    context_of,
    make_config,
    model_class,
    refuse_class,
    refuse_modules,
)
from engine.model.universal_probe import Probe
from engine.model.universal_weights import build_empty, check_weights, load_weights
from kernels.dispatch import Ops

# What a model's own code raises when a step does not suit it. Anything else is ours.
_MODEL_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UniversalFolder:
    """A model folder that was checked wholly, but for what only a pass can show."""

    folder: Path
    name: str
    tensors: Tensors
    config: Any
    cls: Any
    context_tokens: int
    dtype: torch.dtype
    ops: Ops


def open_universal(
    folder: Path,
    name: str,
    values: Mapping[str, Any],
    config: EngineConfig,
    device: torch.device,
    ops: Ops,
) -> UniversalFolder:
    """Check a safetensors folder for the universal path; no weight is read.

    Args:
        values: the content of its config.json.

    Raises:
        ModelError: it cannot be used; the sentence says why.
    """
    _quiet()
    register()
    model_config = make_config(values, name)
    cls = model_class(model_config, name)
    dtype = torch.float32
    if choose_storage(device, config.precision) != "fp32":
        dtype = torch.bfloat16
    model_config._attn_implementation = NAME
    model = build_empty(cls, model_config, dtype, NAME, name)
    refuse_modules(model, name)
    refuse_class(cls, model_config, name)
    context_tokens = context_of(model_config, name)
    tensors = open_tensors(folder, name)
    check_weights(model, tensors, dtype)
    return UniversalFolder(folder, name, tensors, model_config, cls, context_tokens, dtype, ops)


class Universal:
    """A transformers model over the pool. Holds no sequence, no cache."""

    def __init__(
        self,
        folder: UniversalFolder,
        config: EngineConfig,
        device: torch.device,
        progress: Callable[[float, str], None],
    ) -> None:
        """Read every weight, then find out how the model runs.

        Raises:
            ModelError: weights are missing, or the model cannot run over blocks.
        """
        self.name = folder.name
        self._device = device
        kv_dtype = torch.float32 if config.precision == "exact" else torch.bfloat16
        self.ops = folder.ops
        model = load_weights(
            folder.cls, folder.config, folder.tensors, folder.dtype, NAME,
            lambda fraction, note: progress(0.9 * fraction, note),
        )  # fmt: skip
        progress(0.92, "Finding out how its layers attend")
        hand_step_through(model)
        self._model = model.to(device)
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._picks_rows = "logits_to_keep" in parameters
        probe, vocab_size = self._probe(folder.context_tokens)
        self.vocab_size = vocab_size
        self.spec = _spec(probe.facts, kv_dtype)
        self._places = _places(self.spec, probe)
        progress(0.96, "Checking its answers")
        with self._named_errors():
            check_answers(self, self._model, probe.modules)

    @property
    def storage(self) -> str:
        return "fp32" if self._model.dtype == torch.float32 else "bf16"

    @property
    def num_parameters(self) -> int:
        """Tied ones count once."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def weights_bytes(self) -> int:
        held = [*self._model.parameters(), *self._model.buffers()]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in held}.values())

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: Cache) -> torch.Tensor:
        """Run one step: K and V of the new tokens go to their slots; logits [L, vocab] fp32."""
        step = PagedStep(batch, cache, self.ops, self.spec, self._places)
        return self._run(batch.token_ids, batch.positions, step, batch.logit_rows)

    def _run(
        self, tokens: torch.Tensor, positions: torch.Tensor, step: Any, rows: torch.Tensor
    ) -> torch.Tensor:
        how: dict[str, Any] = {self._cache_name: step, "paged_step": step, "use_cache": False}
        if self._picks_rows:
            how["logits_to_keep"] = rows
        out = self._model(input_ids=tokens[None], position_ids=positions[None], **how)
        logits: torch.Tensor = out.logits[0]
        return (logits if self._picks_rows else logits[rows]).float()

    @torch.inference_mode()
    def _probe(self, context_tokens: int) -> tuple[Probe, int]:
        """The probe after a pass, and how many words the logits tell apart."""
        probe = Probe(context_tokens)
        positions = torch.arange(probe.num_past, context_tokens, device=self._device)
        rows = torch.tensor([1], device=self._device)
        with self._named_errors():
            logits = self._run(torch.ones_like(positions), positions, probe, rows)
        num_layers = getattr(self._model.config.get_text_config(), "num_hidden_layers", None)
        modules = {id(module) for module in probe.modules}
        if len(modules) != len(probe.modules):
            raise self._refused("calls one attention layer several times in a step")
        if len(modules) != num_layers:
            raise self._refused(
                f"has {shown(num_layers)} layers, of which {len(modules)} attend through the "
                "interface that this version serves: the others need something else"
            )
        return probe, logits.shape[-1]

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Whatever a model's own code raises in a trial becomes a refusal with the model's name."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except Unfit as error:
            raise self._refused(str(error)) from error
        except _MODEL_ERRORS as error:
            what = f"cannot run over blocks ({type(error).__name__}: {shown(str(error), 160)})"
            raise self._refused(what) from error

    def _refused(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.name} ({self._model.config.model_type}) {what}: {WAY_OUT}"
        )


def _spec(facts: list[LayerFacts], kv_dtype: torch.dtype) -> KVSpec:
    """Room for the largest layer; smaller ones leave a part of theirs unused."""
    groups = group_layers([fact.window for fact in facts])
    heads = max(fact.num_kv_heads for fact in facts)
    k_dim, v_dim = max(fact.k_dim for fact in facts), max(fact.v_dim for fact in facts)
    return KVSpec(groups, heads, k_dim, v_dim, kv_dtype)


def _places(spec: KVSpec, probe: Probe) -> dict[int, Place]:
    places = layer_places(spec.groups)
    return {
        id(module): Place(fact, *places[layer])
        for layer, (module, fact) in enumerate(zip(probe.modules, probe.facts, strict=True))
    }


def _quiet() -> None:
    """Nobody reads the progress bars and hints that transformers writes to the terminal."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
