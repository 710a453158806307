"""An engine that holds every request for a moment and counts, where the work is done, how many of a tenant it has."""

import asyncio
from collections import Counter

from tests.scripted_engine import ScriptedEngine, answer


def tenant_of(request):
    """The first word of its prompt."""
    return prompt_of(request).partition(" ")[0]


def prompt_of(request):
    """The text of its first message."""
    return request.json["messages"][0]["content"]


class HoldingEngine(ScriptedEngine):
    """Answers after `hold_s`. `done`: answers by tenant; `most`: of a tenant's that it had at a time.

    `words`: of an answer. `prompt_tokens`: what it reports, by the request.
    """

    def __init__(self, model, hold_s, words, prompt_tokens):
        super().__init__(model=model)
        self.default = self._hold
        self.done = Counter()
        self.most = Counter()
        self._hold_s = hold_s
        self._words = words
        self._prompt_tokens = prompt_tokens
        self._open = []

    def running(self, tenant):
        """How many requests of a tenant it has now."""
        self._open = [one for one in self._open if not (one.finished.is_set() or one.aborted.is_set())]
        return sum(tenant == tenant_of(one) for one in self._open)

    def _hold(self, request):
        self._open.append(request)
        tenant = tenant_of(request)
        self.done[tenant] += 1
        self.most[tenant] = max(self.most[tenant], self.running(tenant))
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(self._hold_s, gate.set)
        tokens = self._prompt_tokens(request)
        return answer(*self._words, prompt_tokens=tokens, gates={0: gate})(request)
