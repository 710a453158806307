"""Small notes beside the Redis store that raise no revision: when keys were used, which alerts were told."""

from policies.redis_link import RedisLink
from policies.redis_rows import Names
from policies.store import Key

_NOTE_USES = """
for i = 1, #ARGV, 2 do
    local known = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '-1')
    if tonumber(ARGV[i + 1]) > known and redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1 then
        redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    end
end
"""


class Notes:
    """Of the store with these names. Every call may raise `StoreError`."""

    def __init__(self, link: RedisLink, names: Names) -> None:
        self._link = link
        self._names = names

    async def uses(self, used_at: dict[str, int]) -> None:
        """When keys were last used; a later time that is known stays, keys that are gone are passed over."""
        arguments = [part for pair in used_at.items() for part in pair]
        keys = (self._names.key_uses, self._names.items(Key))
        await self._link.call(lambda redis: redis.eval(_NOTE_USES, 2, *keys, *arguments), key=self._names.meta)

    async def claim(self, alert_id: str, for_s: float) -> bool:
        """Whether nobody had it."""
        key = self._names.alert(alert_id)
        claimed = await self._link.call(lambda redis: redis.set(key, b"", nx=True, px=_ms(for_s)), key=key)
        return bool(claimed)

    async def settle(self, alert_id: str, for_s: float) -> None:
        """Nobody gets it for so long."""
        key = self._names.alert(alert_id)
        await self._link.call(lambda redis: redis.set(key, b"", px=_ms(for_s)), key=key)


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))
