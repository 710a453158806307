"""What a model's output is made of once it has been read: content, reasoning and tool calls, in small pieces. Types."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text the model wrote before its answer, for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of an offered tool begins. `index` counts calls, from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, which together are the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallBroken:
    """A call that had begun turned out not to be one. `raw`: all that the model wrote of it, to be shown as content."""

    index: int
    raw: str


Part = Content | Reasoning | CallStart | CallArguments | CallBroken


def merged(parts: list[Part]) -> tuple[Part, ...]:
    """The same parts, neighbours of one kind put together."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        match last, part:
            case Content(before), Content(text):
                result[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                result[-1] = Reasoning(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                result[-1] = CallArguments(index, before + text)
            case _:
                result.append(part)
    return tuple(result)
