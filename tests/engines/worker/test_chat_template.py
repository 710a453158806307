"""The sandbox a chat template runs in."""

from datetime import UTC, datetime

import pytest

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
    """Time is bounded between two pieces of output."""
    times = iter([0.0, 1.0, RENDER_LIMIT_S + 0.1])
    slow = ChatTemplate("{% for i in range(9) %}{{ i }}{% endfor %}", clock=lambda: next(times))
    with pytest.raises(ApiError) as caught:
        slow.render({}, 1000)
    assert (caught.value.status, caught.value.message) == (500, "the model's chat template took too long")


def test_a_file_with_a_broken_template_is_known_at_once():
    """A worker with such a model does not start."""
    with pytest.raises(BrokenTemplate):
        ChatTemplate("{% for %}")
