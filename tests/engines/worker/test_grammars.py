"""Clients' grammars: compiled within bounds or refused with a sentence, and followed to the letter."""

import asyncio
import contextlib
import json
import os
import random
import re
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.core.grammar import GrammarFault, mask_words
from engines.fake.model import IM_END, IM_START, FakeModel
from engines.worker import grammars
from engines.worker.grammars import (
    GrammarCompiler,
    GrammarError,
    GrammarKind,
    GrammarLimits,
    GrammarSpec,
    Structure,
    structural_spec,
)

MODEL = FakeModel()
SOME = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def compiler():
    made = GrammarCompiler(MODEL, MODEL.vocab_size)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared():
    """One for tests that try many grammars, driven by `asyncio.run`."""
    made = GrammarCompiler(MODEL, MODEL.vocab_size, max_kept=4)
    yield made
    made.close()


def schema_spec(schema, **fields):
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), **fields)


def allowed_by(state):
    mask = np.zeros(mask_words(MODEL.vocab_size), np.uint32)
    state.fill(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def walk(grammar, seed=0, most=300):
    """A text by chance of what the grammar allows; None if it did not end. Ends are taken where they are allowed."""
    chance, state, tokens = random.Random(seed), grammar.start(), []
    while not state.is_finished:
        allowed = allowed_by(state)
        if len(tokens) == most:
            return None
        token = IM_END if IM_END in allowed else chance.choice(allowed)
        state.accept(token)
        tokens.append(token)
    return b"".join(MODEL.piece(token) for token in tokens).decode()


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(8))
async def test_what_a_schema_allows_is_valid(compiler, seed):
    """The guarantee itself: whatever is drawn from the masks parses and has the required members."""
    text = walk(await compiler.compile(schema_spec(PERSON)), seed)
    found = json.loads(text)
    assert found.keys() <= {"name", "age", "tags"}
    assert len(found["name"]) <= 8
    assert 0 <= found["age"] <= 120
    assert set(found.get("tags", [])) <= {"a", "b"}


@pytest.mark.parametrize(
    ("spec", "pattern"),
    [
        (GrammarSpec(GrammarKind.REGEX, "[a-c]{3}-[0-9]+x"), "[a-c]{3}-[0-9]+x"),
        (GrammarSpec(GrammarKind.CHOICE, '["yes", "no, \\"never\\""]'), 'yes|no, "never"'),
        (GrammarSpec(GrammarKind.GRAMMAR, 'start: "a"+ NAME\nNAME: /[x-z]{2}/'), "a+[x-z]{2}"),
        (GrammarSpec(GrammarKind.GRAMMAR, 'root ::= "a" | "b" root'), "b*a"),
    ],
)
async def test_every_kind_is_followed(compiler, spec, pattern):
    """Regular expressions, choices, Lark and GBNF."""
    grammar = await compiler.compile(spec)
    for seed in range(5):
        text = walk(grammar, seed, 400)
        assert text is None or re.fullmatch(pattern, text)
    assert any(walk(grammar, seed, 400) is not None for seed in range(5))


async def test_any_object_is_an_object(compiler):
    """`json_object` promises no more than that."""
    grammar = await compiler.compile(GrammarSpec(GrammarKind.JSON_OBJECT))
    state = grammar.start()
    assert state.allowed_prefix(MODEL.encode('{"time": [1, true]}', special=False)) > 10
    assert state.allowed_prefix(MODEL.encode("[1]", special=False)) == 0


CALL = Structure(
    begin='<call>{"name": "f", "arguments": ',
    schema='{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}',
    end="}</call>",
)


async def test_text_with_a_trigger_must_be_a_structure(compiler):
    """Before it anything goes; from it on only the call."""
    grammar = await compiler.compile(structural_spec([CALL], ["<call>"]))
    state = grammar.start()
    good = MODEL.encode('the time <call>{"name": "f", "arguments": {"x": 12}}</call> of', special=False)
    assert state.allowed_prefix(good) == len(good)
    bad = MODEL.encode('the time <call>{"name": "g"', special=False)
    assert state.allowed_prefix(bad) < len(bad)
    assert IM_END in allowed_by(state)


async def test_a_required_structure_comes_at_once(compiler):
    """And once only, where no separator says how another would follow."""
    single = (await compiler.compile(structural_spec([CALL], required=True, separator=None))).start()
    assert allowed_by(single) != []
    assert IM_END not in allowed_by(single)
    for token in MODEL.encode('<call>{"name": "f", "arguments": {"x": 1}}</call>', special=False):
        single.accept(token)
    assert single.is_finished
    several = (await compiler.compile(structural_spec([CALL], required=True, separator="\n"))).start()
    for token in MODEL.encode('<call>{"name": "f", "arguments": {"x": 1}}</call>', special=False):
        several.accept(token)
    assert not several.is_finished
    assert IM_END in allowed_by(several)


async def test_control_tokens_in_a_structure_mean_the_tokens(compiler):
    """Their texts spelled out are something else, which the model does not say."""
    structure = Structure(begin="<|im_start|>f", schema='{"const": 1}', end="<|im_start|>")
    state = (await compiler.compile(structural_spec([structure], ["<|im_start|>"], required=True))).start()
    assert allowed_by(state) == [IM_START]
    state.accept(IM_START)
    state.accept(MODEL.encode("f", special=False)[0])
    state.accept(MODEL.encode("1", special=False)[0])
    assert allowed_by(state) == [IM_START]


async def test_states_are_apart_and_go_back(compiler):
    """Two sequences of one grammar, and drafts that are taken back, beyond the end too."""
    grammar = await compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab|abc"))
    a, b, c = MODEL.encode("a", special=False) + MODEL.encode("b", special=False) + MODEL.encode("c", special=False)
    first, second = grammar.start(), grammar.start()
    first.accept(a)
    assert allowed_by(second)[0] == a
    first.accept(b)
    before = allowed_by(first)
    first.accept(IM_END)
    assert first.is_finished
    first.rollback(1)
    assert allowed_by(first) == before
    first.accept(c)
    assert first.is_finished
    first.rollback(3)
    assert allowed_by(first) == allowed_by(second)
    with pytest.raises(GrammarFault):
        second.accept(c)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type":'), r"at \$ is not JSON"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, "[1]"), r"at \$ must be an object"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, '{"items":' * 60000 + "1" + "}" * 60000), "bytes"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, '{"items":' * 5000 + "{}" + "}" * 5000), "nested"),
        (schema_spec({"properties": {"a": {"items": {"not": {"const": 1}}}}}), r"at \$\.properties\.a\.items: .*not"),
        (schema_spec({"properties": {"a": {"type": "integer", "multipleOf": 1000003}}}), r"\$\.properties\.a\.multip"),
        (schema_spec({"type": "number", "multipleOf": 0.0100003}), r"\$\.multipleOf"),
        (schema_spec({"properties": {"a": {"pattern": "(a{1000}){1000}"}}}), r"`pattern` at \$\.properties\.a\.pat"),
        (schema_spec({"patternProperties": {"(a{1000}){1000}": {}}}), "patternProperties"),
        (schema_spec({"enum": [1] * 25000}), "more than 20000 values"),
        (schema_spec({"enum": [f"value {i}" for i in range(25000)]}), "bytes"),
        (schema_spec({"$ref": "#"}), "matches nothing"),
        (schema_spec({"$ref": "#/$defs/missing"}), r"cannot be compiled at \$"),
        (schema_spec({"type": "string", "pattern": "a(?=b)"}), r"cannot be compiled at \$: .*look"),
        (GrammarSpec(GrammarKind.JSON_SCHEMA, "false"), "cannot be compiled"),
        (GrammarSpec(GrammarKind.REGEX, "("), "regular expression cannot be compiled"),
        (GrammarSpec(GrammarKind.REGEX, ""), "empty text"),
        (GrammarSpec(GrammarKind.REGEX, "(" * 100 + "a" + ")" * 100), "nests more than 64"),
        (GrammarSpec(GrammarKind.REGEX, "((a{999}){999}){999}"), "repeats too much"),
        (GrammarSpec(GrammarKind.CHOICE, "[]"), "1 to"),
        (GrammarSpec(GrammarKind.CHOICE, '["a", ""]'), "String 1"),
        (GrammarSpec(GrammarKind.CHOICE, '{"a": 1}'), "list of strings"),
        (GrammarSpec(GrammarKind.GRAMMAR, "start: missing"), r"at 1\(8\)"),
        (GrammarSpec(GrammarKind.GRAMMAR, "root ::= ((("), "cannot be read"),
        (GrammarSpec(GrammarKind.GRAMMAR, "start: A\nA: /a/ & /b/"), "matches nothing"),
        (GrammarSpec(GrammarKind.STRUCTURAL, "{}"), "malformed"),
        (structural_spec([]), "at least one"),
        (structural_spec([CALL], ["<other>"]), r"structures\[0\]"),
        (structural_spec([Structure(begin="", schema="", end="")], required=True), "begin"),
        (
            structural_spec([CALL, Structure(begin="<call>", schema='{"type": "foo"}', end="")], ["<call>"]),
            r"\[1\]\.sch",
        ),
    ],
)
async def test_what_is_refused_is_refused_with_its_place(compiler, spec, sentence):
    """A client can find what to change; one line, whatever the compiler printed."""
    with pytest.raises(GrammarError, match=sentence) as caught:
        await compiler.compile(spec)
    assert caught.value.is_callers_fault
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 700


async def test_what_is_not_strict_leaves_out_what_cannot_be_enforced(compiler):
    """A schema with exotic words still shapes the answer."""
    schema = {"type": "integer", "not": {"const": 3}, "oneOf": [{"minimum": 0}, {"maximum": 9}]}
    with pytest.raises(GrammarError):
        await compiler.compile(schema_spec(schema))
    await compiler.compile(schema_spec(schema, strict=False))


async def test_what_could_not_be_followed_is_refused_at_once(compiler):
    """Its bound is met behind the first tokens, which the model would have to write first."""
    schema = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(2000)}}
    with pytest.raises(GrammarError, match="too complex") as caught:
        await compiler.compile(schema_spec({**schema, "additionalProperties": False}))
    assert caught.value.is_callers_fault


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
async def test_compiling_takes_less_of_a_busy_core_than_the_engine(compiler, monkeypatch):
    """A decoding step waits for the slowest of its threads: ten large schemas made streams stand still (P50)."""
    seen = []
    original = grammars.source_of

    def watched(*given):
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return original(*given)

    monkeypatch.setattr(grammars, "source_of", watched)
    await compiler.compile(GrammarSpec(GrammarKind.REGEX, "a+"))
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert seen == [min(own + 10, 19)]


async def test_equal_specs_are_compiled_once_and_the_oldest_go(monkeypatch):
    """Bounded memory; a busy schema costs its compilation once, also when many ask at once."""
    compiler = GrammarCompiler(MODEL, MODEL.vocab_size, max_kept=2)
    compiled = []
    original = grammars.source_of
    monkeypatch.setattr(
        grammars, "source_of", lambda spec, *rest: (compiled.append(spec.text), original(spec, *rest))[1]
    )
    try:
        specs = [GrammarSpec(GrammarKind.REGEX, text) for text in ("a", "b", "c")]
        together = await asyncio.gather(*(compiler.compile(specs[0]) for _ in range(5)))
        assert all(each is together[0] for each in together)
        for spec in (specs[1], specs[0], specs[2], specs[0], specs[1]):
            await compiler.compile(spec)
        assert compiled == ["a", "b", "c", "b"]
        assert repr(compiler) == "<GrammarCompiler kept=2 compiling=0>"
    finally:
        compiler.close()


async def test_a_slow_compilation_is_answered_in_time_and_does_not_hold_up_others_for_ever(monkeypatch):
    """The thread cannot be stopped, but nobody waits for it, and what waits for a thread says so."""
    compiler = GrammarCompiler(MODEL, MODEL.vocab_size, GrammarLimits(timeout_s=0.5), max_waiting=1)
    release, original = asyncio.Event(), grammars.source_of
    loop = asyncio.get_running_loop()

    def slow(*args):
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return original(*args)

    monkeypatch.setattr(grammars, "source_of", slow)
    try:
        specs = [GrammarSpec(GrammarKind.REGEX, text) for text in "abcd"]
        errors = await asyncio.gather(*(compiler.compile(spec) for spec in specs), return_exceptions=True)
        assert [error.is_callers_fault for error in errors] == [True, True, False, False]
        assert ["Too many" in error.message for error in errors] == [False, False, False, True]
        assert "compiling=2" in repr(compiler), "what nobody waits for is left out"
        release.set()
        while "compiling=0" not in repr(compiler):  # noqa: ASYNC110  # nothing tells when it is done
            await asyncio.sleep(0)
        assert await compiler.compile(specs[2]) is not None
    finally:
        release.set()
        compiler.close()


async def test_what_one_tenant_had_compiled_is_new_to_another(monkeypatch):
    """Else the time of an answer would tell who asks which schema; nor does a flood push out what others have."""
    compiler = GrammarCompiler(MODEL, MODEL.vocab_size, max_kept=4)
    compiled = []
    original = grammars.source_of
    monkeypatch.setattr(
        grammars, "source_of", lambda spec, *rest: (compiled.append(spec.text), original(spec, *rest))[1]
    )
    try:
        spec = GrammarSpec(GrammarKind.REGEX, "a")
        ours, theirs = await asyncio.gather(compiler.compile(spec, "ours"), compiler.compile(spec, "theirs"))
        assert ours is not theirs
        assert compiled == ["a", "a"]
        for text in "bcdefgh":
            await compiler.compile(GrammarSpec(GrammarKind.REGEX, text), "theirs")
        assert await compiler.compile(spec, "ours") is ours
        assert "kept=4" in repr(compiler)
    finally:
        compiler.close()


async def test_a_flood_of_one_tenant_does_not_put_off_the_others(monkeypatch):
    """Owners take turns, and a compilation whose client has left is not begun."""
    compiler = GrammarCompiler(MODEL, MODEL.vocab_size)
    compiled, release, original = [], threading.Event(), grammars.source_of

    def noting(spec, *rest):
        release.wait(10)
        compiled.append(spec.text)
        return original(spec, *rest)

    monkeypatch.setattr(grammars, "source_of", noting)
    try:
        flood = [
            asyncio.ensure_future(compiler.compile(GrammarSpec(GrammarKind.REGEX, text), "flood"))
            for text in "abcdefgh"
        ]
        await asyncio.sleep(0)
        leaving = asyncio.ensure_future(compiler.compile(GrammarSpec(GrammarKind.REGEX, "x"), "leaves"))
        other = asyncio.ensure_future(compiler.compile(GrammarSpec(GrammarKind.REGEX, "y"), "other"))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
        release.set()
        await asyncio.gather(*flood, other)
        assert "x" not in compiled
        assert compiled.index("y") <= 4, "after the two at work and at most one or two more that wait"
    finally:
        release.set()
        compiler.close()


async def test_a_grammar_that_takes_too_long_ends_its_sequence(compiler, monkeypatch):
    """A step waits for its masks, so no grammar may take seconds of everybody's time."""
    state = (await compiler.compile(GrammarSpec(GrammarKind.REGEX, "a+b"))).start()
    times = iter([0.0, 0.9, 1.0, 1.9])
    monkeypatch.setattr(time, "thread_time", lambda: next(times))
    allowed_by(state)
    with pytest.raises(GrammarFault, match="too much time"):
        allowed_by(state)


def try_out(compiler, spec, seed=0):
    """Compile, and follow for some tokens: nothing but our own errors may come of it, soon."""
    started = time.monotonic()

    async def attempt():
        try:
            return await compiler.compile(spec)
        except GrammarError:
            return None

    grammar = asyncio.run(attempt())
    if grammar is not None:
        with contextlib.suppress(GrammarFault):
            walk(grammar, seed, 12)
    assert time.monotonic() - started < 30  # seconds; a loaded machine, not a bound of ours


_SCHEMAS = st.recursive(
    st.one_of(
        st.sampled_from([True, {}, {"type": "string"}, {"type": "integer"}, {"$ref": "#"}, {"$ref": "#/$defs/d"}]),
        st.builds(
            lambda low, high: {"type": "string", "minLength": low, "maxLength": high}, *[st.integers(0, 9**9)] * 2
        ),
        st.builds(lambda low, high: {"type": "number", "minimum": low, "maximum": high}, *[st.floats()] * 2),
        st.builds(lambda m: {"type": "number", "multipleOf": m}, st.one_of(st.integers(-2, 10**7), st.floats(0, 10))),
        st.builds(lambda values: {"enum": values}, st.lists(st.one_of(st.text(max_size=5), st.integers(), st.none()))),
        st.builds(lambda p: {"type": "string", "pattern": p}, st.text("ab(){}[]|*+?.^$\\d,0159", max_size=20)),
        st.builds(lambda f: {"type": "string", "format": f}, st.sampled_from(["date", "email", "uuid", "nonsense"])),
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda keys, s: {"type": "object", "properties": dict.fromkeys(keys, s)},
            st.lists(st.text(max_size=3)),
            inner,
        ),
        st.builds(
            lambda p, r, a: {"properties": p, "required": r, "additionalProperties": a},
            st.dictionaries(st.sampled_from("abc"), inner),
            st.lists(st.sampled_from("abcd")),
            inner,
        ),
        st.builds(
            lambda s, low, high: {"items": s, "minItems": low, "maxItems": high}, inner, *[st.integers(0, 10**6)] * 2
        ),
        st.builds(lambda word, many: {word: many}, st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner)),
        st.builds(lambda s: {"not": s}, inner),
        st.builds(lambda s: {"$defs": {"d": s}, "$ref": "#/$defs/d"}, inner),
    ),
    max_leaves=12,
)


@given(schema=_SCHEMAS, strict=st.booleans(), seed=st.integers(0, 9))
@SOME
def test_no_schema_breaks_the_worker(shared, schema, strict, seed):
    """Contradictions, endless recursion, huge bounds, senseless patterns: a grammar or a sentence."""
    try_out(shared, schema_spec(schema, strict=strict), seed)


@given(
    kind=st.sampled_from(list(GrammarKind)),
    text=st.one_of(
        st.text(max_size=60),
        st.text('(){}[]|*+?.\\,019ab"\n: ', max_size=60),
        st.text('start:root=" ()|*+?{}[]/\\%json<>&~,0123AB\n', max_size=80).map("start: ".__add__),
        st.lists(st.sampled_from(["(", ")", "a{99}", "{1,30}", "|", "(.*x.{9})", "[^a]", "\\w+"]), max_size=12).map(
            "".join
        ),
    ),
    strict=st.booleans(),
)
@SOME
def test_no_text_breaks_the_worker(shared, kind, text, strict):
    """Whatever is sent as whatever kind."""
    try_out(shared, GrammarSpec(kind, text, strict))


EXPLODING = {
    "allOf of anyOfs": {"allOf": [{"anyOf": [{"properties": {f"k{i}{j}": {}}} for j in range(6)]} for i in range(10)]},
    "many optional": {"properties": {f"p{i}": {"type": "string"} for i in range(2000)}},
    "many required": {"properties": {f"p{i}": {} for i in range(900)}, "required": [f"p{i}" for i in range(900)]},
    "doubling refs": {
        "$defs": {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 2} for i in range(40)}
        | {"n40": {"type": "null"}},
        "$ref": "#/$defs/n0",
    },
    "tree of refs": {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["a", "b"]},
    "a million items": {"type": "array", "items": {"type": "integer"}, "minItems": 10**6},
    "a long string": {"type": "string", "minLength": 10**6, "maxLength": 10**7},
    "large enum": {"enum": [f"value {i}" for i in range(5000)]},
    "crossing patterns": {
        "allOf": [{"pattern": "(a|b)*a(a|b){20}"}, {"pattern": "(a|b)*b(a|b){19}"}],
        "type": "string",
    },
    "deep": json.loads('{"type":"array","minItems":1,"items":' * 30 + '{"type":"null"}' + "}" * 30),
}


@pytest.mark.parametrize("name", EXPLODING)
def test_schemas_that_explode_stay_within_bounds(shared, name):
    """Each was made to be expensive; each ends soon, one way or the other."""
    try_out(shared, schema_spec(EXPLODING[name]))


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a*)*(b*)*c", "(.*a.{25})", "(a|b|ab)*c(a|b){500}", "((a{90}){90}|b){5}", r"\w{1,5000}", "(x?){999}y"],
)
def test_catastrophic_patterns_stay_within_bounds(shared, pattern):
    """What ruins backtracking engines, and what makes automata large."""
    try_out(shared, GrammarSpec(GrammarKind.REGEX, pattern))
