"""Trace files of all formats, as recordings."""

import csv
import gzip
import io
import json

import pytest

from gateway.admin.usage_export import COLUMNS
from gateway.simulation.trace_error import TraceError
from gateway.simulation.trace_files import read_lines, read_recording
from tests.benchmarks.affinity_grid import TRACE
from tests.gateway.simulation.traces_kit import SIZE, lines


def chat(at, *contents, answer="yes" * 40, **fields):
    """One line of a conversation; the roles take turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(contents)]
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    return json.dumps({"timestamp": at, "messages": messages, **fields}).encode()


def ledger(*rows):
    """An export, as `warmlane usage export` writes it."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode().splitlines(keepends=True)


def row(at, prompt, cached=0, output=10, key="k1", **fields):
    """One request in it."""
    told = {"started_at": at, "prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": output}
    return told | {"request_id": f"req_{at}", "key": key, "project": "chat"} | fields


def test_the_published_trace_is_whole():
    """Its facts are those that are published of it."""
    facts = read_recording(TRACE).facts()
    assert (facts.requests, facts.prompt_tokens, facts.output_tokens) == (12_031, 144_793_823, 4_122_048)
    assert facts.oracle_hit_tokens / facts.prompt_tokens == pytest.approx(0.3734, abs=1e-4)
    assert facts.duration_s == pytest.approx(3537, abs=1)


def test_mooncake_blocks_that_are_full_can_be_hit(tmp_path):
    """The rest of a prompt is its own; a gzipped file is the same."""
    plain, packed = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.gz"
    plain.write_bytes(b"\n".join(lines(num=20)))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    recording = read_recording(plain)
    assert recording == read_recording(packed)
    first = recording.requests[0]
    assert first.blocks == (0, 1)
    assert first.prompt_tokens == 2 * SIZE + 40
    assert (len(first.key.hashes), first.key.total_bytes) == (3, 4 * first.prompt_tokens)
    assert recording.requests[5].key.hashes[0] == first.key.hashes[0]
    assert recording.requests[5].key.home != first.key.home


def test_requests_are_put_in_order_of_arrival():
    """Time begins with the first."""
    told = lines(num=3)
    recording = read_lines([told[2], told[1], told[1]])
    assert [request.arrival_s for request in recording.requests] == [0.0, 0.0, 0.4]
    assert [request.number for request in recording.requests] == [0, 1, 2]


def test_a_conversation_shares_what_it_repeats():
    """The next turn repeats the messages before it, answer included, within one tenant."""
    text = "a long question about this and that " * 20
    turn = chat(100, text, tenant="a")
    nxt = chat(160, text, "yes" * 40, "and then? " * 30, tenant="a")
    other = chat(170, text, tenant="b")
    one, two, three = read_lines([turn, nxt, other]).requests
    shared = sum(a == b for a, b in zip(one.blocks, two.blocks, strict=False))
    assert shared == len(one.blocks) > 10
    assert set(three.blocks).isdisjoint(one.blocks)
    assert (one.arrival_s, two.arrival_s, three.tenant) == (0.0, 60.0, "b")
    assert one.output_tokens == pytest.approx(35, abs=10)
    assert one.key.hashes[0] == two.key.hashes[0]


def test_lengths_of_answers_are_told_in_three_ways():
    """By the answer, by a count, by usage; else they are assumed."""
    told = [
        chat(1, "q", answer=None, completion_tokens=7),
        chat(2, "q", answer=None, usage={"completion_tokens": 8}),
        chat("2026-11-30T00:00:03Z", "q", answer=None),
    ]
    assert [request.output_tokens for request in read_lines(told[:2]).requests] == [7, 8]
    assert read_lines(told[2:]).requests[0].output_tokens == 200


def test_a_ledger_shares_what_was_cached():
    """With the latest prompt of its key that was long enough, answer included; requests without an answer are left."""
    rows = [row(10, 400), row(11, 300, key="k2"), row(12, 600, cached=400), row(13, 500, output="")]
    one, other, two = read_lines(ledger(*rows)).requests
    assert two.blocks[:25] == one.blocks == two.blocks[: len(one.blocks)]
    assert set(other.blocks).isdisjoint(one.blocks)
    assert read_lines(ledger(*rows)).facts().oracle_hit_tokens == 400


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ([], "no request"),
        ([b"\n"], "no request"),
        ([b"{"], "no trace that is known"),
        ([b'{"prompt": "x"}'], "no trace that is known"),
        ([b'{"messages": [], "timestamp": 1}'], "line 1: a request has a message"),
        ([chat(1, answer="only an answer")], "line 1: a request has a message"),
        ([chat(1, "q"), b'{"messages": 1, "timestamp": 2}'], "line 2"),
        ([chat(1, "q", answer=None, completion_tokens=0)], "line 1"),
        ([b"request_id,started_at\n", b"a,1\n"], "lacks key, project"),
        (ledger(row("yesterday", 10)), "line 2"),
        (ledger(row(1, 0)), "no answered request"),
        ([*ledger(row(1, 10)), b"half\ra line\n"], "line 3"),
        ([*ledger(row(1, 10)), b"\xff" * 200_000 + b"\n"], "line 3"),
        ([chat(1, "q"), b'{"messages": [{"role": "\xff"}], "timestamp": 2}'], "line 2"),
    ],
)
def test_what_is_no_trace_is_told(told, sentence):
    """One sentence, with the line."""
    with pytest.raises(TraceError, match=sentence):
        read_lines(told)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """Missing, a folder, or half a gzip file."""
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(b"\n".join(lines(num=50)))[:-30])
    for path in (tmp_path / "missing", tmp_path, cut):
        with pytest.raises(TraceError, match=path.name):
            read_recording(path)
