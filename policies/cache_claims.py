"""Which cache domain owns an engine that knows no salt: the contract of who keeps it, and one that forgets at the end.

Kept outside the process, because an engine's cache outlives the gateways: one that starts anew must not give an engine
to a second tenant. Domains are those of `policies/tenant.py`, engines are named by their URL.
"""

from typing import Protocol


class CacheClaims(Protocol):
    """Any method may raise `StoreError`."""

    async def claim(self, url: str, domain: str) -> str:
        """The owner of the engine: `domain` if it had none, and whoever came first among several that ask at once."""
        ...

    async def release(self, url: str) -> None:
        """The engine has no owner any more. Harmless if it had none."""
        ...

    async def owners(self) -> dict[str, str]:
        """Every engine that has an owner."""
        ...

    async def close(self) -> None:
        """Let go of what keeps them. Harmless the second time."""
        ...


class MemoryCacheClaims:
    """`CacheClaims` of one process, for tests and the simulator."""

    def __init__(self) -> None:
        self._domains: dict[str, str] = {}

    async def claim(self, url: str, domain: str) -> str:
        """The owner."""
        return self._domains.setdefault(url, domain)

    async def release(self, url: str) -> None:
        """No owner any more."""
        self._domains.pop(url, None)

    async def owners(self) -> dict[str, str]:
        """A copy."""
        return dict(self._domains)

    async def close(self) -> None:
        """Nothing to let go of."""
