"""The relays of a chat whose client speaks another language: the same, but for the words that leave.

What cannot be translated is found out while it is taken, so that another replica may still be tried.
"""

from collections.abc import Callable

from gateway.answer import ClientAnswer
from gateway.relay import WholeRelay
from gateway.settings import TimeoutSection
from gateway.sink import ClientSink
from gateway.streaming import StreamRelay
from gateway.translation import Translation


class TranslatedWhole(WholeRelay):
    """Collects an unstreamed answer and sends what it is in the client's language."""

    def __init__(
        self,
        answer: ClientAnswer,
        sink: ClientSink,
        timeouts: TimeoutSection,
        first_token_s: float,
        *,
        translation: Translation,
    ) -> None:
        super().__init__(answer, sink, timeouts, first_token_s)
        self._translation = translation

    def _told(self, body: bytes) -> bytes:
        return self._translation.whole(body, self.relayed.usage)


class TranslatedStream(StreamRelay):
    """Relays each chunk as the events that it is in the client's language."""

    def __init__(
        self,
        answer: ClientAnswer,
        sink: ClientSink,
        timeouts: TimeoutSection,
        first_token_s: float,
        *,
        on_first: Callable[[], None],
        num_choices: int,
        translation: Translation,
    ) -> None:
        super().__init__(
            answer, sink, timeouts, first_token_s, on_first=on_first, wants_usage=False, num_choices=num_choices
        )
        self._translation = translation
        self._event = translation.chunk
        answer.failure = translation.failure

    def _ending(self) -> list[bytes]:
        return [self._translation.end(self.relayed.usage)]
