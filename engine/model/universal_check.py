"""check_answers: whether a transformers model says through the pool what it says by itself.

Two short texts go through the pool packed, in chunks and token by token. A state that is carried
past the pool shows here, and so does anything else that a layer does with its past.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from engine.batch import Batch
from engine.kv_cache import KVCache, KVSpec
from engine.model.universal_attention import NAME, Unfit

_LENGTHS = (6, 4)  # of the texts
_BLOCK_TOKENS = 4  # a text crosses from one block to the next
# (text, start, stop) of each step: packed prompts, a decode beside a chunk, two decodes.
_PLANS = (((0, 0, 3), (1, 0, 2)), ((1, 2, 3), (0, 3, 5)), ((0, 5, 6), (1, 3, 4)))
_FAR_EXACT = 1e-3  # of the logits' norm
# bf16 rounds, and what it rounds grows from layer to layer: there each layer is compared by itself,
# reading what it read when the model ran alone, and the middle one counts. A token that rounding
# sends to another expert makes one layer differ; a state that is lost, all or half of them.
_FAR_ROUNDED = 0.1


class Runs(Protocol):
    """A model over the pool."""

    spec: KVSpec

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor: ...


@torch.inference_mode()
def check_answers(paged: Runs, model: Any, attentions: Sequence[torch.nn.Module]) -> None:
    """Args:
        attentions: the attention module of each layer.

    Raises:
        Unfit: the answers differ.
    """
    device = next(model.parameters()).device
    vocab = model.get_input_embeddings().weight.shape[0]
    texts = [(torch.arange(n, device=device) * 7 + 3 + n) % vocab for n in _LENGTHS]
    is_exact = model.dtype == paged.spec.kv_dtype == torch.float32
    layers = _Layers([] if is_exact else _parents(model, attentions))
    model.set_attn_implementation("eager")
    try:
        with layers.recorded():
            own = torch.stack([_own(model, text) for text in texts])
    finally:
        model.set_attn_implementation(NAME)
    num_groups = len(paged.spec.groups)
    cache = KVCache(paged.spec, 2 * len(texts) * num_groups, _BLOCK_TOKENS, device)
    for plan in _PLANS:
        with layers.compared(_rows(plan, device)):
            logits = paged.forward(_trial(texts, plan, num_groups), cache)
    off = _distance(logits, own) if is_exact else layers.distance()
    if not off < (_FAR_EXACT if is_exact else _FAR_ROUNDED):
        raise Unfit(f"does not say through the pool what it says by itself ({off:.1%} off)")


class _Layers:
    """What layers read and gave when a model ran alone, and how far off they are over the pool."""

    def __init__(self, layers: Sequence[torch.nn.Module]) -> None:
        self._layers = layers
        # Per layer and text [..., n, H].
        self._read: list[list[torch.Tensor]] = [[] for _ in layers]
        self._gave: list[list[torch.Tensor]] = [[] for _ in layers]
        self._off: list[list[float]] = [[] for _ in layers]  # per layer and step

    def distance(self) -> float:
        """Of the middle layer, in its worst step."""
        worst = sorted(max(steps) for steps in self._off)
        return worst[len(worst) // 2]

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        def hook(index: int) -> Any:
            def record(module: Any, args: Any, kwargs: Any, out: Any) -> None:
                self._read[index].append(_hidden(args, kwargs).clone())
                self._gave[index].append(_first(out).clone())

            return record

        with _hooked(
            [
                layer.register_forward_hook(hook(i), with_kwargs=True)
                for i, layer in enumerate(self._layers)
            ]
        ):
            yield

    @contextlib.contextmanager
    def compared(self, rows: torch.Tensor) -> Iterator[None]:
        """`rows` [T]: which recorded tokens, of all texts in a row, the step computes."""

        def before(index: int) -> Any:
            def replace(module: Any, args: Any, kwargs: Any) -> None:
                read = torch.cat(self._read[index], -2).index_select(-2, rows)
                _hidden(args, kwargs).copy_(read)

            return replace

        def after(index: int) -> Any:
            def compare(module: Any, args: Any, kwargs: Any, out: Any) -> None:
                gave = torch.cat(self._gave[index], -2).index_select(-2, rows)
                self._off[index].append(_distance(_first(out), gave))

            return compare

        hooks = [
            layer.register_forward_pre_hook(before(i), with_kwargs=True)
            for i, layer in enumerate(self._layers)
        ]
        hooks += [
            layer.register_forward_hook(after(i), with_kwargs=True)
            for i, layer in enumerate(self._layers)
        ]
        with _hooked(hooks):
            yield


@contextlib.contextmanager
def _hooked(hooks: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _parents(model: Any, attentions: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """The layers that hold these attention modules: those that stand in a list."""
    wanted = {id(module) for module in attentions}
    parents = []
    for name, module in model.named_modules():
        if id(module) in wanted:
            parts = name.split(".")
            number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
            parents.append(model.get_submodule(".".join(parts[: number + 1])))
    return parents


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    hidden: torch.Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden


def _first(out: Any) -> torch.Tensor:
    first: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return first


def _distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.float() - wanted.float()).norm() / wanted.float().norm().clamp_min(1e-20))


def _own(model: Any, text: torch.Tensor) -> torch.Tensor:
    """[vocab] fp32, what the model itself says after a text."""
    positions = torch.arange(text.shape[0], device=text.device)
    out = model(input_ids=text[None], position_ids=positions[None], use_cache=False)
    last: torch.Tensor = out.logits[0, -1].float()
    return last


def _rows(plan: tuple[tuple[int, int, int], ...], device: torch.device) -> torch.Tensor:
    starts = (0, _LENGTHS[0])
    return torch.cat(
        [torch.arange(starts[t] + i, starts[t] + k, device=device) for t, i, k in plan]
    )


def _trial(
    texts: list[torch.Tensor], plan: tuple[tuple[int, int, int], ...], num_groups: int
) -> Batch:
    """Text t of group g has the blocks 4 g + 2 t and the next."""
    device = texts[0].device
    places = torch.cat([torch.arange(i, k, device=device) for _, i, k in plan])
    counts = torch.tensor([k - i for _, i, k in plan], device=device)
    which = torch.tensor([t for t, _, _ in plan], device=device)
    ends = counts.cumsum(0)
    slots = which.repeat_interleave(counts) * 2 * _BLOCK_TOKENS + places
    tables = torch.stack((2 * which, 2 * which + 1), 1).int()
    return Batch(
        token_ids=torch.cat([texts[t][i:k] for t, i, k in plan]),
        positions=places,
        slots=tuple(slots + 4 * g * _BLOCK_TOKENS for g in range(num_groups)),
        cu_seqlens_q=F.pad(ends, (1, 0)).int(),
        context_lens=torch.tensor([k for _, _, k in plan], dtype=torch.int32, device=device),
        block_tables=tuple(tables + 4 * g for g in range(num_groups)),
        logit_rows=ends - 1,
        num_decodes=sum(k - i == 1 for _, i, k in plan),
    )
