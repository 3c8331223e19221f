"""A chat as one HTML page that needs nothing else: no script, no font, no image, no network."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from app.export.rendered import reply_html
from app.export.words import about_words, reply_words
from app.records import SessionRecord, TurnRecord
from app.render.resources import tokens

_CODE_COLOURS = (
    "keyword", "string", "number", "comment", "function", "type", "operator", "deleted", "inserted",
)  # fmt: skip

_NOT_HTML = re.compile("[\x00\ud800-\udfff]")  # no browser takes them, and no disk the second kind

_PAGE = """<!DOCTYPE html>
<html lang="und">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="small">{about}</p>
{body}
</main>
</body>
</html>
"""

_RULES = """\
body { margin: 0; background: var(--content); color: var(--primary); font: 14px/22px $ui; }
main { max-width: 680px; margin: 0 auto; padding: 32px 16px 48px; }
h1 { font-size: 20px; line-height: 28px; font-weight: 600; margin: 0; }
.reply h1, .reply h2 { font-size: 20px; line-height: 28px; font-weight: 600; }
.reply h3, .reply h4, .reply h5, .reply h6 { font-size: 14px; font-weight: 600; }
.small { color: var(--tertiary); font-size: 12px; line-height: 16px; margin: 4px 0 24px; }
.user, .system { white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 8px; }
.user { background: var(--fill); padding: 12px 16px; margin: 24px -16px 16px; }
.system { color: var(--secondary); border: 1px solid var(--hairline); padding: 12px 16px; }
.reply { overflow-wrap: anywhere; }
.error { color: var(--error); }
pre { background: var(--code); border: 1px solid var(--hairline); border-radius: 8px;
  padding: 12px 16px; overflow-x: auto; }
pre, code { font: 13px/20px $mono; font-variant-ligatures: none; }
pre { white-space: pre; overflow-wrap: normal; }
a { color: var(--accent); }
blockquote { margin: 0; padding-left: 16px; border-left: 2px solid var(--hairline); }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--hairline); padding: 4px 8px; text-align: left; }
hr { border: 0; border-top: 1px solid var(--hairline); }
@media print { pre { white-space: pre-wrap; } .user { break-inside: avoid; } }"""


def to_html(session: SessionRecord) -> bytes:
    body = []
    if session.system_prompt:
        body.append(f'<div class="system">{escape(session.system_prompt)}</div>')
    body += [_turn(turn) for turn in session.turns]
    page = _PAGE.format(
        title=escape(session.title),
        style=style_rules(),
        about=escape(about_words(session)),
        body="\n".join(body),
    )
    return _NOT_HTML.sub("\ufffd", page).encode()


def _turn(turn: TurnRecord) -> str:
    parts = [f'<div class="user">{escape(turn.user_text)}</div>']
    reply = turn.reply
    if reply is not None:
        text = reply_html(reply.text, lambda colour: f'class="{colour}"')
        words = escape(" · ".join(filter(None, (reply.model, reply_words(reply)))))
        kind = "small error" if reply.state == "failed" else "small"
        parts += [f'<div class="reply">{text}</div>', f'<p class="{kind}">{words}</p>']
    return "\n".join(parts)


def style_rules() -> str:
    """The page's style sheet: colours of both themes from the tokens, the system chooses."""
    kinds = tokens()["type"]
    rules = _RULES.replace("$ui", _families(kinds["ui"])).replace("$mono", _families(kinds["mono"]))
    code = "\n".join(f".{name} {{ color: var(--{name}); }}" for name in _CODE_COLOURS)
    light, dark = _variables(tokens()["light"]), _variables(tokens()["dark"])
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{rules}\n{code}"
    )


def _variables(theme: dict[str, Any]) -> str:
    values = {
        "content": theme["background"]["content"],
        "fill": theme["background"]["fill"],
        "primary": theme["text"]["primary"],
        "secondary": theme["text"]["secondary"],
        "tertiary": theme["text"]["tertiary"],
        "hairline": theme["hairline"],
        "accent": theme["accent"]["base"],
        "error": theme["error"]["base"],
        "code": theme["code"]["background"],
    } | {name: theme["code"][name] for name in _CODE_COLOURS}
    return " ".join(f"--{name}: {value};" for name, value in values.items())


def _families(names: list[str]) -> str:
    return ", ".join(
        name if name.endswith("serif") or name == "monospace" else f'"{name}"' for name in names
    )
