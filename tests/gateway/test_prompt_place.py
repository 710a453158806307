"""A byte of the canonical prompt, told as message, role and part: the reverse of `prompt.py`."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prompt_place import part_of_chat
from gateway.request import Surface, read

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer"])


def segments_of(body, surface=Surface.CHAT):
    """The canonical prompt."""
    return read(surface, json.dumps({"model": "m", **body}).encode()).segments


@given(st.lists(st.tuples(ROLES, TEXT, st.none() | TEXT), min_size=1, max_size=5), st.booleans(), st.data())
@settings(max_examples=80, deadline=None)
def test_each_message_is_told_with_its_role_and_where_its_text_begins(messages, has_tools, data):
    """Names and other scripts in front of it included; tools before them do not shift the numbers."""
    said = [
        {"role": role, "content": text, **({"name": name} if name is not None else {})} for role, text, name in messages
    ]
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]} if has_tools else {}
    segments = segments_of({"messages": said, **tools})
    index = data.draw(st.integers(0, len(messages) - 1))
    role, text, _ = messages[index]
    found = part_of_chat(segments, index + has_tools, 0)
    assert (found.kind, found.message, found.role, found.part) == ("message", index, role, None)
    assert segments[index + has_tools][found.starts_at :].startswith(text.encode())


@given(st.lists(TEXT, min_size=2, max_size=5), st.data())
@settings(max_examples=60, deadline=None)
def test_the_part_of_a_message_in_parts_is_told(texts, data):
    """Texts are counted in characters there, so those of several bytes are the trap; a picture is counted in bytes."""
    parts = [{"type": "text", "text": text} for text in texts]
    parts.insert(1, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})
    segments = segments_of({"messages": [{"role": "user", "content": parts}]})
    number = data.draw(st.integers(0, len(parts) - 1))
    sizes = [len(part["text"].encode()) if "text" in part else len(json.dumps(part).encode()) for part in parts]
    start = len(b"4,0,0\x1fuser") + sum(sizes[:number])
    if sizes[number]:
        found = part_of_chat(segments, 0, start)
        assert (found.role, found.part, found.starts_at) == ("user", number, start)


@pytest.mark.parametrize("name", ["tools", "functions", "documents"])
def test_what_stands_before_the_messages_is_told_by_its_field(name):
    """Bytes count from its value."""
    segments = segments_of({"messages": [{"role": "user", "content": "x"}], name: [{"a": 1}]})
    found = part_of_chat(segments, 0, 20)
    assert (found.kind, found.message, segments[0][found.starts_at :]) == (name, None, b'[{"a": 1}]')


def test_a_role_of_the_clients_own_invention_is_not_repeated():
    """It could say anything, and nothing that is said is kept."""
    segments = segments_of({"messages": [{"role": "my secret", "content": "x"}]})
    assert part_of_chat(segments, 0, 0).role == "other"


@pytest.mark.parametrize("prompt", ["plain text", "", "6,0,0 system", [1, 2, 3], ["a", "b"]])
def test_a_completions_prompt_is_no_message(prompt):
    """It has neither role nor number."""
    segments = segments_of({"prompt": prompt}, Surface.COMPLETIONS)
    assert part_of_chat(segments, len(segments) - 1, 0).kind == "prompt"


@pytest.mark.parametrize("end", ["a,b", "1,x", "1,-1", "1,,2", "1,2rm", "\u0661,2", "1," + "9" * 5000])
def test_a_completions_prompt_that_pretends_to_be_a_message_has_no_parts(end):
    """What anybody may write breaks nothing: lengths that are none are no lengths."""
    segments = segments_of({"prompt": f"4,0,0\x1fuserhello\x1f{end}"}, Surface.COMPLETIONS)
    assert part_of_chat(segments, 0, 12).part is None


def test_a_late_part_is_found_without_reading_what_follows_again_for_each_before_it():
    """Naming a place happens between two requests of others: 16,000 parts before a large one must not cost seconds."""
    read = []

    class Counted(bytes):
        """Content that tells how much of it is taken."""

        def __getitem__(self, index):
            found = super().__getitem__(index)
            read.append(len(found) if isinstance(found, bytes) else 1)
            return found

    parts = [{"type": "text", "text": "a"}] * 400 + [{"type": "text", "text": "b" * 100_000}]
    [segment] = segments_of({"messages": [{"role": "user", "content": parts}]})
    start = len(b"4,0,0\x1fuser") + 400
    assert part_of_chat([Counted(segment)], 0, start).part == 400
    assert sum(read) < 10 * len(segment)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_no_bytes_at_all_break_it(segments, byte):
    """A completion's prompt may look like anything, a message's head included."""
    found = part_of_chat(segments, len(segments) - 1, byte)
    assert found.role in {None, "other", "system", "user", "assistant", "tool", "developer", "function"}
