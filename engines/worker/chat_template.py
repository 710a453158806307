"""A model's chat template, run in a sandbox with bounds on its output and its time. Knows Jinja, no tokens.

The dialect is the one Hugging Face's templates are written in: trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, a `tojson` that keeps non-ASCII, and the `generation` block, which changes nothing here.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from engines.worker.errors import ApiError, invalid

RENDER_LIMIT_S = 5.0  # chosen; a normal template takes well under a millisecond a message

_TEMPLATE_BUGS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)


class TemplateRejection(jinja2.TemplateError):
    """The template itself refused these messages, by `raise_exception`."""


class BrokenTemplate(Exception):
    """The model's template is no template; the model cannot chat."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`: marks what the model said, for training; here only its contents count."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own convention

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """The block's contents in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class ChatTemplate:
    """One compiled template. Thread-safe: each rendering has its own context."""

    def __init__(
        self,
        source: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC).astimezone(),
    ) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _reject
        environment.globals["strftime_now"] = lambda form: today().strftime(form)
        self._clock = clock
        self.knows_developer = "developer" in source
        try:
            self._template = environment.from_string(source)
        except _TEMPLATE_BUGS as error:
            raise BrokenTemplate(f"the model's chat template cannot be read: {error}") from error

    def render(self, variables: Mapping[str, Any], max_chars: int) -> str:
        """The prompt, of at most `max_chars`.

        Raises `ApiError`: 400 when the template refuses the messages or the prompt is too long, 500 when the template
        breaks or takes longer than `RENDER_LIMIT_S`.
        """
        deadline = self._clock() + RENDER_LIMIT_S
        parts: list[str] = []
        num_chars = 0
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                num_chars += len(part)
                if num_chars > max_chars:
                    raise invalid(
                        "messages", "the messages are longer than the context", code="context_length_exceeded"
                    )
                if self._clock() > deadline:
                    raise ApiError(500, "the model's chat template took too long")
        except TemplateRejection as error:
            raise invalid("messages", f"the model's chat template refuses these messages: {error.message}") from None
        except _TEMPLATE_BUGS as error:
            raise ApiError(500, "the model's chat template failed on these messages") from error
        return "".join(parts)


def _reject(message: object) -> NoReturn:
    raise TemplateRejection(str(message)[:200])


def _to_json(  # the parameters of Hugging Face's filter
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON that is read by a model, not by a browser: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
