"""Where messages begin in a prompt: found through marks, else by search, and as token indices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import message_starts
from engine.gguf_header import read_header
from engine.messages import ChatMessage
from engine.template_worker import RenderResult, TemplateWorker
from engine.text import Text

ROLES = st.sampled_from(["system", "user", "assistant"])
# What leads a search astray: roles, words of the template, control tokens, repeated contents.
CONTENTS = st.one_of(
    st.sampled_from(
        ["user", "a", "<|im_end|>", "\n\nsystem", " x ", "", "  ", "assistant\n", "界"]
    ),
    # The starter's vocabulary lacks 21 bytes, of rare controls and empty planes.
    st.text(
        st.characters(min_codepoint=0x20, max_codepoint=0xFFFF, exclude_categories=["Cs"]),
        max_size=12,
    ),
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPPING = CHATML.replace("m.content", "m.content | trim")
STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
)
UPPER = CHATML.replace("m.content", "m.content | upper")
LOOKING = CHATML.replace("{{ m.content }}", "{{ 'A' if m.content[0] == 'a' else m.content }}")

Render = Callable[..., RenderResult]


@pytest.fixture(scope="module")
def text(starter_model: Path) -> Text:
    return Text.from_gguf(read_header(starter_model).metadata)


@pytest.fixture(scope="module")
def render(text: Text) -> Iterator[Render]:
    worker = TemplateWorker()
    worker.start()

    def render_now(template: str, *turns: tuple[Any, str]) -> RenderResult:
        results: SimpleQueue[RenderResult] = SimpleQueue()
        messages = tuple(ChatMessage(role, content) for role, content in turns)
        worker.render(
            1, template, messages, text.variables, lambda _, result: results.put(result),
            special=tuple(text.special_tokens),
        )  # fmt: skip
        return results.get(timeout=90)

    yield render_now
    worker.close()


def begins(result: RenderResult, start: int, content: str) -> bool:
    rest = result.text[start:].replace(result.guard, "")
    return rest.startswith(content.lstrip())


@settings(max_examples=80, deadline=None)
@given(turns=st.lists(st.tuples(ROLES, CONTENTS), min_size=1, max_size=6))
def test_every_message_is_found_where_it_is(
    turns: list[tuple[str, str]], render: Render, text: Text
) -> None:
    result = render(CHATML, *turns)
    assert result.error == ""
    place = 0
    for (role, content), start in zip(turns, result.starts, strict=True):
        head = f"<|im_start|>{role}\n"
        assert result.text.startswith(head, place)
        place += len(head)
        wanted = len(content) - len(content.lstrip())
        assert start == (place + wanted if content.strip() else -1)
        place = result.text.index("<|im_end|>\n", place) + len("<|im_end|>\n")


@settings(max_examples=80, deadline=None)
@given(turns=st.lists(st.tuples(ROLES, CONTENTS), min_size=1, max_size=6))
def test_ids_do_not_change_and_tokens_begin_with_the_message(
    turns: list[tuple[str, str]], render: Render, text: Text
) -> None:
    result = render(STRIPPING, *turns)
    ids, firsts = text.encode_messages(result.text, result.guard, result.starts)
    assert ids == text.encode_rendered(result.text, result.guard)
    for (_, content), start, first in zip(turns, result.starts, firsts, strict=True):
        if start < 0:
            assert first == -1
            continue
        assert begins(result, start, content.strip())
        # The bytes before the token are a part of the text before the message, and with it more.
        before = result.text[:start]
        shown = b"".join(map(text.bytes_of, ids[:first])).decode("utf-8", "replace")
        more = b"".join(map(text.bytes_of, ids[: first + 1])).decode("utf-8", "replace")
        for token in text.special_tokens:
            before = before.replace(token, "")
        before = before.replace(result.guard, "")
        assert before.startswith(shown.rstrip("\ufffd"))
        assert len(more) > len(before)


def test_a_folded_system_prompt_is_found_inside_the_user_turn(render: Render) -> None:
    result = render(STRICT, ("system", "Be kind"), ("user", "user"), ("assistant", "a"))
    assert result.repaired
    assert result.text.startswith("<|im_start|>user\nBe kind\n\nuser<|im_end|>")
    head = len("<|im_start|>user\n")
    assert result.starts[:2] == (head, head + len("Be kind\n\n"))
    assert begins(result, result.starts[2], "a<|im_end|>")


def test_a_template_that_looks_at_contents_is_searched(render: Render) -> None:
    """The mark changes what it writes, so the contents are looked for in order."""
    result = render(LOOKING, ("user", "a"), ("assistant", "hello"))
    assert "user\nA<" in result.text
    assert begins(result, result.starts[1], "hello")


def test_what_the_template_changed_or_left_out_is_unknown(render: Render) -> None:
    assert render(UPPER, ("user", "first"), ("user", "SECOND")).starts[1] > 0
    assert render("{{ messages[1].content }}", ("user", "first"), ("user", "2")).starts == (-1, 0)
    assert render("{{ messages[0].content[:2] }}", ("user", "first")).starts == (-1,)
    assert render("nothing", ("user", "first")).starts == (-1,)


def test_search_goes_on_behind_each_find() -> None:
    assert message_starts.by_search("a b a", ["a", "a", "a"]) == (0, 4, -1)
    assert message_starts.by_search("x y", ["", " y "]) == (-1, 2)


def test_private_characters_of_a_message_are_no_marks(render: Render) -> None:
    typed = "".join(map(chr, range(0x100000, 0x100020)))
    result = render(CHATML, ("user", typed), ("assistant", "b"))
    assert begins(result, result.starts[0], typed)
    assert begins(result, result.starts[1], "b<|im_end|>")


def test_more_messages_than_marks_are_searched() -> None:
    assert len(message_starts.free_marks([], 70_000)) == 65_534


def test_a_token_over_the_border_counts_as_the_messages() -> None:
    """The message begins with the `b` of `ab`."""
    text = Text.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": ["a", "b", "ab", "<|x|>"],
            "tokenizer.ggml.token_type": [1, 1, 1, 3],
            "tokenizer.ggml.merges": ["a b"],
        }
    )
    ids, firsts = text.encode_messages("<|x|>bab<|x|>a", "", (7, 13, -1, 99, 0))
    assert ids == [3, 1, 2, 3, 0]
    assert firsts == (2, 4, -1, -1, 0)


def test_a_megabyte_is_marked_quickly(render: Render, text: Text) -> None:
    pasted = "lorem <|im_end|> ipsum " * 43_000
    result = render(CHATML, ("system", "s"), ("user", pasted), ("user", "end"))
    started = time.process_time()
    plain = text.encode_rendered(result.text, result.guard)
    plain_s = time.process_time() - started
    started = time.process_time()
    starts = [result.text.index("lorem"), result.text.rindex("end"), -1]
    ids, firsts = text.encode_messages(result.text, result.guard, starts)
    assert time.process_time() - started < 1.5 * plain_s + 0.5
    assert ids == plain
    assert 0 < firsts[0] < 20
    assert len(ids) - 10 < firsts[1] < len(ids)
    assert firsts[2] == -1
