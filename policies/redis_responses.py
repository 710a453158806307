"""Kept responses beside the Redis store: each a key that ends by itself, and for each project what it holds, in order.

A project's order and sizes are kept by the same script that writes and bounds them, so that they are of one moment.
"""

import struct
from collections.abc import Sequence

from policies.kept_responses import KeptBound, KeptResponse
from policies.redis_link import RedisLink
from policies.redis_rows import Names
from policies.store import Project

_CALL_S = 2.0  # a conversation of a few MB takes longer than a note; nobody's first token waits for it
# Before the content: when it ends, by the clock of whoever wrote it. Its 8 bytes count for no bound.
_END = struct.Struct("<d")

# KEYS: projects, order (sorted set id -> number of its place), sizes (hash id -> bytes, '' -> all, '#' -> last place),
# the response. ARGV: project, id, content, milliseconds, most, most bytes, the beginning of each response's name.
_DROP = """
local function drop(id)
    redis.call('UNLINK', ARGV[7] .. id)
    redis.call('ZREM', KEYS[2], id)
    local size = redis.call('HGET', KEYS[3], id)
    if size then
        redis.call('HDEL', KEYS[3], id)
        redis.call('HINCRBY', KEYS[3], '', 0 - tonumber(size))
    end
end
"""
_KEEP = (
    _DROP
    + """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
drop(ARGV[2])
redis.call('SET', KEYS[4], ARGV[3], 'PX', ARGV[4])
redis.call('ZADD', KEYS[2], redis.call('HINCRBY', KEYS[3], '#', 1), ARGV[2])
local size = #ARGV[3] - 8
redis.call('HSET', KEYS[3], ARGV[2], size)
local total = redis.call('HINCRBY', KEYS[3], '', size)
while redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[5]) or total > tonumber(ARGV[6]) do
    local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)
    if #oldest == 0 then break end
    drop(oldest[1])
    total = tonumber(redis.call('HGET', KEYS[3], ''))
end
local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)
while #oldest > 0 and redis.call('EXISTS', ARGV[7] .. oldest[1]) == 0 do
    drop(oldest[1])
    oldest = redis.call('ZRANGE', KEYS[2], 0, 0)
end
for i = 2, 3 do
    if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[4]) then redis.call('PEXPIRE', KEYS[i], ARGV[4]) end
end
return 1
"""
)
_FORGET = (
    _DROP
    + """
local there = redis.call('EXISTS', KEYS[4])
drop(ARGV[2])
return there
"""
)


class Responses:
    """Of the store with these names. Every call may raise `StoreError`."""

    def __init__(self, link: RedisLink, names: Names) -> None:
        self._link = link
        self._names = names

    async def keep(self, responses: Sequence[KeptResponse], bound: KeptBound, now: float) -> None:
        """Add each, and bring its project within the bound."""
        for one in responses:
            content = _END.pack(one.expires_at) + one.content
            ends_in_ms = max(1, int((one.expires_at - now) * 1000))
            await self._run(_KEEP, one.project_id, one.id, content, ends_in_ms, bound.number, bound.total_bytes)

    async def content(self, project_id: str, response_id: str, now: float) -> bytes | None:
        """What is kept, while its time lasts."""
        key = self._names.response(project_id, response_id)
        found = await self._link.call(lambda redis: redis.get(key), timeout_s=_CALL_S, key=key)
        assert not isinstance(found, str), "the client decodes nothing"
        if found is None or _END.unpack_from(found)[0] <= now:
            return None
        return found[_END.size :]

    async def drop(self, project_id: str, response_id: str, now: float) -> bool:
        """Whether there was one."""
        is_there = await self.content(project_id, response_id, now) is not None
        return bool(await self._run(_FORGET, project_id, response_id, b"", 0, 0, 0)) and is_there

    async def _run(self, script: str, project_id: str, response_id: str, *values: bytes | int) -> object:
        names = self._names
        order, sizes = names.responses_of(project_id), names.response_sizes(project_id)
        keys = (names.items(Project), order, sizes, names.response(project_id, response_id))
        arguments = (project_id, response_id, *values, names.response(project_id, ""))
        return await self._link.call(
            lambda redis: redis.eval(script, len(keys), *keys, *arguments), timeout_s=_CALL_S, key=names.meta
        )
