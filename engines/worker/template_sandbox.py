"""A Jinja sandbox that also bounds what a template may use: text made and steps taken, each in one budget a rendering.

Jinja's own sandbox keeps templates from reaching Python's insides; it bounds neither loops that print nothing, nor
`'x' * 10**9`, nor text doubled by a loop. Here every loop, macro, filter and call spends steps, and whatever makes
text or a list spends its length before it is made. Constants are folded while compiling, under the same rules.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import jinja2
import jinja2.ext
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
from jinja2.exceptions import SecurityError

from engines.worker.template_filters import BOUNDED, CHEAP, LEFT_OUT
from engines.worker.template_meter import BUILT, COPIED, JOINED, MAPPED, SPEND, STEPPED, TURNS, Metered
from engines.worker.template_sizes import (
    MAX_INT_BITS,
    Exhausted,
    bits,
    check_number,
    check_text_call,
    size,
    text_size,
    whole_size,
)

_COMPILE_STEPS = 1_000_000  # for constants folded while compiling; chosen
_NO_GLOBALS = ("lipsum", "cycler", "joiner")


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
        for name in LEFT_OUT:
            del self.filters[name]
        for name in _NO_GLOBALS:
            del self.globals[name]
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = self._dict
        self.globals["range"] = _range
        calls: dict[str, Any] = {**self.filters, **BOUNDED}
        self.filters = {name: self._spending(call, is_cheap=name in CHEAP) for name, call in calls.items()}
        self.filters |= {COPIED: self._copied, STEPPED: self._stepped}
        tests: dict[str, Any] = {**self.tests}
        self.tests = {name: self._spending(call, is_cheap=True) for name, call in tests.items()}

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
            variables = {SPEND: self.spend, TURNS: self._turns, JOINED: self._joined}
            variables |= {BUILT: self._built, MAPPED: self._mapped}
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
            if abs(right) * (bits(left) or 1) > MAX_INT_BITS:
                raise Exhausted("a number is too large")
        elif operator == "+" and not isinstance(left, int | float):
            self.spend(size(left) + size(right))
        result = super().call_binop(context, operator, left, right)
        check_number(result)
        return result if isinstance(result, str) else self._built(result)

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: PYI063  # Jinja's
        """A call of a function or method, if what it makes is small enough."""
        given = (*args, *kwargs.values())
        self.spend(1 + len(given) + sum(map(text_size, given)))  # each by itself, too: `m(*values)` copies them
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name == "join" and args and not isinstance(args[0], list | tuple | dict):
                args = (list(self._counted(args[0])), *args[1:])
            check_text_call(name, owner, args, kwargs, self.spend)
        elif isinstance(owner, int | float | bytes | type):
            raise SecurityError("methods of numbers and types are not allowed")
        elif isinstance(__obj, jinja2.runtime.LoopContext):  # a recursive loop goes through these
            args, kwargs = tuple(map(self._turns, args)), {name: self._turns(each) for name, each in kwargs.items()}
        result = super().call(__context, __obj, *args, **kwargs)
        return self._built(result) if isinstance(result, list | tuple | dict | set) else result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuse `str.format`, whose widths nobody can bound beforehand."""
        if super().wrap_str_format(value) is None:
            return None
        raise SecurityError("str.format is not allowed")

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int | float) and isinstance(right, int | float):
            if bits(left) + bits(right) > MAX_INT_BITS + 1:
                raise Exhausted("a number is too large")
            return
        count, repeated = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(count, int):
            self.spend(max(0, count) * max(1, size(repeated)))

    def _finalized(self, value: Any) -> Any:
        """What is printed, also into a variable."""
        if getattr(self._current, "budget", None) is not None:
            self.spend(1 + whole_size(value))
        return value

    def _turns(self, values: Iterable[Any]) -> Iterable[Any]:
        """The same values, a step each; what has a length keeps it, since loops tell theirs."""
        return _Turns(values, self.spend) if hasattr(values, "__len__") else self._counted(values)

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.spend()
            yield value

    def _built(self, value: Any) -> Any:
        """A list or the like that the template has just made, spent with all that it holds."""
        self.spend(whole_size(value))
        return value

    def _copied(self, value: Any) -> Any:
        """A part of a text or a list. What its members hold is shared, and was counted where it was made."""
        self.spend(1 + size(value))
        return value

    def _stepped(self, value: Any) -> Any:
        """What is looked up or compared."""
        self.spend()
        return value

    def _mapped(self, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """`{a: b}`. One pair after the other, because keys can be chosen so that they collide."""
        mapped = {}
        for key, value in pairs:
            self.spend()
            mapped[key] = value
        self.spend(whole_size(mapped))
        return mapped

    def _dict(self, pairs: Any = (), **named: Any) -> Any:
        given = pairs.items() if isinstance(pairs, dict) else pairs
        return self._mapped([*given, *named.items()])

    def _joined(self, *values: Any) -> str:
        """What `~` makes."""
        self.spend(sum(map(whole_size, values)))
        return "".join(map(str, values))

    def _spending(self, call: Callable[..., Any], *, is_cheap: bool) -> Callable[..., Any]:
        """A filter or test that spends what it is given and the text or list it gives back.

        `is_cheap`: only text counts.
        """
        size_of = text_size if is_cheap else whole_size

        @wraps(call)
        def spending(*args: Any, **kwargs: Any) -> Any:
            self.spend(1 + sum(map(size_of, args)))
            result = call(*args, **kwargs)
            self.spend(size_of(result))
            check_number(result)
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


def _range(*bounds: int) -> range:
    """Jinja's bounded `range`, of numbers that templates compute."""
    for bound in bounds:
        check_number(bound)
    return jinja2.sandbox.safe_range(*bounds)
