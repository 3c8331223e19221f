"""Probe: how far each layer of a transformers model sees, and what it stores, read off one pass."""

from __future__ import annotations

import torch

from engine.model.universal_attention import Call, LayerFacts, NoPast, Unfit, in_layer

_HIDDEN = -1e4  # what is added to a score to hide it is lower


class Probe(NoPast):
    """Watches one pass over the two last places of a context, and computes no attention.

    What it sees tells how far each layer looks back: a window, everything, or something else.
    """

    NUM_TOKENS = 2

    def __init__(self, context_tokens: int) -> None:
        super().__init__(context_tokens - self.NUM_TOKENS)
        self.context_tokens = context_tokens
        self.facts: list[LayerFacts] = []
        self.modules: list[torch.nn.Module] = []

    def attend(self, call: Call) -> torch.Tensor:
        stored = self.take()
        window = self._window(call)
        heads, _, k_dim = call.key.shape[1:]
        facts = LayerFacts(heads, k_dim, call.value.shape[-1], window)
        if stored is not None and stored[0].shape != call.key.shape:
            facts = _latent_facts(call, stored, window) or facts
        if call.key.shape[2] != call.query.shape[2]:
            raise Unfit(in_layer(call.module, "attends to keys that its tokens do not have"))
        self.facts.append(facts)
        self.modules.append(call.module)
        shape = (1, call.query.shape[2], call.query.shape[1], call.value.shape[-1])
        return call.query.new_zeros(shape)

    def _window(self, call: Call) -> int:
        """Tokens that this layer sees; 0 = all.

        Raises:
            Unfit: it sees neither all of the past nor the newest part of it.
        """
        n, num_new = self.context_tokens, call.query.shape[2]
        if not isinstance(call.mask, torch.Tensor) or call.mask.shape[-2:] != (num_new, n):
            raise _strange(call, "does not say which tokens it sees")
        seen = call.mask.reshape(-1, num_new, n)
        if seen.dtype != torch.bool:
            if bool(((seen != 0) & (seen > _HIDDEN)).any()):
                raise _strange(call, "adds something to its scores")
            seen = seen == 0
        if bool((seen != seen[:1]).any()):
            raise _strange(call, "sees other tokens with each head")
        if bool(seen[0, 0, -1]):
            raise _strange(call, "sees what comes after a token")
        counts = seen[0].sum(-1).tolist()
        for row, count in enumerate(counts):
            newest = n - num_new + row + 1
            if not bool(seen[0, row, newest - count : newest].all()):
                raise _strange(call, "sees its text in another pattern, not back from each token")
        if counts[-1] == n and counts[0] == n - num_new + 1:
            return 0
        if len(set(counts)) == 1 and counts[0]:
            return int(counts[0])
        raise _strange(call, "attends in chunks")


def _latent_facts(
    call: Call, stored: tuple[torch.Tensor, torch.Tensor], window: int
) -> LayerFacts | None:
    """Of a layer that stores one latent and one turned part for all heads, and expands them itself;
    None for one that stores something else: there, what it attends to is kept."""
    latent, turned = stored
    one_head = (1, 1, call.query.shape[2])
    if latent.shape[:3] != one_head or turned.shape[:3] != one_head:
        return None
    if not hasattr(call.module, "expand_kv"):
        return None
    return LayerFacts(1, latent.shape[-1], turned.shape[-1], window, is_latent=True)


def _strange(call: Call, what: str) -> Unfit:
    return Unfit(in_layer(call.module, f"{what}, which this version cannot run"))
