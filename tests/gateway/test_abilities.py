"""What a replica can do: as the operator says, as its engine says, until it shows that it cannot."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.adapters import ADAPTERS, adapter_for, surfaces
from gateway.abilities import ASK_AGAIN_S, LACK_S, TASK_OF, TASKS, Abilities, told_of
from gateway.request import Surface

CHAT, COMPLETIONS = Surface.CHAT.value, Surface.COMPLETIONS.value
GENERATES = {CHAT, COMPLETIONS, Surface.MESSAGES.value, Surface.RESPONSES.value}
READS = {surfaces.TOKENIZE, surfaces.DETOKENIZE}
RANKS = {surfaces.RERANK, surfaces.SCORE}


def listed(tasks, name="m", **more):
    """An engine's model list."""
    return json.dumps({"data": [{"id": "other", "tasks": ["score"]}, {"id": name, "tasks": tasks, **more}]}).encode()


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
def test_every_endpoint_of_every_engine_has_its_task(kind):
    """A surface that no task leads to would be served by nobody."""
    assert ADAPTERS[kind].paths.keys() <= TASK_OF.keys()
    assert {task for task in TASK_OF.values() if task is not None} == set(TASKS)


@pytest.mark.parametrize(
    ("tasks", "served"),
    [
        (["generate"], GENERATES | READS | {surfaces.TOKENIZE_CHAT}),
        (["embed", "score"], {surfaces.EMBEDDINGS} | RANKS | READS),
        (["score"], RANKS | READS),
        (["generate", "embed", "score", "sing"], GENERATES | READS | RANKS | {surfaces.EMBEDDINGS, surfaces.TOKENIZE_CHAT}),
        (["sing"], READS),
        ([], READS),
    ],
)  # fmt: skip
def test_our_own_worker_tells_what_its_model_does(tasks, served):
    """Until it has told, anything may be asked of it."""
    worker, found = adapter_for("warmlane"), Abilities()
    assert found.surfaces(worker) == GENERATES | worker.paths.keys()
    assert found.is_due(worker, 0.0)
    found.note_list(listed(tasks, max_model_len=64), "m", 100.0)
    assert (found.surfaces(worker), found.context_tokens) == (served, 64)
    assert not found.is_due(worker, 100.0 + ASK_AGAIN_S - 1)
    assert found.is_due(worker, 100.0 + ASK_AGAIN_S)
    found.note_list(b"", "m", 200.0)
    assert found.surfaces(worker) == GENERATES | worker.paths.keys()


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
def test_what_the_operator_says_is_believed(kind):
    """Then nobody is asked."""
    adapter, found = adapter_for(kind), Abilities(frozenset({"embed"}))
    found.note_list(listed(["generate"]), "m", 100.0)
    assert found.surfaces(adapter) == {surfaces.EMBEDDINGS} | (READS & adapter.paths.keys())
    assert not found.is_due(adapter, 1e9)


def test_a_provider_is_taken_to_generate_and_embed():
    """OpenAI's own; who ranks too is said to."""
    provider = adapter_for("openai")
    assert Abilities().surfaces(provider) == GENERATES | {surfaces.EMBEDDINGS}
    assert Abilities(frozenset({"score"})).surfaces(provider) == {surfaces.RERANK}


def test_what_an_engine_had_no_endpoint_for_is_not_asked_again_for_a_while():
    """It may be restarted with other options, so not for ever."""
    engine, found = adapter_for("vllm"), Abilities()
    found.note_lack(surfaces.EMBEDDINGS, 100.0)
    assert surfaces.EMBEDDINGS not in found.surfaces(engine)
    assert not found.expire(100.0 + LACK_S - 1)
    assert found.expire(100.0 + LACK_S)
    assert surfaces.EMBEDDINGS in found.surfaces(engine)
    assert not found.expire(1e9)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b"\xff", b'{"data": []}', b'{"data": [{"id": "x", "tasks": ["embed"]}]}',
     b'{"data": [{"id": "m"}]}', b'{"data": [{"id": "m", "tasks": null}]}', b'{"data": [{"id": "m", "tasks": "embed"}]}',
     b'{"data":' + b"[" * 5000],
)  # fmt: skip
def test_a_list_that_says_nothing_of_tasks_says_nothing(body):
    """As every other engine's."""
    assert told_of(body, "m") is None


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=60))
def test_whatever_an_engine_lists_is_read(body):
    """Never an error."""
    assert told_of(body, "m") is None
