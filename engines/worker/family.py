"""How one model's chat answers are read: its family's tool calls and reasoning tags, as texts and as tokens.

Chosen by the template and the vocabulary, unless the operator says otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engines.core.plan import TextModel
from engines.worker.composed_grammars import ReasoningTokens
from engines.worker.output.reasoning import FAMILIES as REASONING
from engines.worker.output.reasoning import ThinkTags, tags_of
from engines.worker.output.reply import ReplyStyle
from engines.worker.output.tool_formats import FORMATS, ToolFormat, format_of
from engines.worker.tools import ToolUse

AUTO, NONE = "auto", "none"
TOOL_FORMATS = (AUTO, NONE, *FORMATS)
REASONING_FORMATS = (AUTO, NONE, *REASONING)


@dataclass(frozen=True, slots=True)
class ChatFamily:
    """One model's. `tool_format` None: its answers are not read for tool calls, hence it takes no tools.

    `piece_of`: a token's bytes, control tokens that mark calls or reasoning with their texts. `tag_ids`: the reasoning
    tags as single tokens, None where they are several.
    """

    tool_format: ToolFormat | None
    tags: ThinkTags | None
    piece_of: Callable[[int], bytes]
    tag_ids: tuple[int, int] | None
    eos_ids: frozenset[int]
    vocab_size: int

    def reply_style(self, tools: ToolUse | None, *, is_open: bool, shows_reasoning: bool) -> ReplyStyle:
        """How an answer is read. `is_open`: the prompt has begun its reasoning."""
        return ReplyStyle(
            tags=self.tags,
            is_open=is_open,
            shows_reasoning=shows_reasoning,
            tool_format=self.tool_format if tools is not None else None,
            tools=tools.schemas if tools is not None else None,
            max_calls=tools.max_calls if tools is not None else None,
        )

    def reasoning_tokens(self, *, is_open: bool) -> ReasoningTokens | None:
        """The tags as tokens, for a grammar that waits for the reasoning's end; None where it cannot tell."""
        if self.tag_ids is None:
            return None
        begin, end = self.tag_ids
        return ReasoningTokens(begin, end, is_open, self.eos_ids, self.vocab_size)


def family_of(model: TextModel, vocab_size: int, tool_format: str = AUTO, reasoning_format: str = AUTO) -> ChatFamily:
    """The family of a model. The formats are names out of `TOOL_FORMATS` and `REASONING_FORMATS`."""
    template = model.chat_template or ""
    style = format_of(template, model.special_texts) if tool_format == AUTO else FORMATS.get(tool_format)
    tags = tags_of(template) if reasoning_format == AUTO else REASONING.get(reasoning_format)
    marks = (*(style.all_marks if style is not None else ()), *((tags.begin, tags.end) if tags is not None else ()))
    return ChatFamily(
        tool_format=style,
        tags=tags,
        piece_of=_piece_of(model, marks),
        tag_ids=_tag_ids(model, tags),
        eos_ids=model.eos_ids,
        vocab_size=vocab_size,
    )


def _piece_of(model: TextModel, marks: tuple[str, ...]) -> Callable[[int], bytes]:
    """A token's bytes. Control tokens have none, but those that are marks have their texts."""
    shown: dict[int, bytes] = {}
    for mark in marks:
        tokens = model.encode(mark, special=True)
        if len(tokens) == 1 and not model.piece(tokens[0]) and tokens[0] not in model.eos_ids:
            shown[tokens[0]] = mark.encode()
    if not shown:
        return model.piece

    def piece(token: int) -> bytes:
        return shown[token] if token in shown else model.piece(token)

    return piece


def _tag_ids(model: TextModel, tags: ThinkTags | None) -> tuple[int, int] | None:
    if tags is None:
        return None
    begin, end = (model.encode(tag, special=True) for tag in (tags.begin, tags.end))
    return (begin[0], end[0]) if len(begin) == len(end) == 1 else None
