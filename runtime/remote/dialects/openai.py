"""OpenAI's completions, as most servers implement them: a text prompt, and an answer with text and a few alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from runtime.errors import InvalidRequestError, RemoteError, RuntimeFault, UnsupportedFeatureError
from runtime.options.generation import DEFAULTS, SAMPLER_STAGES
from runtime.remote.dialect import (
    FULL,
    Abilities,
    AnswerChunk,
    AnswerToken,
    Probe,
    Prompt,
    RemoteModel,
    RemoteRequest,
    Scored,
    TokenAlternatives,
    checked_logprob,
    malformed,
)
from runtime.remote.http import MOST_SMALL_BYTES, HttpClient, first_seconds
from runtime.sampling.spec import StageKind

FULL_BYTES: Final = 64 << 20  # of a whole vocabulary as JSON: 40 bytes for each of a million and a half
_ID = "token_id:"  # prefix of the keys of alternatives by id

Id = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]  # checked against the vocabulary later


class _Logprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _PromptEntry(msgspec.Struct):
    logprob: float
    rank: int | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[Id] | None = None
    prompt_token_ids: list[Id] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[str, _PromptEntry] | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class TokenUsage(msgspec.Struct):
    """Tokens of a request."""

    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens found in the server's cache; None where the server does not report them."""
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class CompletionBody(msgspec.Struct):
    """The answer of ``/v1/completions``, or one event of its stream."""

    choices: Annotated[list[_Choice], msgspec.Meta(max_length=8)] = []  # requests ask for one
    usage: TokenUsage | None = None
    error: Any = None


class _Vector(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Vectors(msgspec.Struct):
    data: list[_Vector]


def decoded(body: bytes, kind: type[Any]) -> Any:
    """Decodes a body into a struct.

    Raises:
        RemoteError: The body has another shape, or is not JSON (NaN and infinity are not).
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise malformed(str(fault)[:200]) from None


class Dialect:
    """One kind of server: converts requests to JSON bodies, and bodies to `AnswerChunk`s. Stateless.

    Other kinds inherit from this one, which is any server with ``/v1/completions`` that is of no other known kind.

    Attributes:
        name: As `connect` takes it.
        pages: Paths, beside /v1/models, that identify this kind of server.
        checks_ids: Whether it refuses ids that it does not have.
        exact_bytes: Whether it supports `token_bytes`; other servers return only the texts of tokens.
        returns_eos: Whether an answer includes the token that ended it, together with the reason.
    """

    name = "openai"
    pages: tuple[str, ...] = ()
    checks_ids = False
    exact_bytes = False
    returns_eos = False

    def recognise(self, probe: Probe) -> str | None:
        """The server's version ("" where it reports none); None where the server is of another kind."""
        return "" if probe.models else None

    def facts(self, probe: Probe, model: str) -> RemoteModel:
        """The facts about a model of ``/v1/models``."""
        entry = entry_of(probe, model)
        return RemoteModel(model, whole(entry.get("max_model_len") or entry.get("context_length")), names_of(entry))

    async def abilities(self, client: HttpClient, facts: RemoteModel, probe: Probe) -> Abilities:
        """The server's abilities, found by real requests where no page lists them. Afterwards the server is ready."""
        del probe
        asked = RemoteRequest(model=facts.model, prompt=Prompt([], "Hi"), alternatives=5)
        try:
            chunk = await self.ask(client, asked, Abilities(alternatives=5))
        except (InvalidRequestError, RemoteError) as fault:
            if isinstance(fault, RemoteError) and fault.reason not in ("missing", "server"):
                raise
            chunk = await self.ask(client, RemoteRequest(model=facts.model, prompt=asked.prompt), Abilities())
        found = max((len(piece.alternatives.keys) for piece in chunk.pieces if piece.alternatives), default=0)
        return Abilities(
            alternatives=5 if found else 0,
            sampling=frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty"}),
            embeddings=await self.has_embeddings(client, facts.model),
        )

    async def has_embeddings(self, client: HttpClient, model: str) -> bool:
        """Whether the server embeds a short text."""
        try:
            return bool(await self.embed(client, model, [Prompt([], "Hi")]))
        except RuntimeFault:
            return False

    async def ask(self, client: HttpClient, asked: RemoteRequest, abilities: Abilities) -> AnswerChunk:
        path, body = self.request(asked, abilities, stream=False)
        most = FULL_BYTES if asked.alternatives == FULL else MOST_SMALL_BYTES
        return client.cleanly(self.read, await client.post(path, body, most=most), asked)

    def request(self, asked: RemoteRequest, abilities: Abilities, *, stream: bool) -> tuple[str, dict[str, Any]]:
        """The path and body of a request."""
        body: dict[str, Any] = {"model": asked.model, "prompt": asked.prompt.text, "max_tokens": asked.max_tokens}
        body |= self.sampling(asked, abilities)
        if asked.alternatives and abilities.alternatives:
            body["logprobs"] = min(asked.alternatives, abilities.alternatives)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return "/v1/completions", body

    def sampling(self, asked: RemoteRequest, abilities: Abilities) -> dict[str, Any]:
        """The settings of the sampler by the server's names.

        Raises:
            UnsupportedFeatureError: A setting that the server lacks.
        """
        if asked.options is None:
            return {"temperature": 0.0}
        settings = {name: value for name, value in asked.options.sampling.given().items() if value != DEFAULTS[name]}
        body: dict[str, Any] = {"temperature": settings.pop("temperature", 1.0)}
        greedy = body["temperature"] == 0.0
        if greedy:  # cuts have no effect
            settings = {name: value for name, value in settings.items() if name in EDITS}
        foreign = sorted(set(settings) - abilities.sampling)
        if foreign:
            known = ", ".join(sorted(abilities.sampling))
            raise UnsupportedFeatureError(
                f"this server's sampler has no {', '.join(foreign)}: leave {'it' if len(foreign) == 1 else 'them'} out "
                f"(it has {known}), or run the model on this machine"
            )
        bias = {str(token): value for token, value in settings.pop("logit_bias", {}).items()}
        bias |= dict.fromkeys(map(str, settings.pop("banned_tokens", ())), -100.0)
        if bias:
            body["logit_bias"] = bias
        if asked.seed is not None:
            body["seed"] = asked.seed
        neutral = {name: DEFAULTS[name] for name in NEUTRAL if name in abilities.sampling and (name in EDITS or not greedy)}
        return neutral | body | settings

    def read(self, body: bytes, asked: RemoteRequest) -> AnswerChunk:
        """Reads an answer, or the data of one event of a stream.

        Raises:
            RemoteError: "protocol": the body has another shape.
        """
        answer = decoded(body, CompletionBody)
        if answer.error is not None:
            raise RemoteError(f"the server failed on the way: {str(answer.error)[:300]}", "server")
        usage = answer.usage or TokenUsage()
        if not answer.choices:
            return AnswerChunk(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
        choice: _Choice = answer.choices[0]
        stopped = choice.stop_reason if isinstance(choice.stop_reason, int) else None
        prompt = None if choice.prompt_logprobs is None else [_scored(entry, asked) for entry in choice.prompt_logprobs]
        return AnswerChunk(
            _pieces(choice, asked),
            choice.finish_reason or None,
            stopped,
            prompt,
            usage.prompt_tokens,
            usage.cached_tokens,
            text=choice.text or "",
        )

    async def tokenize(self, client: HttpClient, model: str, text: str) -> list[int]:
        """Ids of a plain text, with a BOS in front where the server puts one."""
        del text
        raise UnsupportedFeatureError(
            f"{client.address.host} does not tokenise, and no tokenizer of {model} is on this machine"
        )

    async def tokens_of(self, client: HttpClient, model: str, text: str) -> list[tuple[int, bytes | None]]:
        """`tokenize` with the bytes of each token; None where the server does not return them."""
        return [(token, None) for token in await self.tokenize(client, model, text)]

    async def token_bytes(self, client: HttpClient, model: str, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id, from servers with `exact_bytes`."""
        del model, ids
        raise client.wrong("says texts of tokens alone")

    async def detokenize(self, client: HttpClient, model: str, ids: Sequence[int]) -> str:
        """The text of ids."""
        raise UnsupportedFeatureError(f"{client.address.host} does not detokenise ({len(ids):,} ids of {model})")

    async def render_chat(
        self,
        client: HttpClient,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> list[int]:
        """Ids of a conversation."""
        del messages, tools, add_generation_prompt
        raise UnsupportedFeatureError(
            f"{client.address.host} does not give the ids of a conversation, and no chat template of {model} is on this machine"
        )

    async def embed(self, client: HttpClient, model: str, paths: Sequence[Prompt]) -> list[list[float]]:
        """A vector per text."""
        body = {"model": model, "input": self.embedding_inputs(paths)}
        within = first_seconds(sum(len(path.ids) for path in paths))
        answer = decoded(await client.post("/v1/embeddings", body, within=within, most=FULL_BYTES), _Vectors)
        rows: list[_Vector] = sorted(answer.data, key=lambda row: row.index)
        if [row.index for row in rows] != list(range(len(paths))):
            raise malformed(f"{len(rows):,} vectors for {len(paths):,} texts")
        return [row.embedding for row in rows]

    def embedding_inputs(self, paths: Sequence[Prompt]) -> list[Any]:
        return [path.text for path in paths]


# Always sent: for settings that a request leaves out, a server uses the model's generation_config.json.
NEUTRAL: Final = ("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
EDITS: Final = frozenset(each.name for spec in SAMPLER_STAGES if spec.kind is StageKind.EDIT for each in spec.parameters)


def _pieces(choice: _Choice, asked: RemoteRequest) -> list[AnswerToken]:
    """The tokens of a choice. Text without log-probabilities is one piece per id, or one piece where there are no ids."""
    ids, logprobs = choice.token_ids, choice.logprobs
    text = choice.text or ""
    if logprobs is None or not logprobs.token_logprobs:
        if ids is None:
            return [AnswerToken(None, text, None, None)] if text else []
        return [AnswerToken(token, "", None, None) for token in ids]
    count = len(logprobs.token_logprobs)
    tops = logprobs.top_logprobs or [None] * count
    if len(tops) != count or (ids is not None and len(ids) != count) or (ids is None and len(logprobs.tokens) != count):
        raise malformed(f"{count} tokens, {len(tops)} lists of alternatives, {'no' if ids is None else len(ids)} ids")
    pieces: list[AnswerToken] = []
    for place, (own, top) in enumerate(zip(logprobs.token_logprobs, tops, strict=True)):
        token = None if ids is None else ids[place]
        word = logprobs.tokens[place] if place < len(logprobs.tokens) else ""
        pieces.append(AnswerToken(token, word, None if own is None else checked_logprob(own), _alternatives(top, asked)))
    return pieces


def _alternatives(top: dict[str, float] | None, asked: RemoteRequest) -> TokenAlternatives | None:
    if not top:
        return None
    if asked.alternatives != FULL and len(top) > asked.alternatives + len(asked.chosen) + 2:
        raise malformed(f"{len(top):,} alternatives where {asked.alternatives:,} were asked for")
    values = [checked_logprob(value) for value in top.values()]
    if not all(key.startswith(_ID) for key in top):
        return TokenAlternatives(list(top), values)
    try:
        return TokenAlternatives([int(key[len(_ID) :]) for key in top], values)
    except ValueError:
        raise malformed("the key of an alternative is no token id") from None


def _scored(entry: dict[str, _PromptEntry] | None, asked: RemoteRequest) -> Scored | None:
    if not entry:
        return None
    if len(entry) > (asked.scored or 0) + 2:
        raise malformed(f"{len(entry):,} alternatives of a prompt's token where {asked.scored or 0:,} were asked for")
    try:
        ids = [int(key) for key in entry]
    except ValueError:
        raise malformed("the key of a prompt's alternative is no token id") from None
    values = [checked_logprob(each.logprob) for each in entry.values()]
    ranks = [each.rank or 0 for each in entry.values()]
    return Scored(ids, ranks, values)


def entry_of(probe: Probe, model: str) -> dict[str, Any]:
    """A model's entry in ``/v1/models``."""
    return next((entry for entry in probe.models if entry["id"] == model), {})


def names_of(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Names that a model may have on the shelf: those of its source and its parent, and its id."""
    named = (entry.get("root"), entry.get("parent"), entry.get("id"))
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name))


def whole(value: object) -> int:
    """A positive count from a server; 0 for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else 0
