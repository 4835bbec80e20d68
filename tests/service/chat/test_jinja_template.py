import hashlib
from datetime import UTC, datetime

import pytest
import transformers.utils.chat_template_utils as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_service.chat.jinja_template import ChatTemplate, TemplateLimits
from patchloom_service.errors import LimitExceeded, TemplateRefused

from tests.conftest import OFFICIAL
from tests.support.chat import TEMPLATES

ZOO = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


def render(source, limits=None, now=0.0, **variables):
    return ChatTemplate(source, limits).render(variables, now)


def as_transformers(source, **variables):
    return reference._compile_jinja_template(source).render(**variables)


FEATURES = [
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}"
    "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for x in xs %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}"
    "{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}"
    "{{ loop.revindex }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }};{% else %}none{% endfor %}",
    "{% for x in xs if x > 1 %}{{ x }}{{ loop.index0 }}{% endfor %}",
    "{% for x in tree recursive %}{{ x.name }}{% if x.kids %}({{ loop(x.kids) }}){% endif %}{% endfor %}",
    "{% for x in missing %}{{ x }}{% else %}nothing{% endfor %}",
    "{% for k, v in mapping.items() %}{{ k }}={{ v }};{% endfor %}{% for k in mapping %}{{ k }}{% endfor %}",
    "{% for c in 'word' %}{{ c }}-{% endfor %}{{ 'a' ~ 1 ~ none }}"
    "{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ '%s!' % 'x' }}",
    "{% set ns = namespace(n=0, self=1) %}{% for x in xs %}"
    "{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}{{ ns.self }}",
    "{% set out %}  {{ xs | join(',') }} {% endset %}[{{ out }}"
    "][{{ out | trim }}]{% set up | upper %}abc{% endset %}{{ up }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller else '' }}"
    "{% endmacro %}{{ m(1) }}{% call m(3, b=4) %}in{% endcall %}",
    "{{ mapping | tojson }}{{ mapping | tojson(indent=2) }}"
    "{{ text | tojson }}{{ text | tojson(ensure_ascii=True) }}",
    "{{ mapping | tojson(sort_keys=True, separators=(',', ':')) }}"
    "{{ mapping | dictsort }}{{ mapping | items | list }}",
    "{% generation %}a{% set inner = 1 %}{{ inner }}{% endgeneration %}{{ inner is defined }}",
    "{{ dict(a=1, b=2).b }}{{ text.split('<')[0] }}{{ text.strip() }}{{ text | length }}{{ text[::-1] }}",
    "  {%- if xs %}\n  yes\n  {% endif %}\n{# note #}\nend\n",
]
VALUES = {
    "xs": [1, 2, 3],
    "tree": [{"name": "a", "kids": [{"name": "b"}, {"name": "c", "kids": [{"name": "d"}]}]}, {"name": "e"}],
    "mapping": {"z": 1, "a": [1, "é", None], "<b>": {"k": "<|x|>"}},
    "text": " é<b>&'\"\n ",
}


@pytest.mark.parametrize("source", FEATURES)
def test_a_template_renders_as_in_transformers(source):
    assert render(source, **VALUES) == as_transformers(source, **VALUES)


CONTENT = st.one_of(
    st.text("ab <|>\n", max_size=8),
    st.lists(
        st.one_of(
            st.just({"type": "image"}),
            st.text("ab <|>\n", max_size=5).map(lambda t: {"type": "text", "text": t}),
        ),
        max_size=3,
    ),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": CONTENT},
        optional={
            "tool_call_id": st.sampled_from("ab"),
            "reasoning_content": st.text("ab\n", max_size=4),
            "tool_calls": st.just(
                [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": [1, "é"]}}}]
            ),
        },
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", OFFICIAL)
@settings(max_examples=25, deadline=None)
@given(messages=MESSAGES, generation=st.booleans())
def test_the_official_templates_render_as_in_transformers(official, name, messages, generation):
    _same(official(name), messages, generation)


@pytest.mark.parametrize("name", ZOO)
@settings(max_examples=15, deadline=None)
@given(messages=MESSAGES, generation=st.booleans())
def test_our_templates_render_as_in_transformers(name, messages, generation):
    _same((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), messages, generation)


def _same(source, messages, generation):
    variables = {
        "messages": messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": generation,
        "bos_token": "<s>",
    }
    assert _outcome(render, source, variables) == _outcome(as_transformers, source, variables)


def _outcome(how, source, variables):
    """The prompt, or the fault within the template."""
    try:
        return how(source, **variables)
    except TemplateRefused as error:
        return str(error.__cause__)
    except Exception as error:  # noqa: BLE001
        return str(error)


def test_now_is_the_time_given_in_utc():
    moment = datetime(2024, 2, 29, 23, 59, tzinfo=UTC)
    assert render("{{ strftime_now('%d %b %Y %H:%M') }}", now=moment.timestamp()) == "29 Feb 2024 23:59"


def test_a_macro_sees_the_time_too():
    assert render("{% macro m() %}{{ strftime_now('%Y') }}{% endmacro %}{{ m() }}") == "1970"


def test_the_words_of_the_template_are_in_the_refusal():
    with pytest.raises(TemplateRefused, match=r"refuses this conversation: Only user and assistant\."):
        render("{{ raise_exception('Only user and assistant.') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ missing.attribute }}",
        "{{ 'a' + 1 }}",
        "{{ 1 / 0 }}",
        "{{ cycler() }}",
        "{{ 'x'.center(10 ** 18) }}",
        "{{ [][1].x }}",
        "{{ none.items() }}",
        "{{ xs | map('x') }}x{{ {}['a']['b'] }}",
    ],
)
def test_a_fault_within_the_template_is_a_refusal(source):
    with pytest.raises(TemplateRefused, match="fails on this conversation"):
        render(source)


def test_endless_recursion_is_a_refusal():
    with pytest.raises(TemplateRefused, match="recursion without end"):
        render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")


@pytest.mark.parametrize("source", ["{% if %}", "{% for x in y %}", "{{ 'a' | nofilter }}"])
def test_a_template_that_does_not_compile_is_refused_at_load(source):
    with pytest.raises(TemplateRefused, match="does not compile"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace() %}{% set ns.__x__ = 1 %}",
        "{{ namespace(__init__=1) }}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(TemplateRefused):
        render(source, messages=[])


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(20) }}",
        "{% for i in range(1000) %}{% for j in range(1000) if j < 0 %}{% endfor %}{% endfor %}",
    ],
)
def test_a_run_over_the_steps_is_stopped(source):
    with pytest.raises(LimitExceeded, match="limit of 1000 steps"):
        render(source, TemplateLimits(steps=1000))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 100000 }}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}"
        "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
        "{% for i in range(5000) %}xxxxx{% endfor %}",
        "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}"
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}"
        "{% set ns.s = m(ns.s) %}{% endfor %}",
        "{{ [0] * 100000 }}",
    ],
)
def test_a_text_over_the_size_is_stopped(source):
    with pytest.raises(LimitExceeded, match="more than 10000 characters"):
        render(source, TemplateLimits(output_chars=10_000))


def test_a_huge_power_is_stopped():
    with pytest.raises(LimitExceeded, match="power"):
        render("{{ 9 ** 99999999 }}")


def test_a_run_over_the_time_is_stopped():
    with pytest.raises(LimitExceeded, match="limit of 0 seconds"):
        render("{% for i in range(99999) %}{% endfor %}", TemplateLimits(seconds=0.0))


def test_the_template_is_named_by_its_hash_and_knows_its_texts():
    template = ChatTemplate("a{{ 'b' + c['d'] }}<|x|>")
    assert template.sha256 == hashlib.sha256(template.source.encode()).hexdigest()
    assert set(template.literals) == {"a", "b", "d", "<|x|>"}
