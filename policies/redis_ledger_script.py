"""One batch of rows into the Redis ledger, in one step: what is new is kept and counted, what is known is passed over.

Totals are summed here first, so that a batch costs one increment for each kind of request and not for each row. Sums
of one batch are below 2**53, which Lua keeps exactly.
"""

import hashlib
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

NUM_OWN_KEYS = 5
# KEYS: the hours known, the days known, the day's order, the hour's totals, the day's totals; then one key a row.
# ARGV: hour, day; when rows, the order, the hour's and the day's totals end (Unix seconds); the number of sums; then
#       for each row its id, its `started_at`, the row itself, whose it is, and its sums.
ADD = """
local num_sums = tonumber(ARGV[7])
local width = 4 + num_sums
local found, fresh = {}, 0
for place = 1, #KEYS - 5 do
    local at = 7 + (place - 1) * width
    if redis.call('SET', KEYS[5 + place], ARGV[at + 3], 'NX', 'EXAT', ARGV[3]) then
        fresh = fresh + 1
        redis.call('ZADD', KEYS[3], ARGV[at + 2], ARGV[at + 1])
        local sums = found[ARGV[at + 4]]
        if not sums then
            sums = {}
            for n = 1, num_sums do sums[n] = 0 end
            found[ARGV[at + 4]] = sums
        end
        for n = 1, num_sums do sums[n] = sums[n] + tonumber(ARGV[at + 4 + n]) end
    end
end
if fresh == 0 then return 0 end
for whose, sums in pairs(found) do
    for n = 1, num_sums do
        if sums[n] ~= 0 then
            local amount = string.format('%.0f', sums[n])
            redis.call('HINCRBY', KEYS[4], whose .. n, amount)
            redis.call('HINCRBY', KEYS[5], whose .. n, amount)
        end
    end
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[2])
redis.call('EXPIREAT', KEYS[3], ARGV[4])
redis.call('EXPIREAT', KEYS[4], ARGV[5])
redis.call('EXPIREAT', KEYS[5], ARGV[6])
return fresh
"""
_SHA = hashlib.sha1(ADD.encode(), usedforsecurity=False).hexdigest()  # Redis's name for the script


async def add_batch(redis: Redis, keys: list[str], values: list[Any]) -> int:
    """Run it, loading it into a Redis that does not know it; how many rows were new."""
    try:
        fresh: int = await redis.evalsha(_SHA, len(keys), *keys, *values)
    except NoScriptError:
        fresh = await redis.eval(ADD, len(keys), *keys, *values)
    return fresh
