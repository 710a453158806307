"""Recorded blocks as words: as many as they had tokens, shared as they were shared, the same everywhere."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.replay.trace_text import WORDS, scaled, texts_of
from gateway.simulation import conversations, mooncake
from tests.gateway.simulation.traces_kit import SIZE, lines


def shared_words(one, other):
    """How many leading words two prompts have in common."""
    count = 0
    for a, b in zip(one.split(), other.split(), strict=False):
        if a != b:
            break
        count += 1
    return count


def test_the_words_are_one_byte_wide():
    """A byte of a hash draws one."""
    assert len(WORDS) == len(set(WORDS)) == 256


def test_the_map_is_fixed():
    """A trace is the same text on every machine and in every version, or runs could not be compared."""
    [first, *_] = texts_of(mooncake.record(lines(num=1)))
    assert first.prompt.split()[:6] == FIRST_WORDS


FIRST_WORDS = ["new", "year", "show", "two", "foot", "get"]


@given(st.integers(1, 64), st.text(max_size=3))
@settings(max_examples=20, deadline=None)
def test_equal_blocks_are_equal_words_and_lengths_are_kept(scale, salt):
    """Also scaled: a prompt shares with another what its blocks share, and not a word more than by chance."""
    recording = mooncake.record(lines(num=10, num_chats=2))
    texts = list(texts_of(recording, scale=scale, salt=salt))
    size = SIZE // scale
    for text, request in zip(texts, recording.requests, strict=True):
        assert len(text.prompt.split()) == text.prompt_tokens == request.prompt_tokens // scale
        assert text.output_tokens == max(1, request.output_tokens // scale)
        for other, before in zip(texts, recording.requests[: request.number], strict=False):
            num = 0
            for a, b in zip(request.blocks, before.blocks, strict=False):
                if a != b:
                    break
                num += 1
            found = shared_words(text.prompt, other.prompt)
            assert num * size <= found
            if size >= 32:
                assert found <= num * size + 8


def test_another_salt_is_another_text():
    """So that a second run finds nothing in the caches of the first."""
    recording = mooncake.record(lines(num=1))
    one, other = (next(texts_of(recording, salt=salt)).prompt for salt in ("", "x"))
    assert shared_words(one, other) < 8


def test_the_same_prompt_twice_is_the_same_text_to_its_end():
    """The part of a block at the end included; of chats that were recorded as text, too."""
    line = b'{"timestamp": %d, "messages": [{"role": "user", "content": "' + b"abc " * 30 + b'"}]}'
    recording = conversations.record([line % 1, line % 2])
    one, other = texts_of(recording)
    assert one.prompt == other.prompt
    assert len(one.prompt.split()) == recording.requests[0].prompt_tokens


def test_facts_are_scaled_with_the_lengths():
    """What one endless cache would hit stays the same part."""
    facts = mooncake.record(lines()).facts()
    small = scaled(facts, 16)
    assert (small.requests, small.duration_s) == (facts.requests, facts.duration_s)
    ratios = [one.oracle_hit_tokens / one.prompt_tokens for one in (facts, small)]
    assert abs(ratios[0] - ratios[1]) < 0.001


def test_short_prompts_have_a_token_each_however_much_is_divided():
    """So many are sent, and hits are told as a part of them."""
    recording = conversations.record([b'{"timestamp": 1, "messages": [{"role": "user", "content": "short"}]}'])
    [text] = texts_of(recording, scale=512)
    assert text.prompt_tokens == scaled(recording.facts(), 512).prompt_tokens == 1
