"""The sandbox of chat templates, held against the one of transformers."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import template_child


def test_no_helper_of_transformers_is_missing() -> None:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    theirs = _compile_jinja_template("").environment
    ours = template_child._environment()
    for kind in ("globals", "filters", "tests"):
        assert getattr(ours, kind).keys() == getattr(theirs, kind).keys()
    for name in ("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "autoescape"):
        assert getattr(ours, name) == getattr(theirs, name)
    tags = [{tag for one in env.extensions.values() for tag in one.tags} for env in (ours, theirs)]
    assert tags[0] == tags[1] >= {"generation", "break", "continue"}


# Statements and values that chat templates use, in any order and depth.
VALUES = st.sampled_from(
    ["m", "m.role", "m['content']", "loop.index", "loop.last", "ns.n", "x", "tools", "nothing.at",
     "{'a': [1, none, 'ü<']}", "dict(a=1)", "dict.fromkeys([1, 2], 0)", "m.content.split('a')",
     "m.content[::-1]", "range(3) | list", "m.items() | list", "'%s' % 1", "nothing is defined",
     "m.content is string", "messages | length", "messages[0]", "ns"]
)  # fmt: skip
FILTERS = st.sampled_from(
    ["", " | tojson", " | tojson(indent=2)", " | trim", " | upper", " | string", " | length",
     " | default('d')", " | tojson(separators=(',', ':'), sort_keys=true)", " | list", " | first",
     " | join('-')", " | replace('a', 'b')", " | safe", " | e", " | int", " | reverse | list"]
)  # fmt: skip
OUTPUTS = st.builds(lambda value, how: f"{{{{ {value}{how} }}}}", VALUES, FILTERS)
BODIES = st.recursive(
    st.one_of(
        OUTPUTS,
        st.sampled_from(
            ["text\n", "  ", "{%- set x = 1 -%}\n", "{% set ns.n = ns.n + 1 %}", "\n\n", "{# c #}",
             "{% if loop.index0 %}{% continue %}{% endif %}",
             "{% if loop.last %}{% break %}{% endif %}",
             "{{ raise_exception('no') }}", "{{- m.role -}}", "{{ '<|im_end|>' }}"]
        ),
    ),
    lambda inner: st.builds(
        lambda frame, parts: frame.format("".join(parts)),
        st.sampled_from(
            ["{{% if m.role == 'user' %}}{}{{% else %}}E{{% endif %}}",
             "{{% generation %}}{}{{% endgeneration %}}",
             "{{% set y %}}{}{{% endset %}}{{{{ y }}}}", "{{% filter upper %}}{}{{% endfilter %}}"]
        ),
        st.lists(inner, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies=st.lists(BODIES, max_size=5), contents=st.lists(st.text(max_size=6), max_size=3))
def test_any_template_renders_as_in_transformers(bodies: list[str], contents: list[str]) -> None:
    """Or both refuse. In one process: only the sandbox is compared, not the pipe."""
    from transformers.utils.chat_template_utils import render_jinja_template

    source = "{%- set ns = namespace(n=0) %}\n{% for m in messages %}" + "".join(bodies)
    source += "{% endfor %}{% if add_generation_prompt %}go{% endif %}"
    messages = [{"role": "user", "content": content} for content in contents]
    reply = template_child._render(
        template_child._environment(),
        {"template": source, "limit_bytes": 1 << 22,
         "variables": {"messages": messages, "tools": None, "documents": None,
                       "add_generation_prompt": True}},
    )  # fmt: skip
    try:
        (wanted,), _ = render_jinja_template(
            [messages], chat_template=source, add_generation_prompt=True
        )
    except Exception:
        assert "text" not in reply
    else:
        assert reply == {"text": wanted}
