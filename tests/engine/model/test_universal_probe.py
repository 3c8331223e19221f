"""How far a layer sees, read off its mask; what it stores, read off its calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.model.universal_attention import Call, Unfit, attention, mask, register
from engine.model.universal_probe import Probe

CONTEXT = 40
HIDDEN = torch.finfo(torch.float32).min


def call(seen: object, module: torch.nn.Module | None = None) -> Call:
    heads = torch.zeros(1, 6, 2, 8)
    kv = torch.zeros(1, 2, 2, 8)
    return Call(module or torch.nn.Identity(), heads, kv, kv[..., :5], seen, 1.0, 0.0, None)


def seen_by(rule: object) -> torch.Tensor:
    """[1, 1, 2, CONTEXT], as the model's own mask function would say it."""
    places = torch.arange(CONTEXT)
    return rule(places[-2:, None], places[None])[None, None]


def full(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return k <= q


def window(size: int) -> object:
    return lambda q, k: full(q, k) & (k > q - size)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(full, 0), (window(1), 1), (window(7), 7), (window(38), 38), (window(39), 39),
     (window(40), 0), (window(1000), 0)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_windows_are_read_off_the_mask(rule, expected, kind):
    seen = seen_by(rule)
    probe = Probe(CONTEXT)
    out = probe.attend(call(seen if kind == "bool" else torch.where(seen, 0.0, HIDDEN)))
    assert out.shape == (1, 2, 6, 5)
    [facts] = probe.facts
    assert facts.window == expected
    assert (facts.num_kv_heads, facts.k_dim, facts.v_dim) == (2, 8, 5)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (seen_by(lambda q, k: full(q, k) & (k // 16 == q // 16)), "chunks"),
        (seen_by(lambda q, k: full(q, k) & (k // 39 == q // 39)), "chunks"),
        (seen_by(lambda q, k: full(q, k) & ((q - k) % 2 == 0)), "another pattern"),
        (seen_by(lambda q, k: full(q, k) & (k != 3)), "another pattern"),
        (seen_by(lambda q, k: (q >= 0) & (k >= 0)), "comes after"),
        (torch.stack((seen_by(full)[0], seen_by(window(3))[0]), 1), "each head"),
        (seen_by(lambda q, k: torch.where(full(q, k), -0.5 * (q - k), HIDDEN)), "to its scores"),
        (None, "does not say"),
        (seen_by(full)[..., -2:], "does not say"),
        ("full_attention", "does not say"),
    ],
)
def test_other_patterns_are_refused(seen, words):
    with pytest.raises(Unfit, match=words) as caught:
        Probe(CONTEXT).attend(call(seen))
    assert "Identity" in str(caught.value)


def test_latents_are_told_from_heads():
    class Expands(torch.nn.Module):
        def expand_kv(self) -> None: ...

    latent, turned = torch.zeros(1, 1, 2, 20), torch.zeros(1, 1, 2, 4)
    for module, is_latent in ((Expands(), True), (torch.nn.Identity(), False)):
        probe = Probe(CONTEXT)
        probe.update(latent, turned, 0)
        probe.attend(call(seen_by(full), module))
        [facts] = probe.facts
        sizes = (1, 20, 4) if is_latent else (2, 8, 5)
        assert (facts.num_kv_heads, facts.k_dim, facts.v_dim, facts.is_latent) == (
            *sizes,
            is_latent,
        )


def test_a_call_is_understood_wholly_or_refused():
    module, x = torch.nn.Identity(), torch.zeros(1, 2, 2, 8)
    seen = seen_by(full)
    harmless = {"dropout": 0.0, "sliding_window": 4, "is_causal": True, "use_cache": False}
    attention(module, x, x, x, seen, paged_step=Probe(CONTEXT), odd=None, off=False, **harmless)
    for asked, words in (({"indices": x}, "indices"), ({"is_causal": False}, "both directions")):
        with pytest.raises(Unfit, match=words):
            attention(module, x, x, x, seen, paged_step=Probe(CONTEXT), **asked)
    with pytest.raises(Unfit, match="hand on"):
        attention(module, x, x, x, seen)


def test_a_step_makes_no_mask():
    def rule(batch: object, head: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return k <= q

    assert mask(1, 7, 7, rule, q_offset=0, device=torch.device("cpu")) is None
    got = mask(1, 2, CONTEXT, rule, q_offset=CONTEXT - 2, device=torch.device("cpu"))
    assert torch.equal(got, seen_by(full))


def test_registering_twice_is_harmless():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = dict(ALL_ATTENTION_FUNCTIONS)
    register()
    register()
    added = set(ALL_ATTENTION_FUNCTIONS) - set(before)
    assert added <= {"tessera_paged"}
    assert ALL_ATTENTION_FUNCTIONS["tessera_paged"] is attention
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before["sdpa"]


def test_nobody_pays_for_transformers_who_does_not_need_it():
    code = (
        "import sys, engine.model.loader, engine.model.universal\n"
        "assert 'transformers' not in sys.modules"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)
