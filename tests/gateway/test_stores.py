"""Which store a URL means, and that nothing of Redis is touched without one."""

import subprocess
import sys

import pytest

from gateway.settings import ConfigError, StoreSection
from gateway.stores import is_made, opened, store_name
from policies.store import StoreError
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures

NOWHERE = StoreSection(url="redis://user:secret@127.0.0.1:1/0")


async def test_sqlite_is_a_file_that_is_made_when_it_is_opened(tmp_path):
    """The default, in the home folder; looking makes nothing."""
    section = StoreSection()
    assert store_name(section, tmp_path) == str(tmp_path / "warmlane.sqlite3")
    assert not await is_made(section, tmp_path)
    async with opened(section, tmp_path) as store:
        await store.create_organization("o")
    assert await is_made(section, tmp_path)
    with pytest.raises(StoreError):
        await store.organizations()


async def test_redis_holds_the_same_store(redis_server, tmp_path):  # noqa: F811
    """What one gateway writes another reads; looking makes nothing there either."""
    section = StoreSection(url=redis_server.url)
    assert not await is_made(section, tmp_path)
    async with opened(section, tmp_path) as store:
        await store.create_organization("o")
    assert await is_made(section, tmp_path)
    async with opened(section, tmp_path) as again:
        assert [one.name for one in (await again.organizations()).items] == ["o"]
    assert list(tmp_path.iterdir()) == []


async def test_a_store_that_does_not_answer_is_one_sentence_without_its_password(tmp_path):
    """It stands in logs and on terminals."""
    assert store_name(NOWHERE, tmp_path) == "redis://127.0.0.1:1/0"
    with pytest.raises(StoreError, match=r"redis://127\.0\.0\.1:1/0 failed") as raised:
        async with opened(NOWHERE, tmp_path):
            pass
    assert "secret" not in str(raised.value)
    with pytest.raises(StoreError):
        await is_made(NOWHERE, tmp_path)


@pytest.mark.parametrize("url", ["redis://:port", "redis://host:99999999/0", "postgres://x/y", "redis:/x"])
def test_a_url_of_no_store_is_refused(tmp_path, url):
    """Before anything is started."""
    with pytest.raises((ConfigError, StoreError)):
        store_name(StoreSection(url=url), tmp_path)


def test_a_gateway_with_sqlite_loads_nothing_of_redis():
    """One process costs nothing for what several need."""
    check = "import sys, gateway.process, gateway.supervisor, gateway.doctor; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
