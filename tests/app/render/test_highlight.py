"""Colours of code: names per line, and plain where nothing is known."""

from __future__ import annotations

import time

from app.render.highlight import highlight, language_name


def test_python_gets_colours_in_every_line():
    runs = highlight('def f(x):\n    """doc\n    more"""\n    return 1  # one', "python")
    assert (0, 3, "keyword") in runs[0]
    assert (4, 1, "function") in runs[0]
    assert [colour for _, _, colour in runs[2]] == ["string"]
    assert {"keyword", "number", "comment"} <= {colour for _, _, colour in runs[3]}


def test_an_unknown_language_stays_plain():
    assert highlight("a\nb\n", "no-such-language") == [[], [], []]
    assert highlight("a", "") == [[]]


def test_a_very_long_line_is_left_plain_at_once():
    start = time.perf_counter()
    assert highlight("x" * 200_000, "python") == [[]]
    assert time.perf_counter() - start < 1


def test_names_of_languages():
    assert [language_name(n) for n in ("rust", "cpp", "", "sh")] == ["Rust", "C++", "Code", "Shell"]
    assert len(language_name("x" * 500)) <= 24
