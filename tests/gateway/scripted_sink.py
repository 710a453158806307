"""A client and an engine's exchange that keep what they are told, for the tests of the answer and the relays."""

import asyncio

from tests.scripted_engine import within_patience


class ScriptedSink:
    """A `ClientSink`. `endings`: how often the answer ended, which must be once."""

    def __init__(self):
        self.is_gone = False
        self.status = None
        self.headers = []
        self.length = None
        self.writes = []
        self.endings = []
        self.watcher = None
        self._news = asyncio.Event()

    @property
    def body(self):
        """Everything written."""
        return b"".join(self.writes)

    def start(self, status, headers, length):
        assert self.status is None, "headers are sent once"
        self.status, self.headers, self.length = status, dict(headers), length
        self._news.set()

    def write(self, data):
        assert self.status is not None, "headers come first"
        assert not self.endings, "nothing follows the end"
        self.writes.append(data)
        self._news.set()

    def end(self):
        assert self.status is not None, "headers come first"
        self._ended("end")

    def abort(self):
        self._ended("abort")

    def _ended(self, how):
        assert not self.endings, "an answer ends once"
        self.endings.append(how)
        self._news.set()

    def watch(self, watcher):
        self.watcher = watcher

    def on_gone(self, callback):
        self.callback = callback

    async def until(self, claim):
        """Wait until the claim holds."""

        async def news():
            while not claim():
                self._news.clear()
                await self._news.wait()

        await within_patience(news())


class ScriptedExchange:
    """An `UpstreamExchange`: what it was told, in order."""

    def __init__(self):
        self.calls = []

    def abort(self):
        self.calls.append("abort")

    def pause(self):
        self.calls.append("pause")

    def resume(self):
        self.calls.append("resume")
