"""Turns the fields of a request into token runs: options, grammars, several prompts at once, and log-probabilities."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from app.serve.errors import ApiError
from app.serve.schemas import PositionLogprobs, Prompts, PromptTokensDetails, SamplingRequest, StructuredOutputs, Usage
from app.serve.served_model import TOKENS_AHEAD
from runtime import GenerationOptions, Grammar, LanguageModel, Priority, PromptProgress, SamplingOptions, TokenRun, check_fits

MOST_RECORDED: Final = 1000  # alternatives in a token run; more are taken from whole rows
MOST_ENTRIES: Final = 4_000_000  # log-probabilities in one answer, about 40 bytes of JSON each
FLOOR: Final = -9999.0  # replaces minus infinity, which JSON lacks; as in vLLM
UNSUPPORTED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {  # by field: values without effect, and why others are refused
    "min_tokens": ((None, 0), "no least length can be asked for; ignore_eos goes on to max_tokens"),
    "use_beam_search": ((None, False), "beam search is not served"),
    "include_stop_str_in_output": ((None, False), "an answer ends before its stop string"),
    "skip_special_tokens": ((None, False), "control tokens that the model draws are spelt out in the text"),
    "allowed_token_ids": ((None,), "use structured_outputs, or logit_bias"),
    "bad_words": ((None, []), "use logit_bias with -100"),
    "suffix": ((None, ""), "the model continues texts; it fills no gaps"),
    "continue_final_message": ((None, False), "render the conversation with /tokenize and continue its ids in /v1/completions"),
    "chat_template": ((None,), "the template is chosen when the server starts (--format)"),
    "chat_template_kwargs": ((None, {}), "the template takes no arguments here"),
    "reasoning_effort": ((None,), "the template takes no arguments here"),
    "modalities": ((None, ["text"]), "text is the only modality"),
    "functions": ((None,), "use tools"),
    "function_call": ((None,), "use tool_choice"),
    "add_generation_prompt": ((None, True), "use /tokenize, and /v1/completions with ids"),
}
_META = re.compile(r"[^0-9A-Za-z_]")
_SAMPLING: Final = (
    "temperature", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


def refuse_unsupported(request: SamplingRequest) -> None:
    """Refuses known fields that would change the answer but are not supported.

    Raises:
        ApiError: There is one; says what to use instead.
    """
    for name, (neutral, reason) in UNSUPPORTED.items():
        value = getattr(request, name, None)
        if value not in neutral:
            raise ApiError(f"{name} is not supported: {reason}", param=name)
    if request.best_of not in (None, request.n or 1):
        raise ApiError("best_of is not supported beside n: ask for n answers and choose", param="best_of")
    if request.stream_options is not None and not request.stream:
        raise ApiError("stream_options go with stream: true", param="stream_options")


def generation_options(
    request: SamplingRequest,
    model: LanguageModel,
    *,
    max_tokens: int,
    recorded: int,
    grammar: Grammar | None,
) -> GenerationOptions:
    """The library's options for a request; unset ones are left to the model's own settings, then the defaults.

    Raises:
        ApiError: A key of `logit_bias` is not a token id.
        InvalidRequestError: A value out of range.
    """
    sampling: dict[str, Any] = {name: getattr(request, name) for name in _SAMPLING}
    if request.top_k is not None:
        sampling["top_k"] = max(request.top_k, 0) if request.top_k >= -1 else request.top_k
    if request.logit_bias:
        if not all(key.isdecimal() and len(key) < 20 for key in request.logit_bias):
            raise ApiError("logit_bias maps token ids, as decimal text, to numbers", param="logit_bias")
        sampling["logit_bias"] = {int(key): value for key, value in request.logit_bias.items()}
    options = GenerationOptions(
        max_tokens=max_tokens,
        sampling=SamplingOptions(**sampling),
        stop=_texts(request.stop),
        ignore_eos=bool(request.ignore_eos),
        top_k=recorded,
        seed=request.seed,
        grammar=grammar,
    ).check()
    if request.stop_token_ids:  # in addition to the usual end tokens
        own = model.resolve_options(options).options
        eos = () if request.ignore_eos else own.eos_token_ids or ()
        options = replace(options, stop=own.stop, ignore_eos=False, eos_token_ids=(*eos, *request.stop_token_ids))
    return options.check(model.info.vocab_size)


def _texts(stop: str | list[str] | None) -> tuple[str, ...]:
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def grammar_of(request: SamplingRequest) -> Grammar | None:
    """The output format of the answer; None if the request has none.

    Raises:
        ApiError: Two formats, or `structured_outputs` without one.
        GrammarError: The schema is not valid.
    """
    form, outputs = request.response_format, request.structured_outputs
    if form is not None and outputs is not None:
        raise ApiError("response_format and structured_outputs contradict each other: give one of them")
    if form is not None:
        return GenerationOptions.from_mapping({"response_format": form}).grammar
    return None if outputs is None else _structured(outputs)


def _structured(outputs: StructuredOutputs) -> Grammar:
    given = [name for name in outputs.__struct_fields__ if getattr(outputs, name) not in (None, False)]
    if len(given) != 1:
        raise ApiError(
            f"structured_outputs takes exactly one of {', '.join(outputs.__struct_fields__)}", param="structured_outputs"
        )
    if outputs.choice is not None:
        if not outputs.choice:
            raise ApiError("structured_outputs.choice is empty", param="structured_outputs")
        return Grammar.regex("|".join(_literal(choice) for choice in outputs.choice))
    if outputs.regex is not None:
        return Grammar.regex(outputs.regex)
    if outputs.grammar is not None:
        return Grammar.lark(outputs.grammar)
    return Grammar.json_schema({"type": "object"} if outputs.json is None else outputs.json)


def _literal(text: str) -> str:
    """A Rust regular expression that matches only this text."""
    return _META.sub(lambda found: f"\\x{{{ord(found[0]):x}}}", text)


# ---- prompts and usage -------------------------------------------------------------------------------------------


def listed_prompts(given: Prompts, param: str) -> list[str | list[int]]:
    """One or several prompts as a list.

    Raises:
        ApiError: There is none, or texts and ids are mixed.
    """
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(f"{param} is missing or empty: give a text, token ids, or a list of either", param=param)
    ids = [each for each in given if isinstance(each, int)]
    if ids and len(ids) == len(given):
        return [ids]
    prompts = [each for each in given if not isinstance(each, int)]
    if ids:
        raise ApiError(f"{param}: token ids and prompts stand in one list; put ids into a list of their own", param=param)
    return prompts


async def text_ids(model: LanguageModel, text: str, param: str, *, add_special_tokens: bool = True) -> list[int]:
    """The ids of a text.

    Args:
        model: The model.
        text: Special strings in it are plain text.
        param: The request's field, for errors.
        add_special_tokens: Whether to add the tokens that the tokenizer puts before every text.
    """
    check_fits(model, text, stage=param)
    return await model.tokenize_async(text, add_special_tokens=add_special_tokens)


@dataclass(slots=True)
class Spent:
    """Priority and cache salt of a request, and its token counts so far."""

    prompt: int = 0
    priority: Priority = Priority.CHAT
    cache_salt: str = ""
    cached: int = 0
    drawn: int = 0
    _known: set[int] = field(default_factory=set)  # prompts whose cached tokens are counted

    def on_progress(self, place: int, progress: PromptProgress) -> None:
        """Counts the cached tokens of prompt `place`, when the first operation on it has read the prompt."""
        if progress.done == progress.total and place not in self._known:
            self._known.add(place)
            self.cached += progress.reused or 0

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt, self.drawn, self.prompt + self.drawn, PromptTokensDetails(self.cached))


def tokens_needed(prompts: Sequence[Sequence[int]], n: int, max_tokens: int) -> int:
    """The tokens of a request for `ServedModel.admitted`."""
    return sum(map(len, prompts)) + len(prompts) * n * min(max_tokens, TOKENS_AHEAD)


def branches(
    model: LanguageModel, prompts: Sequence[list[int]], n: int, options: GenerationOptions, spent: Spent
) -> AsyncGenerator[tuple[int, TokenRun], None]:
    """Yields runs with the index of their choice: ``i * n + k`` is answer k to prompt i. The first fault ends all."""
    answers = [_answers(model, prompts, place, n, options, spent) for place in range(len(prompts))]
    return answers[0] if len(answers) == 1 else _joined(answers)


async def _joined(sources: Sequence[AsyncGenerator[tuple[int, TokenRun], None]]) -> AsyncGenerator[tuple[int, TokenRun], None]:
    queue: asyncio.Queue[tuple[int, TokenRun] | None] = asyncio.Queue()

    async def read(source: AsyncGenerator[tuple[int, TokenRun], None]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    queue.put_nowait(item)
        finally:
            queue.put_nowait(None)

    readers = [asyncio.create_task(read(source)) for source in sources]
    try:
        left = len(readers)
        while left:
            item = await queue.get()
            if item is not None:
                yield item
                continue
            left -= 1
            for reader in readers:
                if reader.done() and not reader.cancelled() and (fault := reader.exception()) is not None:
                    raise fault
        for reader in readers:  # raises a fault of a task that had not ended when its None was read
            await reader
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _answers(
    model: LanguageModel, prompts: Sequence[list[int]], place: int, n: int, options: GenerationOptions, spent: Spent
) -> AsyncGenerator[tuple[int, TokenRun], None]:
    stream = model.continue_many_runs(
        prompts[place],
        n,
        options,
        priority=spent.priority,
        cache_salt=spent.cache_salt,
        on_progress=partial(spent.on_progress, place),
    )
    async with aclosing(stream) as runs:
        async for branch, run in runs:
            spent.drawn += len(run)
            yield place * n + branch, run


# ---- log-probabilities -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Position:
    """The numbers of one token, in nats, of the raw distribution."""

    token: int
    logprob: float | None
    rank: int | None
    top: list[tuple[int, float]]  # by descending probability, then the requested ids


@dataclass(frozen=True, slots=True)
class Wanted:
    """The log-probabilities that a request asks for."""

    top: int  # alternatives per position; -1 is the whole vocabulary
    chosen: tuple[int, ...]  # more ids that are reported at every position
    vocab_size: int  # of the model

    @property
    def count(self) -> int:
        """Alternatives per position."""
        return self.vocab_size if self.top < 0 else min(self.top, self.vocab_size)

    @property
    def wide(self) -> bool:
        """Whether whole rows are needed, because runs do not have all."""
        return bool(self.chosen) or self.count > MOST_RECORDED

    @property
    def recorded(self) -> int:
        """Alternatives recorded in runs."""
        return 0 if self.wide else self.count

    def longest(self, answers: int) -> int:
        """The most tokens of each of `answers` answers, by the limit on log-probabilities."""
        return max(MOST_ENTRIES // (answers * max(self.count, 1)), 1)

    def check(self, positions: int, param: str) -> None:
        """Refuses an answer that would be too large.

        Raises:
            ApiError: It would be too large, or an id is outside the vocabulary.
        """
        if any(token >= self.vocab_size for token in self.chosen):
            raise ApiError(
                f"logprob_token_ids: an id is outside the vocabulary of {self.vocab_size:,}", param="logprob_token_ids"
            )
        if positions * (self.count + len(self.chosen)) > MOST_ENTRIES:
            raise ApiError(
                f"{positions:,} positions with {self.count:,} log-probabilities each are more than the {MOST_ENTRIES:,} that "
                "one answer holds; ask for fewer",
                param=param,
            )

    async def positions(self, model: LanguageModel, before: Sequence[int], run: TokenRun, spent: Spent) -> list[Position]:
        """The numbers of a run after the ids `before`."""
        under: dict[str, Any] = {"priority": spent.priority, "cache_salt": spent.cache_salt}
        ids = run.ids.tolist()
        if not self.wide:
            tops = zip(run.top_ids[:, : self.count].tolist(), run.top_logprobs[:, : self.count].tolist(), strict=True)
            columns = zip(ids, run.logprob.tolist(), run.rank.tolist(), tops, strict=True)
            return [
                Position(
                    token,
                    max(logprob, FLOOR) if rank else None,
                    rank or None,
                    [(other, max(value, FLOOR)) for other, value in zip(*top, strict=True) if other >= 0],
                )
                for token, logprob, rank, top in columns
            ]
        found = []
        for place, token in enumerate(ids):
            path = [*before, *ids[:place]]
            if not path:
                found.append(Position(token, None, None, []))
                continue
            row = np.maximum(await model.next_token_logprobs(path, **under), np.float32(FLOOR))
            rank = int(np.count_nonzero(row > row[token])) + 1
            found.append(Position(token, float(row[token]), rank, self._top(row)))
            await asyncio.sleep(0)  # a large vocabulary takes tens of ms: other streams run in between
        return found

    def _top(self, row: npt.NDArray[np.float32]) -> list[tuple[int, float]]:
        likeliest = np.argsort(-row, kind="stable")[: self.count]
        top = list(zip(likeliest.tolist(), row[likeliest].tolist(), strict=True))
        if self.chosen:
            there = set(likeliest.tolist())
            top += [(token, float(row[token])) for token in self.chosen if token not in there]
        return top


async def prompt_positions(model: LanguageModel, prompt: list[int], place: int, wanted: Wanted, spent: Spent) -> list[Position]:
    """The numbers of a prompt's own tokens; the first has none."""
    run = await model.score_run(
        prompt,
        wanted.recorded,
        priority=spent.priority,
        cache_salt=spent.cache_salt,
        on_progress=partial(spent.on_progress, place),
    )
    return await wanted.positions(model, (), run, spent)


def prompt_entries(model: LanguageModel, positions: Sequence[Position]) -> list[PositionLogprobs]:
    """The `prompt_logprobs` of vLLM: logprob, rank and text by token id; null for the first token."""
    return [None if each.logprob is None else _entries(model, each) for each in positions]


def _entries(model: LanguageModel, position: Position) -> dict[str, dict[str, Any]]:
    pairs = {token: (value, rank) for rank, (token, value) in enumerate(position.top, 1)}
    assert position.logprob is not None
    pairs[position.token] = (position.logprob, position.rank or 0)
    return {
        str(token): {"logprob": value, "rank": rank, "decoded_token": token_text(model, token)}
        for token, (value, rank) in pairs.items()
    }


def token_text(model: LanguageModel, token: int, *, as_id: bool = False) -> str:
    """The text of a token; bytes that are not UTF-8 become U+FFFD.

    Args:
        model: The model.
        token: Its id.
        as_id: In vLLM's form "token_id:42", which is unique.
    """
    return f"token_id:{token}" if as_id else model.decode_token(token).decode(errors="replace")
