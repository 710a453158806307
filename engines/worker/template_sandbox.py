"""A Jinja sandbox that also bounds what a template may use: text made and steps taken, each in one budget a rendering.

Jinja's own sandbox keeps templates from reaching Python's insides; it bounds neither loops that print nothing, nor
`'x' * 10**9`, nor text doubled by a loop. Here every loop, macro, filter and call spends steps, and whatever makes
text or a list spends its length before it is made. Constants are folded while compiling, under the same rules.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import jinja2.utils
from jinja2.exceptions import SecurityError

from engines.worker.template_meter import BUILT, JOINED, SPEND, TURNS, Metered

MAX_WIDTH = 1000  # of padding, indents and number formats; chosen
_MAX_INT_BITS = 4096  # of numbers that templates compute; chosen
_COMPILE_STEPS = 1_000_000  # for constants folded while compiling; chosen
# Left out: they pad or build without bound, draw at random, or make HTML.
_NO_FILTERS = (
    *("center", "wordwrap", "urlize", "xmlattr", "striptags", "pprint", "random", "filesizeformat", "batch", "slice"),
    *("wordcount", "urlencode", "groupby"),
)
# Do not look at all members of a list, which templates use in loops over that list.
_CHEAP_FILTERS = frozenset({"length", "count", "first", "last", "default", "d", "items", "map", "select", "selectattr"})
_NO_GLOBALS = ("lipsum", "cycler", "joiner")
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})


class Exhausted(jinja2.TemplateError):
    """A template used more than its budget."""


class Budget:
    """What one rendering may still use. `steps` count time and text alike: one for a loop's turn or a character."""

    def __init__(self, steps: int, deadline: float, clock: Callable[[], float]) -> None:
        self._steps = steps
        self._deadline = deadline
        self._clock = clock

    def spend(self, steps: int = 1) -> None:
        """Raise `Exhausted` if there are not so many left, or the time is up."""
        self._steps -= steps
        if self._steps < 0:
            raise Exhausted("the template does too much")
        if self._clock() > self._deadline:
            raise Exhausted("the template takes too long")


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox. A rendering runs in one thread, inside `use`."""

    intercepted_binops = frozenset({"+", "*", "**", "%", "//", "/", "-"})

    def __init__(self, extensions: list[Any]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=self._finalized)
        self._current = threading.local()
        for name in _NO_FILTERS:
            del self.filters[name]
        for name in _NO_GLOBALS:
            del self.globals[name]
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = self._dict
        self.filters["join"] = _join
        self.filters["replace"] = _replace
        self.filters["indent"] = _indent
        self.filters["format"] = _format
        calls: dict[str, Any] = {**self.filters}
        self.filters = {
            name: self._spending(call, _text_size if name in _CHEAP_FILTERS else _size) for name, call in calls.items()
        }
        tests: dict[str, Any] = {**self.tests}
        self.tests = {name: self._spending(call, _text_size) for name, call in tests.items()}

    def use(self, budget: Budget | None) -> None:
        """What this thread's renderings spend from now on; None ends it."""
        self._current.budget = budget

    def compile_bounded(self, source: str) -> jinja2.Template:
        """A template whose loops, macros and text spend steps. Raises what Jinja raises."""
        self.use(Budget(_COMPILE_STEPS, float("inf"), time.monotonic))
        try:
            tree = self.parse(source)
            Metered().visit(tree)
            tree.set_environment(self)
            code = self.compile(tree)
            variables = {SPEND: self.spend, TURNS: self._turns, JOINED: self._joined, BUILT: self._built}
            return self.template_class.from_code(self, code, self.make_globals(variables))
        finally:
            self.use(None)

    def spend(self, steps: int = 1) -> str:
        """Spend of the current budget; prints nothing."""
        budget: Budget | None = getattr(self._current, "budget", None)
        assert budget is not None, "rendering happens inside `use`"
        budget.spend(steps)
        return ""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The result of an operator, if it is small enough."""
        self.spend()
        if operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not allowed")
        if operator == "*":
            self._check_product(left, right)
        elif operator == "**":
            if _bits(left) * abs(right) > _MAX_INT_BITS:
                raise Exhausted("a number is too large")
        elif operator == "+" and not isinstance(left, int | float):
            self.spend(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: PYI063  # Jinja's
        """A call of a function or method, if what it makes is small enough."""
        self.spend(1 + sum(_text_size(arg) for arg in (*args, *kwargs.values())))
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            _check_text_call(name, owner, args, kwargs, self.spend)
        elif isinstance(owner, int | float | bytes):
            raise SecurityError("methods of numbers are not allowed")
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuse `str.format`, whose widths nobody can bound beforehand."""
        if super().wrap_str_format(value) is None:
            return None
        raise SecurityError("str.format is not allowed")

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int | float) and isinstance(right, int | float):
            if _bits(left) + _bits(right) > _MAX_INT_BITS:
                raise Exhausted("a number is too large")
            return
        count, repeated = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(count, int):
            self.spend(max(0, count) * max(1, _size(repeated)))

    def _finalized(self, value: Any) -> Any:
        """What is printed, also into a variable."""
        if getattr(self._current, "budget", None) is not None:
            self.spend(1 + _size(value) if isinstance(value, str) else 1)
        return value

    def _turns(self, values: Iterable[Any]) -> Iterable[Any]:
        """The same values, a step each; what has a length keeps it, since loops tell theirs."""
        return _Turns(values, self.spend) if hasattr(values, "__len__") else self._counted(values)

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.spend()
            yield value

    def _built(self, value: Any) -> Any:
        """A list or the like that the template has just made. All that it holds counts, shared parts each time.

        Otherwise a list of a list twice, forty times over, would be small until it is printed or compared.
        """
        pending = [value]
        while pending:
            found = pending.pop()
            self.spend(1 + _size(found))
            if isinstance(found, dict):
                pending.extend(found.values())
            elif isinstance(found, list | tuple):
                pending.extend(found)
        return value

    def _dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._built(dict(*args, **kwargs))

    def _joined(self, *values: Any) -> str:
        """What `~` makes."""
        texts = [str(value) for value in values]
        self.spend(sum(map(len, texts)))
        return "".join(texts)

    def _spending(self, call: Callable[..., Any], size_of: Callable[[object], int]) -> Callable[..., Any]:
        """A filter or test that spends what it is given, by `size_of`, and the text or list it gives back."""

        @wraps(call)
        def spending(*args: Any, **kwargs: Any) -> Any:
            self.spend(1 + sum(map(size_of, args)))
            result = call(*args, **kwargs)
            self.spend(size_of(result))
            return result

        return spending


class _Namespace(jinja2.utils.Namespace):
    """Jinja's, but its text does not hold what it holds."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Turns:
    """A collection whose iteration spends."""

    def __init__(self, values: Any, spend: Callable[[int], str]) -> None:
        self._values = values
        self._spend = spend

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._spend(1)
            yield value


def _size(value: object) -> int:
    """What a value counts: characters, or members."""
    if isinstance(value, str | bytes | list | tuple | dict | set | frozenset | range):
        return len(value)
    return _bits(value) // 64 if isinstance(value, int) else 0


def _text_size(value: object) -> int:
    """What a value counts where only text is looked at."""
    return len(value) if isinstance(value, str) else 0


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _check_text_call(
    name: str, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], spend: Callable[[int], str]
) -> None:
    """Bounds of `str` methods that can make more than they are given."""
    if name in _PADDING and any(isinstance(arg, int) and arg > MAX_WIDTH for arg in (*args, *kwargs.values())):
        raise Exhausted("a padding is too wide")
    if name == "expandtabs":
        spend(MAX_WIDTH * text.count("\t"))
    elif name == "replace" and len(args) >= 2:
        spend(_replaced_size(text, args[0], args[1]))
    elif name == "join" and args:
        spend(_joined_size(text, args[0]))
    else:
        spend(len(text))


def _replaced_size(text: str, old: object, new: object) -> int:
    return len(text) + text.count(str(old)) * len(str(new))


def _joined_size(glue: str, values: object) -> int:
    if not isinstance(values, list | tuple):
        return 0
    return len(glue) * len(values) + sum(_size(value) for value in values)


@jinja2.pass_environment
def _join(environment: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Jinja's `join`, its length spent before the text is made."""
    if attribute is not None:
        getter = jinja2.filters.make_attrgetter(environment, attribute)
        value = map(getter, value)
    texts = []
    for item in value:
        texts.append(str(item))
        environment.spend(1 + len(texts[-1]) + len(d))
    return str(d).join(texts)


@jinja2.pass_environment
def _replace(environment: Any, s: str, old: str, new: str, count: int | None = None) -> str:
    """Jinja's `replace`, its length spent before the text is made."""
    text = str(s)
    environment.spend(_replaced_size(text, old, new))
    return text.replace(str(old), str(new), -1 if count is None else count)


@jinja2.pass_environment
def _indent(environment: Any, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's `indent`, with a bounded width."""
    step = width if isinstance(width, str) else " " * min(width, MAX_WIDTH)
    environment.spend(len(s) + len(step) * (s.count("\n") + 1))
    return str(jinja2.filters.do_indent(s, step, first, blank))


def _format(*_args: object, **_fields: object) -> str:
    """Jinja's `format`: refused, as `%` is."""
    raise SecurityError("formatting with % is not allowed")
