"""The exact-match response cache of one gateway process: who may be answered from it, and what becomes of an answer.

A kept answer goes through the relay that an engine's would, so that every surface tells it as it always does. It takes
no seat and no turn, costs no tokens, and counts as a request.
"""

from engines.contract import ReplicaError
from gateway.owed import Owed
from gateway.parts import Call, Parts
from gateway.relays import relay_for
from gateway.request import InferenceRequest
from gateway.reserving import Held
from gateway.response_cache.answers import CacheBounds, KeptAnswer
from gateway.response_cache.key import cache_key, wish_of
from gateway.response_cache.recording import UNREADABLE, AnswerRecording
from gateway.response_cache.shapes import to_stream, to_whole
from gateway.settings import ResponseCacheSection
from observability import logs
from policies.meters import Moment

HEADER = b"x-warmlane-cache"


class ResponseCache:
    """Answers what it can; what it cannot is recorded, to be kept when it is complete."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @property
    def is_on(self) -> bool:
        """Whether anything may be kept here at all. Asked for every request."""
        return self._parts.settings.response_cache.max_mb > 0

    async def answered(self, call: Call, held: Held, model: str) -> bool:
        """Whether the call was answered from what was said before. If not, `call.recording` says whether to keep.

        Raises `Refused` where its tenant has nothing left of a limit, as any request would be.
        """
        call.recording = None
        request, kept = call.story.request, self._parts.kept_answers
        assert request is not None, "just read"
        key = cache_key(request, model, held.tenant)
        if key is None:
            return False
        bounds, now = bounds_of(self._parts.settings.response_cache), self._parts.clock()
        wish = wish_of(call.incoming.header(b"cache-control"))
        found = kept.get(key, min(bounds.ttl_s, wish.max_age_s), now)
        if found is not None:
            self._refuse_used_up(held, now)
        if found is not None and await self._replayed(call, request, key, found):
            kept.counts["hit"] += 1
            return True
        kept.counts["miss"] += 1
        _tell(call, b"miss")
        if wish.keeps:
            call.recording = AnswerRecording(
                key, bounds.max_entry_bytes, is_streaming=request.is_streaming, beside=found is not None
            )
        return False

    def _refuse_used_up(self, held: Held, now: float) -> None:
        """Whether a body was large, or came late, must not decide: those are asked for it before they are read."""
        assert held.reservation is not None, "it has arrived"
        rejected = held.reservation.used_up(Moment(now, self._parts.unix()))
        if rejected is not None:
            raise held.refused(rejected)

    def keep(self, call: Call) -> None:
        """The call was answered by an engine: keep what it said, if it is complete."""
        recording, request = call.recording, call.story.request
        assert isinstance(recording, AnswerRecording), "it was to be recorded"
        assert request is not None, "it was read"
        kept, now = self._parts.kept_answers, self._parts.clock()
        bounds = bounds_of(self._parts.settings.response_cache)
        told = recording.answer(request.num_choices)
        if told is None:
            kept.counts["unfit"] += 1
            return
        there = kept.get(recording.key, bounds.ttl_s, now) if recording.beside else None
        assert call.story.principal is not None, "it was let in"
        project = call.story.principal.tenant.project_id
        answer = KeptAnswer(project, now if there is None else there.kept_at)
        if there is not None:
            answer.stream, answer.whole = there.stream, there.whole
        if recording.is_streaming:
            answer.stream = told
        else:
            answer.whole = told
        kept.counts["kept" if kept.put(recording.key, answer, bounds) else "unfit"] += 1

    async def _replayed(self, call: Call, request: InferenceRequest, key: bytes, found: KeptAnswer) -> bool:
        """Whether the call could be answered with this: the relay is fed as an engine would, and takes it at once."""
        body = _in_form(found, is_streaming=request.is_streaming)
        if body is None:
            return False
        now, story = self._parts.clock(), call.story
        _tell(call, b"hit", age_s=now - found.kept_at)
        relay = relay_for(call, request, None, self._parts.settings.timeouts, now)
        relay.on_head(200, [])
        relay.on_data(body)
        relay.on_flush()
        relay.on_end()
        # Whatever was tried before, and failed, is not what its tenant owes for.
        story.decision, story.relayed, story.owed, story.reserved_tokens = None, None, Owed.NOTHING, 0
        try:
            await relay.run(NOBODY)
        except ReplicaError as error:
            self._parts.kept_answers.drop(key)
            if call.answer.has_content:
                raise
            logs.get().warning("response_cache.unreadable", request_id=story.request_id, message=error.message)
            return False
        story.from_cache = True
        return True


class _Nobody:
    """The exchange of an answer that no engine sends."""

    def abort(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


NOBODY = _Nobody()


def bounds_of(section: ResponseCacheSection) -> CacheBounds:
    """The settings in bytes."""
    mb = 1024 * 1024
    return CacheBounds(
        round(section.max_mb * mb),
        round(section.max_mb_per_project * mb),
        section.max_entry_kb * 1024,
        section.ttl_s,
    )


def _in_form(found: KeptAnswer, *, is_streaming: bool) -> bytes | None:
    """As it came, if it came so; else made of the other form; None where that cannot be."""
    same, other = (found.stream, found.whole) if is_streaming else (found.whole, found.stream)
    if same is not None or other is None:
        return same
    try:
        return to_stream(other) if is_streaming else to_whole(other)
    except UNREADABLE:
        return None


def _tell(call: Call, result: bytes, age_s: float | None = None) -> None:
    """In the headers, which are not out yet; a fallback may look a second time."""
    call.headers[:] = [(name, value) for name, value in call.headers if name not in (HEADER, b"age")]
    call.headers.append((HEADER, result))
    if age_s is not None:
        call.headers.append((b"age", b"%d" % age_s))
