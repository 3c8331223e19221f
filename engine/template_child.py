"""The child process that renders chat templates. Owns the Jinja sandbox and its helpers.

Run as a script by `engine.template_worker`, never imported by it: requests come as lines of JSON
on stdin, answers go as lines of JSON to stdout, and the end of stdin is the end of the process.
Chat templates come with downloaded models, so they are hostile until proven otherwise: they get
a sandbox, plain JSON values, a limit of memory and of time.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import functools
import json
import os
import sys
from typing import Any

_MEMORY_BYTES = 1 << 30
_ERROR_LETTERS = 1000


def main() -> None:
    _limit_memory()
    environment = _environment()
    # Binary streams: the same on every system, whatever its code page and line ends.
    answer = functools.partial(_answer, sys.stdout.buffer)
    answer({"ready": True})
    with open(os.devnull, "w") as nowhere:
        for line in sys.stdin.buffer:
            request = json.loads(line)
            # Should the parent be gone, nobody else would end an endless loop.
            faulthandler.dump_traceback_later(request["alone_s"], exit=True, file=nowhere)
            reply = _render(environment, request)
            faulthandler.cancel_dump_traceback_later()
            answer(reply)


def _answer(stream: Any, reply: dict[str, Any]) -> None:
    stream.write(json.dumps(reply).encode("ascii") + b"\n")
    stream.flush()


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _render(environment: Any, request: dict[str, Any]) -> dict[str, Any]:
    """{"text"} or {"error", "kind"}, kind one of syntax, refused, failed, size."""
    from jinja2.exceptions import TemplateError, TemplateSyntaxError

    limit = request["limit_bytes"]
    try:
        template = _compiled(environment, request["template"])
        parts, size = [], 0
        for part in template.generate(**request["variables"]):
            size += len(part.encode("utf-8", "replace"))
            if size > limit:
                return {"error": "", "kind": "size"}
            parts.append(part)
        return {"text": "".join(parts)}
    except TemplateSyntaxError as error:
        return {"error": _cut(f"line {error.lineno}: {error.message}"), "kind": "syntax"}
    except TemplateError as error:
        return {"error": _cut(error.message or type(error).__name__), "kind": "refused"}
    except (MemoryError, RecursionError) as error:
        return {"error": type(error).__name__, "kind": "size"}
    except Exception as error:  # whatever a template does ends as its own error, nothing more
        return {"error": _cut(f"{type(error).__name__}: {error}"), "kind": "failed"}


def _cut(words: str) -> str:
    """A template may raise a gigabyte."""
    return words[:_ERROR_LETTERS]


@functools.lru_cache(maxsize=8)
def _compiled(environment: Any, source: str) -> Any:
    return environment.from_string(source)


def _environment() -> Any:
    """A sandbox with every helper that transformers gives to chat templates."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}...{% endgeneration %}` marks the assistant's text for training."""

        tags = {"generation"}  # noqa: RUF012 - the name and form that Jinja asks for

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # A block that is called, as there, so that names and loops are seen alike inside.
            call = self.call_method("_unchanged")
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _unchanged(self, caller: Any) -> Any:
            return caller()

    def raise_exception(message: Any) -> None:
        raise TemplateError(str(message))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _namespace_class()
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter escapes HTML characters."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Dict:
    """`dict` without what else hangs on the type."""

    def __call__(self, *pairs: Any, **values: Any) -> dict[Any, Any]:
        return dict(*pairs, **values)

    def fromkeys(self, *keys: Any, **values: Any) -> dict[Any, Any]:
        return dict.fromkeys(*keys, **values)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _namespace_class() -> type:
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    class PlainNamespace(Namespace):
        """A namespace whose names cannot reach Python's internals."""

        def __init__(*args: Any, **values: Any) -> None:
            self, *rest = args
            for name in {**dict(*rest), **values}:
                _refuse_private(name)
            Namespace.__init__(self, *rest, **values)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_private(name)
            super().__setitem__(name, value)

    def _refuse_private(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold the name {name!r}")

    return PlainNamespace


if __name__ == "__main__":
    main()
