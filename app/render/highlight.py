"""Colours of code: which theme colour each character has, line by line. No Qt.

Colours are names of the theme's code group: keyword, string, number, comment, function, type,
operator, deleted, inserted; characters without a name have the plain colour.
"""

from __future__ import annotations

from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, _TokenType
from pygments.util import ClassNotFound

MAX_CODE_CHARS = 100_000  # beyond, code stays plain: nobody reads colours in so much of it
MAX_LINE_CHARS = 5_000  # some lexers take quadratic time on one long line

ColourRun = tuple[int, int, str]  # start and length in the line, name of the colour

_COLOURS: tuple[tuple[_TokenType, str], ...] = (
    (Token.Comment, "comment"),
    (Token.Keyword.Type, "type"),
    (Token.Keyword, "keyword"),
    (Token.Name.Function, "function"),
    (Token.Name.Class, "type"),
    (Token.Name.Builtin.Pseudo, "keyword"),
    (Token.Name.Builtin, "type"),
    (Token.Name.Decorator, "function"),
    (Token.Name.Exception, "type"),
    (Token.Name.Tag, "keyword"),
    (Token.Name.Attribute, "function"),
    (Token.Operator.Word, "keyword"),
    (Token.Operator, "operator"),
    (Token.Punctuation, "operator"),
    (Token.Literal.Number, "number"),
    (Token.Literal, "string"),
    (Token.Generic.Deleted, "deleted"),
    (Token.Generic.Inserted, "inserted"),
    (Token.Generic.Heading, "keyword"),
    (Token.Generic.Subheading, "function"),
)

_NAMES = {
    "js": "JavaScript", "javascript": "JavaScript", "ts": "TypeScript", "typescript": "TypeScript",
    "py": "Python", "python": "Python", "c++": "C++", "cpp": "C++", "c": "C", "cs": "C#",
    "csharp": "C#", "sh": "Shell", "bash": "Shell", "shell": "Shell", "zsh": "Shell",
    "html": "HTML", "css": "CSS", "json": "JSON", "yaml": "YAML", "yml": "YAML", "sql": "SQL",
    "xml": "XML", "toml": "TOML", "php": "PHP", "rs": "Rust", "rb": "Ruby", "kt": "Kotlin",
    "md": "Markdown", "go": "Go", "ini": "INI", "diff": "Diff",
}  # fmt: skip


def language_name(language: str) -> str:
    """How the head of a code block names the language: "Rust", "C++", "Code" when unknown."""
    if not language:
        return "Code"
    name = _NAMES.get(language.lower(), language[:1].upper() + language[1:])
    return name if len(name) <= 24 else name[:23] + "…"


def highlight(text: str, language: str) -> list[list[ColourRun]]:
    """Colour runs for each line of `text`; empty lists when the language is not known."""
    lines = text.split("\n")
    lexer = _lexer(language.lower()) if language else None
    if lexer is None or len(text) > MAX_CODE_CHARS or len(max(lines, key=len)) > MAX_LINE_CHARS:
        return [[] for _ in lines]
    return _runs(lexer, text, len(lines))


def _runs(lexer: Lexer, text: str, num_lines: int) -> list[list[ColourRun]]:
    runs: list[list[ColourRun]] = [[] for _ in range(num_lines)]
    line, column = 0, 0
    for token_type, value in lexer.get_tokens(text):
        colour = _colour(token_type)
        for number, part in enumerate(value.split("\n")):
            if number:
                line, column = line + 1, 0
            if part and colour and line < num_lines:
                runs[line].append((column, len(part), colour))
            column += len(part)
    return runs


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=512)
def _colour(token_type: _TokenType) -> str:
    for wanted, colour in _COLOURS:
        if token_type in wanted:
            return colour
    return ""
