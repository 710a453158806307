"""How a model's answers are read, by its template and its vocabulary."""

import pytest

from engines.core.sequence import FinishReason, SequenceDelta
from engines.fake.model import FakeModel
from engines.worker.choice import Choice, Finish
from engines.worker.family import REASONING_FORMATS, TOOL_FORMATS, family_of
from engines.worker.output.parts import CallArguments, CallStart, Reasoning
from engines.worker.tools import ToolUse

TOOLS = ToolUse(offered=(), schemas={"f": {}}, strict=frozenset(), is_required=False, max_calls=None)
CONTROL = {600: "[TOOL_CALLS]", 601: "[ARGS]", 602: "<think>", 603: "</think>"}


class MarkedModel(FakeModel):
    """Whose marks are control tokens, without bytes of their own, as Mistral's are."""

    special_marks = CONTROL

    def __init__(self, template):
        super().__init__()
        self.chat_template = template

    def encode(self, text, *, special):
        for token, mark in self.special_marks.items():
            if special and text == mark:
                return [token]
        return super().encode(text, special=special)

    def piece(self, token):
        return b"" if token in self.special_marks else super().piece(token)


def read(family, tokens, style=None):
    """One answer of these tokens, one a step, and its choice."""
    style = style or family.reply_style(TOOLS, is_open=False, shows_reasoning=True)
    choice = Choice(0, family.piece_of, eos_ids=frozenset({2}), reply=style.reader())
    parts = []
    for number, token in enumerate(tokens, 1):
        is_last = number == len(tokens)
        finish = FinishReason.STOP if is_last else None
        piece = choice.absorb(
            SequenceDelta("r", (token,), 3, 0, number, finish_reason=finish, stop_token=2 if is_last else None)
        )
        parts += piece.parts if piece is not None else ()
    return parts, choice


def test_marks_that_are_control_tokens_are_seen():
    """Their bytes are empty everywhere else, so that they never show up in an answer."""
    model = MarkedModel("[TOOL_CALLS] [ARGS]")
    family = family_of(model, 1024)
    assert (family.tool_format.name, family.tool_format.short_ids, family.tags) == ("mistral-args", True, None)
    call = [600, *model.encode("f", special=False), 601, *model.encode('{"a": 1}', special=False), 2]
    parts, choice = read(family, call)
    assert parts[0] == CallStart(0, "f")
    assert "".join(part.text for part in parts if isinstance(part, CallArguments)) == '{"a": 1}'
    assert choice.finish == Finish("tool_calls")
    assert model.piece(600) == b""


def test_reasoning_tokens_are_counted_with_their_tags():
    """The tags too: they were generated and are no part of the answer."""
    model = MarkedModel("{{ '<think>' }}")
    family = family_of(model, 1024)
    parts, choice = read(family, [602, *model.encode("abc", special=False), 603, *model.encode("de", special=False), 2])
    assert "".join(part.text for part in parts if isinstance(part, Reasoning)) == "abc"
    assert (choice.reasoning_tokens, choice.num_tokens) == (5, 8)
    assert family.reasoning_tokens(is_open=True).begin == 602


def test_tags_of_several_tokens_cannot_hold_a_grammar_back():
    """Then the answer is constrained from its beginning."""
    family = family_of(FakeModel(), 512, reasoning_format="think")
    assert family.tags is not None
    assert family.reasoning_tokens(is_open=False) is None


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
@pytest.mark.parametrize("reasoning_format", REASONING_FORMATS)
def test_the_operator_may_name_the_formats(tool_format, reasoning_format):
    """Every name that the options offer."""
    family = family_of(FakeModel(), 512, tool_format, reasoning_format)
    if tool_format == "none":
        assert family.tool_format is None
    elif tool_format != "auto":
        assert family.tool_format.name == tool_format
    assert (family.tags is None) == (reasoning_format in ("auto", "none"))  # the fake model's template shows none
