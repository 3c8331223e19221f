"""`--precision exact` on the starter model: token for token what transformers generates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import scheduler
from engine.config import EngineConfig
from engine.headless import Headless
from engine.messages import ChatMessage, SamplingParams, Submit

NUM_NEW = 48
CHATS = (
    (ChatMessage("user", "Write a packing list for three days in the mountains."),),
    (
        ChatMessage("system", "You answer in one short paragraph."),
        ChatMessage("user", "What does a compiler do?"),
    ),
    (
        ChatMessage("user", "Name a city."),
        ChatMessage("assistant", "Lisbon."),
        ChatMessage("user", "What is it known for? " * 12),
    ),
    (ChatMessage("user", "Erzähl mir etwas über 東京 und 🦊."),),
)


@pytest.fixture(scope="module")
def reference(starter_model: Path) -> list[list[int]]:
    """New tokens of each chat by transformers in fp32. Loading dequantises all: about 15 s."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {
        "gguf_file": starter_model.name,
        "trust_remote_code": False,
    }
    tokenizer = AutoTokenizer.from_pretrained(starter_model.parent, **where)
    model = AutoModelForCausalLM.from_pretrained(
        starter_model.parent, dtype=torch.float32, **where
    ).eval()
    answers = []
    for chat in CHATS:
        messages = [{"role": m.role, "content": m.content} for m in chat]
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        with torch.inference_mode():
            out = model.generate(ids, do_sample=False, max_new_tokens=NUM_NEW)
        answers.append(out[0, ids.shape[1] :].tolist())
    return answers


def submits(engine: Headless) -> list[Submit]:
    params = SamplingParams(max_tokens=NUM_NEW)
    return [
        Submit(engine.client.next_request_id(), params, messages=chat, owner=i)
        for i, chat in enumerate(CHATS)
    ]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("chunk_tokens", [16, 512])
def test_greedy_output_is_token_identical(
    reference: list[list[int]], starter_model: Path, backend: Any, chunk_tokens: int
) -> None:
    config = EngineConfig(
        precision="exact", num_blocks=200, chunk_tokens=chunk_tokens, backend=backend
    )
    with Headless(config, starter_model) as engine:
        alone = [engine.run([submit]).outcomes[0] for submit in submits(engine)]
        together = engine.run(submits(engine)).outcomes
    assert [o.token_ids for o in alone] == reference
    assert [o.token_ids for o in together] == reference


def test_warm_paused_and_forked_replies_are_token_identical(
    reference: list[list[int]], starter_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pool too small for four: each prompt is answered twice, the second answer a fork."""
    monkeypatch.setattr(scheduler, "GROWTH_BLOCKS", 0)  # let in whom there is no room for later
    config = EngineConfig(precision="exact", num_blocks=24, chunk_tokens=64)
    with Headless(config, starter_model) as engine:
        forked = engine.run(
            [
                replace(submit, siblings=(engine.client.next_request_id(),))
                for submit in submits(engine)
            ]
        )
        warm = [engine.run([submit]).outcomes[0] for submit in submits(engine) for _ in range(2)]
    assert [o.token_ids for o in forked.outcomes] == [said for said in reference for _ in range(2)]
    assert [o.token_ids for o in warm[1::2]] == reference
    usages = [o.usage for o in forked.outcomes if o.usage]
    assert sum(usage.preemptions for usage in usages) > 0
    assert forked.pool is not None
    assert forked.pool.num_copies > 0
    for outcome in warm[1::2]:
        assert outcome.usage is not None
        assert outcome.usage.cached_tokens == outcome.usage.prompt_tokens - 1
