"""The path of a generating request inside its frame: prepare, queue, stream or collect.

Both surfaces go this way. Whatever happens on it, leaving the blocks gives the sequences back.
"""

import time
import uuid
from dataclasses import replace

from starlette.types import Receive, Scope, Send

from engines.core.grammar import Grammar
from engines.core.sequence import GenerateRequest
from engines.worker.choice import Choice, Piece
from engines.worker.exchange import Exchange
from engines.worker.generation import Generation
from engines.worker.request_frame import answer_request
from engines.worker.request_log import RequestEntry
from engines.worker.service import Service
from engines.worker.surface import AnswerHead, AnswerWriter, Prepared, Surface, usage_of

_INT64 = 2**63


class GenerateEndpoint:
    """One generating route as an ASGI application."""

    def __init__(self, service: Service, surface: Surface) -> None:
        self._service = service
        self._surface = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        await answer_request(self._service, exchange, self._surface.name, check=self._check, respond=self._answer)

    def _check(self) -> None:
        self._service.check_ready()
        self._service.check_generates()

    async def _answer(self, exchange: Exchange, body: bytes, entry: RequestEntry) -> None:
        service = self._service
        async with service.until_stopped():
            prepared = await service.prepare(lambda: self._surface.prepare(body))
            spec, constraint = prepared.spec, prepared.constraint
            entry.is_streaming, entry.lane = spec.is_streaming, spec.lane.value
            entry.num_choices = len(prepared.prompts) * spec.num_choices
            grammar = await service.grammar_of(constraint, spec.salt) if constraint is not None else None
        with service.open_generation(entry.arrival) as generation:
            generation.start(self._sequences(prepared, grammar, entry.arrival))
            try:
                head = AnswerHead(
                    self._surface.id_prefix + self._answer_id(exchange, entry, prepared),
                    int(time.time()),
                    service.settings.name,
                    service.fingerprint,
                )
                send = self._stream if spec.is_streaming else self._collect
                await send(exchange, generation, self._surface.writer(head, prepared), prepared)
            finally:
                entry.ttft_s = generation.ttft_s
                entry.usage = usage_of(prepared.prompts, generation.choices)

    def _sequences(
        self, prepared: Prepared, grammar: Grammar | None, arrival: float
    ) -> list[tuple[GenerateRequest, Choice]]:
        """One sequence for each choice of each prompt. Ids are ours alone: a client's could be in use."""
        spec, model = prepared.spec, self._service.loaded.model
        reply, piece_of = prepared.reply, model.piece if prepared.reply is None else self._service.family.piece_of
        unique = uuid.uuid4().hex
        sequences: list[tuple[GenerateRequest, Choice]] = []
        for prompt, max_tokens in zip(prepared.prompts, prepared.max_tokens, strict=True):
            for number in range(spec.num_choices):
                seed = spec.sampling.seed
                sampling = replace(
                    spec.sampling,
                    max_tokens=max_tokens,
                    seed=None if seed is None else (seed + number + _INT64) % (2 * _INT64) - _INT64,
                )
                index = len(sequences)
                request = GenerateRequest(
                    f"{unique}-{index}",
                    prompt,
                    sampling,
                    lane=spec.lane,
                    salt=spec.salt,
                    arrival=arrival,
                    grammar=grammar,
                )
                choice = Choice(
                    index,
                    piece_of,
                    matcher=spec.matcher,
                    include_stop=spec.include_stop,
                    min_tokens=spec.sampling.min_tokens,
                    eos_ids=model.eos_ids,
                    reply=reply.reader() if reply is not None else None,
                )
                sequences.append((request, choice))
        return sequences

    @staticmethod
    def _answer_id(exchange: Exchange, entry: RequestEntry, prepared: Prepared) -> str:
        """The header's id wins over the body's, as in vLLM."""
        is_from_header = exchange.header(b"x-request-id") == entry.request_id
        return prepared.request_id if prepared.request_id and not is_from_header else entry.request_id

    @staticmethod
    async def _stream(exchange: Exchange, generation: Generation, writer: AnswerWriter, prepared: Prepared) -> None:
        """Events, one for each piece. Nothing is sent before the first, so that a failure until then has a status."""
        spec = prepared.spec
        pieces = await generation.next_pieces()
        await exchange.start_events()
        events = writer.opening(len(generation.choices))
        while pieces:
            usage = usage_of(prepared.prompts, generation.choices) if spec.continuous_usage else None
            events += [writer.chunk(piece, usage) for piece in pieces]
            await exchange.send_events(events)
            events, pieces = [], await generation.next_pieces()
        if spec.include_usage:
            await exchange.send_events([writer.usage_chunk(usage_of(prepared.prompts, generation.choices))])
        await exchange.end_events()

    @staticmethod
    async def _collect(exchange: Exchange, generation: Generation, writer: AnswerWriter, prepared: Prepared) -> None:
        """The whole answer at its end."""
        collected: list[Piece] = []
        while pieces := await generation.next_pieces():
            collected += pieces
        usage = usage_of(prepared.prompts, generation.choices)
        body = writer.whole(collected, len(generation.choices), usage)
        await exchange.send_json(200, body, [(b"content-type", b"application/json")])
