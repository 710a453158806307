"""The sandbox a chat template runs in."""

import itertools
import tracemalloc
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.worker.chat_template import RENDER_LIMIT_S, BrokenTemplate, ChatTemplate
from engines.worker.errors import ApiError


def render(source: str, max_chars: int = 1000, **variables) -> str:
    return ChatTemplate(source).render(variables, max_chars)


def failure(source: str, max_chars: int = 1000, **variables) -> ApiError:
    with pytest.raises(ApiError) as caught:
        render(source, max_chars, **variables)
    return caught.value


def test_blocks_are_trimmed_as_the_templates_expect():
    """A newline after a tag is the template's layout, not the prompt's."""
    assert (
        render("{% for m in messages %}\n  {%- if true %}\n<{{ m }}>\n  {% endif %}\n{% endfor %}\n", messages=[1, 2])
        == "<1>\n<2>\n"
    )


def test_the_dialect_of_published_templates_works():
    """Loop controls, the generation block, tojson with non-ASCII and no HTML escapes, and today's date."""
    assert render("{% for x in [1,2,3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "1"
    assert render("a{% generation %}b{{ x }}{% endgeneration %}c", x=1) == "ab1c"
    assert render("{{ t | tojson }}", t={"a": "ü<b>&'"}) == """{"a": "ü<b>&'"}"""
    assert render("{{ t | tojson(indent=2) }}", t=[1]) == "[\n  1\n]"
    fixed = ChatTemplate("{{ strftime_now('%d %b %Y') }}", today=lambda: datetime(2026, 11, 30, tzinfo=UTC))
    assert fixed.render({}, 100) == "30 Nov 2026"


def test_a_template_may_refuse_messages():
    """`raise_exception` is the template's word to the client, hence 400."""
    error = failure("{{ raise_exception('roles must alternate') }}")
    assert (error.status, error.param) == (400, "messages")
    assert "roles must alternate" in error.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ a.b.c }}",
        "{{ 1 / 0 }}",
        "{{ 'x' + 1 }}",
        "{{ [].append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__globals__.x }}",
        "{{ missing() }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_a_500(source):
    """The model's file is at fault, not the client, and the sandbox holds."""
    error = failure(source, messages=[])
    assert error.status == 500
    assert "template" in error.message


def test_a_prompt_longer_than_the_bound_is_refused_while_it_is_written():
    """An endless template cannot fill the memory."""
    error = failure(
        "{% for i in range(100000) %}{% for j in range(100000) %}xxxxxxxx{% endfor %}{% endfor %}", max_chars=100
    )
    assert (error.status, error.code) == (400, "context_length_exceeded")


def test_a_template_that_takes_too_long_is_ended():
    """Time is looked at whenever a step is spent."""
    times = iter([0.0, 1.0, RENDER_LIMIT_S + 0.1])
    slow = ChatTemplate("{% for i in range(9) %}{{ i }}{% endfor %}", clock=lambda: next(times))
    with pytest.raises(ApiError) as caught:
        slow.render({}, 1000)
    assert (caught.value.status, caught.value.message) == (500, "the model's chat template took too long")


def test_a_file_with_a_broken_template_is_known_at_once():
    """A worker with such a model does not start."""
    with pytest.raises(BrokenTemplate):
        ChatTemplate("{% for %}")


GROW = "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set BODY %}{% endfor %}{{ ns.s }}"
CHAIN = (
    "{% set x = [1] * 9999 %}{% set ns = namespace() %}{% macro m() %}{% set ns.a = namespace(x=COPY, a=ns.a) %}"
    "{% endmacro %}{% for i in range(400) %}{{ m(GIVEN) }}{% endfor %}"
)
BOMBS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% if range(9999) | list | length %}{% endif %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{{ 'x' * 10**9 }}",
    "{{ 10**9 * 'x' }}",
    "{{ [1] * 10**9 }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(width=10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ 2 ** (10**9) }}",
    "{% set ns = namespace(s=7) %}{% for i in range(60) %}{% set ns.s = ns.s * ns.s %}{% endfor %}",
    *(
        GROW.replace("BODY", body)
        for body in (
            "ns.s = ns.s + ns.s",
            "ns.s = ns.s ~ ns.s",
            "ns.s = [ns.s, ns.s] | join",
            "ns.s = ns.s.join([ns.s, ns.s, ns.s])",
            "ns.s = ns.s | replace('x', 'xx')",
            "ns.s = ns.s.replace('x', 'xx')",
            "ns.s = ns.s.translate({120: 'xx'})",
            "ns.s = [ns.s, ns.s]",
            "ns.s = (ns.s, ns.s)",
            "ns.s = {'a': ns.s, 'b': ns.s}",
            "ns.s = dict(a=ns.s, b=ns.s)",
            "ns.s = [ns.s, ns.s] | tojson",
            "ns.s %}{{ ns.s }}{{ ns.s }}{% endset",
        )
    ),
    "{% filter upper %}{% for i in range(99999) %}" + "y" * 1000 + "{% endfor %}{% endfilter %}",
    "{% set x %}{% for i in range(99999) %}" + "y" * 1000 + "{% endfor %}{% endset %}",
    "{{ 1.5 | round(30000000, 'ceil') }}",
    "{{ 5 | round(-30000000) }}",
    "{{ [[1] * 1000] * 10000 }}",
    "{{ raise_exception([[1] * 1000] * 10000) }}",
    "{{ ([[1] * 1000] * 10000) ~ '' }}",
    "{% set ns = namespace(a=['x' * 9999]) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "{{ ([1] * 999) | tojson(separators=('a' * 99999, ':')) | length }}",
    "{{ ([[1] * 99] * 999) | tojson(indent=10**9) | length }}",
    "{{ ([0] * 999) | map(attribute='x', default='y' * 99999) | list }}",
    "{{ ([0] * 999) | map(attribute='x', default=[1] * 99999) | list }}",
    "{{ 'xxxxxxxxx'.join(range(99999) | map('string')) ~ ('x' * 9999).join(range(9999) | map('string')) }}",
    "{% set x = ['y' * 9999] %}{% set y %}{% for i in range(999) %}{{ x }}{{ {'x': x}.items() }}{% endfor %}{% endset %}",
    "{{ ('x' * 9999) | trim('y' * 9999 ~ 'x') }}",
    "{{ ('x' * 9999).strip('y' * 9999 ~ 'x') }}",
    "{{ ([1, 2] * 9999) | sum }}",
    "{{ ([1] * 19999) | unique | list }}",
    "{% for x in [[1] * 99999] recursive %}{% if loop.depth == 1 %}{{ loop(x) }}{% endif %}{% endfor %}",
    "{% set x = [1.5] * 9 %}{% for i in range(99) %}{% if x" + " == x" * 102 + " %}{% endif %}{% endfor %}",
    "{% set y = {1: 2} %}{% for i in range(99) %}{% if 1" + " and y[1]" * 102 + " %}{% endif %}{% endfor %}",
    CHAIN.replace("COPY", "x[:]").replace("GIVEN", ""),
    CHAIN.replace("COPY", "varargs").replace("GIVEN", "*x"),
    "{% set x = 'y' * 999999 %}" + "".join(f"{{% set x{i} = x[{i}:] %}}" for i in range(9)),
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_template_that_explodes_is_ended_before_it_does(source):
    """No loop, macro, operator, method or filter makes more than the budget, in time or in memory."""
    looks = itertools.count()
    template = ChatTemplate(source, clock=lambda: next(looks) * 5e-4)  # 10,000 looks are the limit
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as caught:
            template.render({}, 1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.status == 500
    assert peak < 200 << 20


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}{{ fail() }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ '' | attr('__class__') | attr('__mro__') | first }}{{ fail() }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ ('{0.__class__}' | string).format_map({}) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ (0).to_bytes(10**9, 'big') }}",
        "{{ 'xé'.encode('punycode') }}",
        "{{ ('x' * 9999).translate({120: 'y' * 9999}) }}",
        "{{ {}.fromkeys(range(99999), [1] * 9999) }}",
        "{{ ([[1] * 9999] * 9999) | sum(start=[]) }}",
        "{{ range(0, 9 * 2**29 * 2**29 * 9) }}",
        "{{ ('9' * 99) | int }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lipsum(n=10**8) }}",
        "{{ self._TemplateReference__context.environment.x }}{{ fail() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
        "{{ messages.clear() }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ strftime_now('%1000000000d') }}",
        "{{ range(10**9) | list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    ],
)
def test_ways_out_of_the_sandbox_are_shut(source):
    """Attributes, formats, loaders, mutation and recursion: each ends its own request only."""
    assert failure(source, messages=[{"role": "user"}]).status == 500


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' | center(10**9) }}",
        "{{ 'x' | wordwrap(1) }}",
        "{{ _spend(-10**9) }}",
        "{% set _turns = 1 %}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% for i in x %}" * 30 + "{% endfor %}" * 30,
        "{# " + "x" * (1 << 18) + " #}",
        "{{ {2305843009213693951: 1} }}",
        "{% if a %}\n{% endfor %}",
    ],
)
def test_a_template_that_cannot_be_run_safely_is_known_at_once(source):
    """Before anybody asks, in one line."""
    with pytest.raises(BrokenTemplate) as caught:
        ChatTemplate(source)
    assert "\n" not in str(caught.value)


def test_what_real_templates_do_costs_little():
    """Fifty thousand messages through filters, tests, loops and operators stay far within the budget."""
    source = (
        "{% for m in messages %}{% if loop.index0 % 2 == 0 and m.role is string %}{{ '<' + m.role ~ '>' }}"
        "{{ m.content | trim }}{% set n = messages | length - 1 %}{% endif %}{% if loop.last %}{{ n }}{% endif %}"
        "{% endfor %}{{ messages[-1:] | map(attribute='role') | list | join(',') }}{{ 'a' * 3 }}"
    )
    messages = [{"role": "user", "content": " some words "}] * 50_000
    rendered = render(source, max_chars=2_000_000, messages=messages)
    assert rendered.count("<user>some words") == 25_000
    assert rendered.endswith("useraaa")


@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    "{{ ",
                    " }}",
                    "{% for i in ",
                    " %}",
                    "{% endfor %}",
                    "{% if ",
                    "{% endif %}",
                    "{% set x = ",
                    "x",
                    "m",
                    "'a'",
                ),
                *(
                    "range(9**9)",
                    "range(9)",
                    " * ",
                    " ** ",
                    " ~ ",
                    " + ",
                    " % ",
                    "|join",
                    "|list",
                    "|tojson",
                    "9",
                    "99999999",
                ),
                *(
                    ".__class__",
                    ".format(x)",
                    ".replace('a', 'aa')",
                    "[0]",
                    "[x, x]",
                    "(",
                    ")",
                    "loop.index",
                    "x.x",
                    "{#",
                    "\n",
                ),
            ]
        ),
        max_size=25,
    ).map("".join)
)
@settings(max_examples=300, deadline=None)
def test_any_template_renders_or_fails_in_a_known_way(source):
    """Fuzzed: a prompt, a refusal, or a file that is known to be broken; never another exception."""
    try:
        text = ChatTemplate(source).render({"m": [{"x": "a"}], "x": "a"}, 1000)
    except (ApiError, BrokenTemplate):
        return
    assert len(text) <= 1000
