"""`POST /v1/chat/completions`: messages in, an assistant's message out."""

from dataclasses import replace

from engines.worker.bounds import check_generation
from engines.worker.chat_writer import ChatWriter
from engines.worker.constraints import constraint_of
from engines.worker.decoding import decode_request
from engines.worker.errors import invalid
from engines.worker.prompts import ChatExtras, ChatPrompt
from engines.worker.schema import ChatRequest
from engines.worker.surface import AnswerHead, Prepared, ServedModel, check_model, room_for
from engines.worker.tools import ToolUse, check_tools


class ChatSurface:
    """Chat completions of one model."""

    name = "chat"
    id_prefix = "chatcmpl-"

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def prepare(self, body: bytes) -> Prepared:
        """Read, check, render and tokenise."""
        request = decode_request(body, ChatRequest)
        check_model(request.model, self._model.name)
        spec = check_generation(request, self._model.vocab_size)
        family = self._model.family
        tools = check_tools(request)
        if tools is not None and family.tool_format is None:
            raise invalid("tools", "this worker does not read tool calls", code="unsupported_parameter")
        form = family.tool_format.form if family.tool_format is not None else None
        constraint = constraint_of(request, tools, form)
        prompt = self._prompt(request, tools)
        is_open = family.tags is not None and prompt.ends_with(family.tags.begin)
        if constraint is not None and family.tags is not None:
            constraint = replace(constraint, reasoning=family.reasoning_tokens(is_open=is_open))
        has_reasoning = constraint is None or constraint.reasoning is not None
        reply = family.reply_style(
            tools, is_open=is_open and has_reasoning, shows_reasoning=request.include_reasoning is not False
        )
        max_tokens = room_for(spec, prompt.tokens, self._model.prompts.max_tokens, self._model.default_max)
        return Prepared(spec, (prompt.tokens,), (max_tokens,), request.request_id, constraint, reply)

    def writer(self, head: AnswerHead, prepared: Prepared) -> ChatWriter:
        """Writes this answer."""
        family = self._model.family
        return ChatWriter(
            head,
            self._model.piece_of,
            wants_logprobs=prepared.spec.sampling.logprobs is not None,
            short_ids=family.tool_format is not None and family.tool_format.short_ids,
        )

    def _prompt(self, request: ChatRequest, tools: ToolUse | None) -> ChatPrompt:
        extras = ChatExtras(
            tools=tools.offered if tools is not None else (),
            documents=tuple(request.documents or ()),
            variables=request.chat_template_kwargs or {},
            reasoning_effort=request.reasoning_effort,
        )
        return self._model.prompts.conversation(
            request.messages,
            extras,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
        )
