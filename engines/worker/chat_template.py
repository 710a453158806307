"""A model's chat template, run in a sandbox with bounds on its output, its steps and its time. Knows Jinja, no tokens.

The dialect is the one Hugging Face's templates are written in: trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, a `tojson` that keeps non-ASCII, and the `generation` block, which changes nothing here.
"""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from engines.worker.errors import ApiError, invalid
from engines.worker.template_sandbox import BoundedEnvironment, Budget
from engines.worker.template_sizes import Exhausted

RENDER_LIMIT_S = 5.0  # chosen; a normal template takes well under a millisecond a message
MAX_SOURCE_CHARS = 1 << 18  # chosen; published templates have up to 20 thousand, and compiling takes 600 MB a million
_SPARE_STEPS, _STEPS_A_CHAR = 2_000_000, 16  # real templates handle each character a handful of times
_MOST_STEPS = 64_000_000  # whatever the context; each may be 4 bytes of text
RESERVED_NAMES = frozenset({"raise_exception", "strftime_now", "range", "dict", "namespace", "loop", "self", "caller"})

_TEMPLATE_BUGS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
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
    """One compiled template. Thread-safe: each rendering has its own context and budget.

    `knows_developer`, `knows_tools`: whether it mentions them at all.
    """

    def __init__(
        self,
        source: str,
        *,
        limit_s: float = RENDER_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC).astimezone(),
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise BrokenTemplate("the model's chat template is too long")
        self._environment = BoundedEnvironment(["jinja2.ext.loopcontrols", _GenerationBlock])
        self._environment.globals["raise_exception"] = _reject
        self._environment.globals["strftime_now"] = lambda form: _date(today(), form)
        self._limit_s = limit_s
        self._clock = clock
        self.knows_developer = "developer" in source
        self.knows_tools = re.search(r"\btools\b", source) is not None
        try:
            self._template = self._environment.compile_bounded(source)
        except (*_TEMPLATE_BUGS, SyntaxError) as error:
            why = " ".join(str(error).split())[:200] or "it needs too much memory"
            raise BrokenTemplate(f"the model's chat template cannot be read: {why}") from error

    def render(self, variables: Mapping[str, Any], max_chars: int) -> str:
        """The prompt, of at most `max_chars`.

        Raises `ApiError`: 400 when the template refuses the messages or the prompt is too long, 500 when the template
        breaks, does too much or takes longer than `limit_s`.
        """
        deadline = self._clock() + self._limit_s
        self._environment.use(Budget(min(_SPARE_STEPS + _STEPS_A_CHAR * max_chars, _MOST_STEPS), deadline, self._clock))
        try:
            return self._rendered(variables, max_chars)
        except TemplateRejection as error:
            raise invalid("messages", f"the model's chat template refuses these messages: {error.message}") from None
        except Exhausted as error:
            raise ApiError(500, "the model's chat template took too long") from error
        except _TEMPLATE_BUGS as error:
            raise ApiError(500, "the model's chat template failed on these messages") from error
        finally:
            self._environment.use(None)

    def _rendered(self, variables: Mapping[str, Any], max_chars: int) -> str:
        parts: list[str] = []
        num_chars = 0
        for part in self._template.generate(variables):
            parts.append(part)
            num_chars += len(part)
            if num_chars > max_chars:
                raise invalid("messages", "the messages are longer than the context", code="context_length_exceeded")
        return "".join(parts)


def _reject(message: object) -> NoReturn:
    raise TemplateRejection(str(message)[:200])


def _date(now: datetime, form: str) -> str:
    """A date as the template wants it; fields of a width of their own are refused."""
    if len(form) > 64 or re.search(r"%[^%A-Za-z]", form):
        raise ValueError("not a form for a date")
    return now.strftime(form)
