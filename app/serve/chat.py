"""POST /v1/chat/completions: a conversation is answered by the model's chat template, whole or as a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec

from app.serve.answer_text import CLOSE, OPEN, AnswerReader, Delta, forced_schema
from app.serve.completions import finish_reason
from app.serve.errors import ApiError
from app.serve.generation import (
    Position,
    Spent,
    Wanted,
    branches,
    generation_options,
    grammar_of,
    prompt_entries,
    prompt_positions,
    refuse_unsupported,
    token_text,
    tokens_needed,
)
from app.serve.schemas import (
    ChatChoice,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    FunctionCall,
    PositionLogprobs,
    ToolCallEntry,
)
from app.serve.served_model import ServedModel
from app.serve.sse import Answer, events
from runtime import Finish, Grammar, LanguageModel, TokenRun, ToolCall, check_fits

Messages = list[dict[str, Any]]
THINK_TOKENS = 16  # last tokens of a prompt in which a template opens the reasoning


async def chat(served: ServedModel, request: ChatRequest) -> Answer:
    """Answers a conversation.

    Raises:
        ApiError, RuntimeFault: It cannot be answered.
    """
    refuse_unsupported(request)
    if request.add_special_tokens:
        raise ApiError("add_special_tokens is not supported here: the template writes them", param="add_special_tokens")
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError("top_logprobs go with logprobs: true", param="top_logprobs")
    if request.prompt_logprobs is not None and (request.stream or request.prompt_logprobs < -1):
        raise ApiError("prompt_logprobs is -1 or more, and comes with a whole answer", param="prompt_logprobs")
    model = await served.model_for(request.model)
    tools, grammar = _tools_of(request)
    messages = conversation(request.messages)
    ids = await rendered(model, messages, tools)
    work = _Work(served, model, request, ids, tools, grammar)
    return events(work.chunks(), done=True) if request.stream else await work.whole()


def conversation(given: Messages) -> Messages:
    """Messages in the form that templates expect: content as one text, arguments of calls as objects.

    Raises:
        ApiError: A message has another shape, or a part that is not text; names the place.
    """
    if not given:
        raise ApiError("messages is empty: give at least one", param="messages")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(given)]


def _message(message: dict[str, Any], place: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise ApiError(f"{place} has no role", param="messages")
    made = {**message, "role": "system" if role == "developer" else role, "content": _content(message.get("content"), place)}
    calls = message.get("tool_calls")
    if calls is None:
        made.pop("tool_calls", None)
        return made
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls
    ):
        raise ApiError(f"{place}.tool_calls is a list of calls with a function", param="messages")
    made["tool_calls"] = [{**call, "function": _with_object(call["function"], place)} for call in calls]
    return made


def _with_object(function: dict[str, Any], place: str) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return function
    try:
        return {**function, "arguments": json.loads(arguments or "{}")}
    except (ValueError, RecursionError):
        raise ApiError(f"{place}: the arguments of a tool call are no JSON", param="messages") from None


def _content(content: Any, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(f'{place}.content is a text, or a list of {{"type": "text", "text": ...}}', param="messages")
    return "\n".join(cast("list[str]", texts))


async def rendered(
    model: LanguageModel, messages: Messages, tools: Messages | None, *, add_generation_prompt: bool = True
) -> list[int]:
    """The ids of a conversation.

    Raises:
        UnsupportedFeatureError: There is no chat template, or it takes no tools.
        ContextOverflowError: It is longer than the context.
    """
    check_fits(model, *(message["content"] for message in messages), stage="messages")
    return await model.render_chat_async(messages, tools=tools, add_generation_prompt=add_generation_prompt)


def _tools_of(request: ChatRequest) -> tuple[Messages | None, Grammar | None]:
    """The tools to offer, and the grammar of the answer, maybe from `tool_choice`.

    Raises:
        ApiError: `tool_choice` is not valid, or contradicts the other fields.
    """
    choice, tools = request.tool_choice, request.tools or None
    grammar = grammar_of(request)
    if choice in (None, "auto"):
        return tools, grammar
    if choice == "none":
        return None, grammar
    name: str | None = None
    if isinstance(choice, dict):
        function = choice.get("function")
        named = function.get("name") if isinstance(function, dict) else None
        if not isinstance(named, str):
            raise ApiError('tool_choice is {"type": "function", "function": {"name": ...}}', param="tool_choice")
        name = named
    elif choice != "required":
        raise ApiError("tool_choice is none, auto, required, or names a function", param="tool_choice")
    if tools is None:
        raise ApiError("tool_choice asks for a call, but there are no tools", param="tool_choice")
    if grammar is not None:
        raise ApiError("tool_choice and a form of the answer contradict each other", param="tool_choice")
    return tools, Grammar.json_schema(forced_schema(tools, name))


class _Work:
    """Computes the answer to one request, whole or as chunks."""

    def __init__(
        self,
        served: ServedModel,
        model: LanguageModel,
        request: ChatRequest,
        ids: list[int],
        tools: Messages | None,
        grammar: Grammar | None,
    ) -> None:
        self._served, self._model, self._request, self._ids = served, model, request, ids
        room = max(model.info.context_length - len(ids), 1)
        asked = request.max_completion_tokens or request.max_tokens
        self._max_tokens = room if asked is None else asked
        self._n = request.n or 1
        chosen = tuple(request.logprob_token_ids or ())
        wants = request.logprobs or chosen
        self._wanted = Wanted(request.top_logprobs or 0, chosen, model.info.vocab_size) if wants else None
        if self._wanted is not None:
            if asked is None and not self._wanted.wide:
                self._max_tokens = min(room, self._wanted.longest(self._n))
            self._wanted.check(self._n * self._max_tokens, "top_logprobs")
        self._options = generation_options(
            request,
            model,
            max_tokens=self._max_tokens,
            recorded=0 if self._wanted is None else self._wanted.recorded,
            grammar=grammar,
        )
        opened = model.detokenize(ids[-THINK_TOKENS:]).rstrip().endswith(OPEN)
        own_end = grammar is not None and grammar.kind != "json_schema" and CLOSE in grammar.source
        thinking = opened and (grammar is None or own_end)  # a grammar applies from the first token on
        forced = tools is not None and request.tool_choice not in (None, "auto")
        self._readers = [AnswerReader(tools, thinking=thinking, forced=forced) for _ in range(self._n)]
        self._spent = Spent(len(ids), served.priority(request.priority), request.cache_salt or "")
        self._id, self._created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        self._prompt_entries: list[PositionLogprobs] | None = None

    async def _pieces(self) -> AsyncGenerator[tuple[int, ChatChoice, Delta], None]:
        """Index, choice and new text of each run; text that may become a call or reasoning is held back."""
        request, model = self._request, self._model
        drawn: list[list[int]] = [[] for _ in range(self._n)]
        called = [False] * self._n
        with self._served.admitted(model, tokens_needed([self._ids], self._n, self._max_tokens)):
            try:
                if request.prompt_logprobs is not None:
                    wanted = Wanted(request.prompt_logprobs, (), model.info.vocab_size)
                    wanted.check(len(self._ids), "prompt_logprobs")
                    positions = await prompt_positions(model, self._ids, 0, wanted, self._spent)
                    self._prompt_entries = prompt_entries(model, positions)
                async with aclosing(branches(model, [self._ids], self._n, self._options, self._spent)) as runs:
                    async for index, run in runs:
                        choice, delta = await self._grown(index, run, drawn[index])
                        called[index] = called[index] or bool(delta.calls)
                        if called[index] and choice.finish_reason == "stop":
                            choice.finish_reason = "tool_calls"
                        yield index, choice, delta
            finally:
                self._served.count(self._spent.usage)

    async def _grown(self, index: int, run: TokenRun, drawn: list[int]) -> tuple[ChatChoice, Delta]:
        finish = finish_reason(Finish(int(run.finish[-1])))
        text = run.answer
        choice = ChatChoice(index=index, finish_reason=finish, logprobs=None)
        ids = run.ids.tolist()
        if self._wanted is not None:
            before = [*self._ids, *drawn] if self._wanted.wide else ()
            positions = await self._wanted.positions(self._model, before, run, self._spent)
            choice.logprobs = ChatLogprobs(self._logprobs(positions))
        if self._request.return_token_ids:
            choice.token_ids = ids
        drawn += ids
        reader = self._readers[index]
        delta = reader.feed(text)
        if finish is not None:
            last = reader.finish(whole=finish == "stop")
            delta = Delta(delta.reasoning + last.reasoning, delta.content + last.content, (*delta.calls, *last.calls))
        return choice, delta

    def _logprobs(self, positions: Sequence[Position]) -> list[ChatLogprob]:
        return [
            self._logprob(each.token, each.logprob or 0.0, [self._logprob(token, value, None) for token, value in each.top])
            for each in positions
        ]

    def _logprob(self, token: int, value: float, top: list[ChatLogprob] | None) -> ChatLogprob:
        name = token_text(self._model, token, as_id=bool(self._request.return_tokens_as_token_ids))
        made = ChatLogprob(token=name, logprob=value, bytes=list(self._model.decode_token(token)))
        if top is not None:
            made.top_logprobs = top
        return made

    def _answer(self, kind: str, choices: list[ChatChoice]) -> ChatCompletion:
        return ChatCompletion(self._id, self._created, self._served.name, choices, object=kind)

    async def chunks(self) -> AsyncGenerator[ChatCompletion, None]:
        """The answer in chunks, with usage last if requested."""
        kind = "chat.completion.chunk"
        usage = self._request.stream_options is not None and self._request.stream_options.include_usage
        begun: set[int] = set()
        counted = [0] * self._n  # calls of each choice
        async with aclosing(self._pieces()) as pieces:
            async for index, choice, delta in pieces:
                first = index not in begun
                begun.add(index)
                entries = [_entry(call, counted[index] + place) for place, call in enumerate(delta.calls)]
                counted[index] += len(entries)
                message = ChatMessage(tool_calls=entries or None)
                if first:
                    message.role = "assistant"
                if delta.content or first:
                    message.content = delta.content
                if delta.reasoning:
                    message.reasoning = message.reasoning_content = delta.reasoning
                if not (first or message != ChatMessage() or choice.finish_reason or choice.logprobs or choice.token_ids):
                    continue
                choice.delta = message
                chunk = self._answer(kind, [choice])
                if first and self._request.return_token_ids:
                    chunk.prompt_token_ids = self._ids
                if usage:
                    chunk.usage = None
                yield chunk
        if usage:
            last = self._answer(kind, [])
            last.usage = self._spent.usage
            yield last

    async def whole(self) -> ChatCompletion:
        joined = [ChatChoice(index=index, logprobs=None, finish_reason=None) for index in range(self._n)]
        parts: list[list[Delta]] = [[] for _ in joined]
        async with aclosing(self._pieces()) as pieces:
            async for index, choice, delta in pieces:
                parts[index].append(delta)
                into = joined[index]
                into.finish_reason = choice.finish_reason
                if choice.token_ids is not None:
                    into.token_ids = [*(into.token_ids or ()), *choice.token_ids]
                if isinstance(choice.logprobs, ChatLogprobs):
                    if isinstance(into.logprobs, ChatLogprobs):
                        into.logprobs.content.extend(choice.logprobs.content)
                    else:
                        into.logprobs = choice.logprobs
        for choice, deltas in zip(joined, parts, strict=True):
            calls = [call for delta in deltas for call in delta.calls]
            content, reasoning = "".join(d.content for d in deltas), "".join(d.reasoning for d in deltas)
            message = ChatMessage(role="assistant", content=None if calls and not content.strip() else content)
            message.tool_calls = [_entry(call, None) for call in calls] or None
            message.reasoning = message.reasoning_content = reasoning or None
            choice.message = message
        answer = self._answer("chat.completion", joined)
        answer.usage, answer.prompt_logprobs = self._spent.usage, self._prompt_entries
        answer.prompt_token_ids = self._ids if self._request.return_token_ids else None
        return answer


def _entry(call: ToolCall, index: int | None) -> ToolCallEntry:
    """A call in OpenAI's shape, with its index in streams."""
    arguments = msgspec.json.encode(call.arguments).decode()
    entry = ToolCallEntry(id=f"call_{call.id}", type="function", function=FunctionCall(call.name, arguments))
    if index is not None:
        entry.index = index
    return entry
