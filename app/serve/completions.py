"""POST /v1/completions: texts or token ids are continued, whole or as a stream; prompts can be scored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, cast

import msgspec

from app.serve.errors import ApiError
from app.serve.generation import (
    Position,
    Spent,
    Wanted,
    branches,
    generation_options,
    grammar_of,
    listed_prompts,
    prompt_entries,
    prompt_positions,
    refuse_unsupported,
    text_ids,
    token_text,
    tokens_needed,
)
from app.serve.schemas import MOST_CHOICES, Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from app.serve.served_model import ServedModel
from app.serve.sse import Answer, events
from runtime import Finish, LanguageModel, TokenRun

DEFAULT_MAX_TOKENS: Final = 16  # OpenAI's and vLLM's


async def complete(served: ServedModel, request: CompletionRequest) -> Answer:
    """Continues texts or token ids, and scores them.

    Raises:
        ApiError, RuntimeFault: It cannot be answered.
    """
    refuse_unsupported(request)
    model = await served.model_for(request.model)
    prompts = await _prompts(model, request)
    work = _Work(served, model, request, prompts)
    work.check()
    return events(work.chunks(), done=True) if request.stream else await work.whole()


async def _prompts(model: LanguageModel, request: CompletionRequest) -> list[list[int]]:
    listed = listed_prompts(request.prompt, "prompt")
    choices = len(listed) * (request.n or 1)
    if choices > MOST_CHOICES:  # checked before tokenising
        raise ApiError(f"{choices:,} choices are more than the {MOST_CHOICES:,} of one request", param="n")
    special = request.add_special_tokens is not False
    return [
        await text_ids(model, prompt, "prompt", add_special_tokens=special) if isinstance(prompt, str) else prompt
        for prompt in listed
    ]


@dataclass(slots=True)
class _Choice:
    """The state of one choice."""

    prompt: list[int]
    length: int = 0  # characters of its text
    ids: list[int] = field(default_factory=list)


class _Work:
    """Computes the answer to one request, whole or as chunks."""

    def __init__(self, served: ServedModel, model: LanguageModel, request: CompletionRequest, prompts: list[list[int]]) -> None:
        self._served, self._model, self._request, self._prompts = served, model, request, prompts
        self._n = request.n or 1
        self._max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        vocab = model.info.vocab_size
        top = request.logprobs
        chosen = tuple(request.logprob_token_ids or ())
        if chosen and top is None:
            top = 0
        self._wanted = None if top is None else Wanted(top, chosen, vocab)
        prompt_top = request.prompt_logprobs
        if request.echo and top is not None:  # the echoed prompt has log-probabilities too
            prompt_top = max(top, prompt_top or 0) if -1 not in (top, prompt_top) else -1
        self._prompt_wanted = None if prompt_top is None else Wanted(prompt_top, (), vocab)
        self._spent = Spent(sum(map(len, prompts)), served.priority(request.priority), request.cache_salt or "")
        self._id, self._created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self._echoed: dict[int, list[Position]] = {}  # by index of the prompt

    def check(self) -> None:
        """Checks the requested log-probabilities before anything is computed.

        Raises:
            ApiError: There are too many, or their number is not valid.
        """
        request = self._request
        if request.prompt_logprobs is not None and request.prompt_logprobs < -1:
            raise ApiError("prompt_logprobs is -1 (all) or a number of alternatives", param="prompt_logprobs")
        if request.prompt_logprobs is not None and request.stream:
            raise ApiError("prompt_logprobs come with a whole answer: leave out stream", param="prompt_logprobs")
        if self._wanted is not None:
            self._wanted.check(len(self._prompts) * self._n * self._max_tokens, "logprobs")
        if self._prompt_wanted is not None:  # each choice repeats those of its prompt
            positions = self._spent.prompt * self._n
            self._prompt_wanted.check(positions, "prompt_logprobs" if request.prompt_logprobs else "logprobs")

    def _grown(self, choice: _Choice, run: TokenRun, positions: list[Position]) -> CompletionChoice:
        """Adds a run to a choice; returns the new part in the answer's shape."""
        ends = run.by_eos.tolist()
        pieces = ["" if end else text for text, end in zip(run.texts, ends, strict=True)]
        ids = run.ids.tolist()
        finish = finish_reason(Finish(int(run.finish[-1])))
        piece = CompletionChoice(text="".join(pieces), finish_reason=finish, logprobs=None)
        if self._wanted is not None:
            piece.logprobs = self._logprobs(positions, pieces, choice.length)
        if self._request.return_token_ids:
            piece.token_ids = ids
            piece.prompt_token_ids = None if choice.ids else choice.prompt
        choice.length += sum(map(len, pieces))
        choice.ids += ids
        return piece

    def _logprobs(self, positions: Sequence[Position], pieces: Sequence[str], offset: int) -> CompletionLogprobs:
        as_id = bool(self._request.return_tokens_as_token_ids)
        made = CompletionLogprobs([], [], [], [])
        for position, piece in zip(positions, pieces, strict=True):
            name = token_text(self._model, position.token, as_id=as_id)
            made.text_offset.append(offset)
            made.tokens.append(name)
            made.token_logprobs.append(position.logprob)
            offset += len(piece)
            if position.logprob is None:
                made.top_logprobs.append(None)
                continue
            top = {name: position.logprob}
            for token, value in position.top:  # of tokens with equal text the likeliest stays
                top.setdefault(token_text(self._model, token, as_id=as_id), value)
            made.top_logprobs.append(top)
        return made

    async def _score_prompts(self) -> None:
        if self._prompt_wanted is not None:
            for place, prompt in enumerate(self._prompts):
                self._echoed[place] = await prompt_positions(self._model, prompt, place, self._prompt_wanted, self._spent)

    def _echo(self, place: int) -> CompletionChoice:
        """The prompt as the first part of its choices."""
        prompt = self._prompts[place]
        text = self._model.detokenize(prompt)
        piece = CompletionChoice(text=text, finish_reason=None, logprobs=None)
        if self._wanted is not None and place in self._echoed:
            cut = self._wanted.count
            positions = [Position(p.token, p.logprob, p.rank, p.top[:cut]) for p in self._echoed[place]]
            pieces = [token_text(self._model, token) for token in prompt]
            piece.logprobs = self._logprobs(positions, pieces, 0)
        return piece

    async def chunks(self) -> AsyncGenerator[Completion, None]:
        """The answer in chunks, with usage last if requested."""
        usage = self._request.stream_options is not None and self._request.stream_options.include_usage
        async with aclosing(self._pieces()) as pieces:
            async for index, piece in pieces:
                piece.index = index
                chunk = Completion(self._id, self._created, self._served.name, [piece])
                if usage:
                    chunk.usage = None
                yield chunk
        if usage:
            yield Completion(self._id, self._created, self._served.name, [], usage=self._spent.usage)

    async def _pieces(self) -> AsyncGenerator[tuple[int, CompletionChoice], None]:
        request, model = self._request, self._model
        options = generation_options(
            request,
            model,
            max_tokens=max(self._max_tokens, 1),
            recorded=0 if self._wanted is None else self._wanted.recorded,
            grammar=grammar_of(request),
        )
        choices = [_Choice(prompt) for prompt in self._prompts for _ in range(self._n)]
        with self._served.admitted(model, tokens_needed(self._prompts, self._n, self._max_tokens)):
            try:
                await self._score_prompts()
                if request.echo:
                    echoes = [self._echo(place) for place in range(len(self._prompts))]
                    for index, choice in enumerate(choices):
                        echo = echoes[index // self._n]
                        choice.length = len(echo.text) if isinstance(echo.text, str) else 0
                        yield index, msgspec.structs.replace(echo)
                if self._max_tokens == 0:
                    for index, choice in enumerate(choices):
                        ids = choice.prompt if request.return_token_ids else None
                        yield index, CompletionChoice(text="", logprobs=None, finish_reason="length", prompt_token_ids=ids)
                    return
                async with aclosing(branches(model, self._prompts, self._n, options, self._spent)) as runs:
                    async for index, run in runs:
                        choice = choices[index]
                        positions: list[Position] = []
                        if self._wanted is not None:
                            before = [*choice.prompt, *choice.ids] if self._wanted.wide else ()
                            positions = await self._wanted.positions(model, before, run, self._spent)
                        yield index, self._grown(choice, run, positions)
            finally:
                self._served.count(self._spent.usage)

    async def whole(self) -> Completion:
        joined = [CompletionChoice(index=index, text="", logprobs=None) for index in range(len(self._prompts) * self._n)]
        texts: list[list[str]] = [[] for _ in joined]
        async with aclosing(self._pieces()) as pieces:
            async for index, piece in pieces:
                _append(joined[index], piece)
                texts[index].append(cast("str", piece.text))
        for choice, own in zip(joined, texts, strict=True):
            choice.text = "".join(own)
        if self._request.prompt_logprobs is not None:
            cut = Wanted(self._request.prompt_logprobs, (), self._model.info.vocab_size).count
            for place in range(len(self._prompts)):
                positions = [Position(p.token, p.logprob, p.rank, p.top[:cut]) for p in self._echoed[place]]
                entries = prompt_entries(self._model, positions)
                for choice in joined[place * self._n : (place + 1) * self._n]:
                    choice.prompt_logprobs = entries
        return Completion(self._id, self._created, self._served.name, joined, usage=self._spent.usage)


def _append(choice: CompletionChoice, piece: CompletionChoice) -> None:
    """Adds everything of a piece except its text."""
    choice.finish_reason = piece.finish_reason
    if piece.prompt_token_ids is not None:
        choice.prompt_token_ids = piece.prompt_token_ids
    if piece.token_ids is not None:
        choice.token_ids = [*(choice.token_ids or ()), *piece.token_ids]
    if isinstance(piece.logprobs, CompletionLogprobs):
        if not isinstance(choice.logprobs, CompletionLogprobs):
            columns = (list(getattr(piece.logprobs, name)) for name in piece.logprobs.__struct_fields__)
            choice.logprobs = CompletionLogprobs(*columns)  # the choices of a prompt share its echo
            return
        for name in piece.logprobs.__struct_fields__:
            getattr(choice.logprobs, name).extend(getattr(piece.logprobs, name))


def finish_reason(finish: Finish) -> str | None:
    """OpenAI's finish reason; None while the answer runs."""
    if finish in (Finish.LENGTH, Finish.CONTEXT):
        return "length"
    return "stop" if finish.label is not None else None
