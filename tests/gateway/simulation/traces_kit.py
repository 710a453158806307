"""Small traces and fleets for the tests of trace simulations."""

import json

from engines.step_cost import StepCost
from gateway.simulation import mooncake
from gateway.simulation.trace_run import TraceEngine, TraceSettings

SIZE = mooncake.BLOCK_TOKENS


def lines(num=120, num_chats=12, gap_ms=400):
    """Conversations as Mooncake has them: turns of `num_chats` chats in turn, all behind one system block."""
    told, chats, fresh = [], {}, 1
    for number in range(num):
        history = chats.setdefault(number * 7 % num_chats, [0])
        history.append(fresh)
        fresh += 1
        length = SIZE * len(history) + 40
        line = {"timestamp": number * gap_ms, "input_length": length, "output_length": 5 + number % 9}
        told.append(json.dumps(line | {"hash_ids": [*history, 100_000 + number]}).encode())
        if len(history) > 8:
            del history[1:]
    return told


def recording(**shape):
    """They as a recording."""
    return mooncake.record(lines(**shape))


def fleet(num_replicas=3, *, kv_blocks=60, **settings):
    """A fleet of small workers."""
    engine = TraceEngine(StepCost(0.010, 0.001, 0.0002), max_seqs=4, max_step_tokens=1024)
    return TraceSettings(num_replicas, kv_blocks * SIZE, engine=engine, **settings)
