"""Replies of an engine chunk by chunk, for tests that need exact streams."""

import asyncio
import json

from tests.scripted_engine import Cut, Reply, sse

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def token(text, **fields):
    """A content chunk."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **fields}


def streamed(*events, ending=b""):
    """A reply of these events: objects become JSON events, bytes are written as they are."""
    steps = [event if isinstance(event, (bytes, Cut, asyncio.Event)) else sse(json.dumps(event)) for event in events]
    return Reply([*steps, ending] if ending else steps, headers=[("content-type", "text/event-stream")])


DONE = sse("[DONE]")
