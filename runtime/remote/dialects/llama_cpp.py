"""llama.cpp's server: ``/completion`` with token ids and ``n_probs`` (tools/server/README.md).

The server sends text in whole characters. Of the tokens of one character a stream has only the last, and no answer has the
log-probabilities of the others; the missing tokens of a stream are therefore found by their bytes. A request for
log-probabilities after a prompt forces a token of whole characters by a bias, which the returned numbers do not include.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from runtime.errors import RemoteError, UnsupportedFeatureError
from runtime.remote.dialect import (
    Abilities,
    AnswerChunk,
    AnswerToken,
    Probe,
    Prompt,
    RemoteModel,
    RemoteRequest,
    TokenAlternatives,
    checked_logprob,
    malformed,
)
from runtime.remote.dialects.openai import NEUTRAL, Dialect, Id, decoded, entry_of, names_of, whole
from runtime.remote.http import HttpClient

MOST_ALTERNATIVES: Final = 1000  # per position; the whole vocabulary was not tried
_FORCING: Final = 1e6  # added to a raw logit
_RENAMED: Final = {"repetition_penalty": "repeat_penalty"}


class _Probability(msgspec.Struct):
    id: Id
    logprob: float
    top_logprobs: list[_Probability] = []


class _Timings(msgspec.Struct):
    cache_n: int | None = None


class _Body(msgspec.Struct):
    content: str = ""
    tokens: list[Id] = []
    tokens_predicted: int | None = None
    stop: bool = False
    stop_type: str = ""
    completion_probabilities: list[_Probability] = []
    tokens_evaluated: int | None = None
    timings: _Timings | None = None
    error: Any = None


class _Token(msgspec.Struct):
    id: Id
    piece: str | list[int]  # bytes where they are not UTF-8


class _Tokens(msgspec.Struct):
    tokens: list[_Token]


class _Content(msgspec.Struct):
    content: str


class _Prompt(msgspec.Struct):
    prompt: str


class LlamaCpp(Dialect):
    """A server of llama.cpp."""

    name = "llama.cpp"
    pages: tuple[str, ...] = ("/props",)
    returns_eos = False
    sampler = frozenset({"temperature", *NEUTRAL, "typical_p", "penalty_window", "logit_bias", "banned_tokens"})

    def recognise(self, probe: Probe) -> str | None:
        page = probe.pages.get("/props")
        if isinstance(page, dict) and "default_generation_settings" in page:
            return probe.version("/props", "build_info")
        return None

    def facts(self, probe: Probe, model: str) -> RemoteModel:
        entry = entry_of(probe, model)
        page = probe.pages.get("/props")
        props = page if isinstance(page, dict) else {}
        settings = props.get("default_generation_settings")
        meta = entry.get("meta")
        context = whole(settings.get("n_ctx")) if isinstance(settings, dict) else 0
        vocab = whole(meta.get("n_vocab")) if isinstance(meta, dict) else 0
        names = [props.get("model_path"), *names_of(entry)]
        return RemoteModel(
            model,
            context,
            tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name)),
            vocab=vocab,
            has_template=bool(props.get("chat_template")),
        )

    async def abilities(self, client: HttpClient, facts: RemoteModel, probe: Probe) -> Abilities:
        del probe
        found = Abilities(
            token_prompts=True,
            token_ids=True,
            alternatives=MOST_ALTERNATIVES,
            ignores_eos=True,
            cached_tokens=True,
            tokenizer=True,
            chat=True,
            grammars=frozenset({"json_schema"}),
            sampling=self.sampler,
        )
        ids = await self.tokenize(client, facts.model, "Hi")
        if not ids:
            raise malformed("no tokens of a word")
        found = replace(found, plain=ids[-1])
        chunk = await self.ask(client, RemoteRequest(model=facts.model, prompt=Prompt(ids, "Hi"), alternatives=3), found)
        if not chunk.pieces or chunk.pieces[0].alternatives is None:
            raise malformed("no alternatives for one token (n_probs)")
        return replace(found, embeddings=await self.has_embeddings(client, facts.model))

    def request(self, asked: RemoteRequest, abilities: Abilities, *, stream: bool) -> tuple[str, dict[str, Any]]:
        """For ``/completion``. A temperature below 0 is greedy with the probabilities of a plain softmax."""
        body: dict[str, Any] = {"prompt": asked.prompt.ids, "n_predict": asked.max_tokens, "cache_prompt": True}
        sampling = self.sampling(asked, abilities)
        bias = [[int(token), value] for token, value in sampling.pop("logit_bias", {}).items()]
        body["repeat_last_n"] = sampling.pop("penalty_window", 0) or -1  # -1: all tokens; the server's default is 64
        body |= {_RENAMED.get(name, name): value for name, value in sampling.items()}
        if body["temperature"] == 0.0:
            body["temperature"] = -1.0
        body |= {"return_tokens": True, "post_sampling_probs": False, "stream": stream}
        if asked.alternatives:
            body["n_probs"] = min(asked.alternatives, abilities.alternatives)
        if asked.options is None and abilities.plain is not None:
            bias.append([abilities.plain, _FORCING])
        if bias:
            body["logit_bias"] = bias
        if asked.eos is not None:
            body["ignore_eos"] = not asked.own_eos
        if asked.grammar is not None:
            body["json_schema"] = json.loads(asked.grammar.source)
        return "/completion", body

    def read(self, body: bytes, asked: RemoteRequest) -> AnswerChunk:
        """Reads an answer, or an event of a stream, where the finish reason has an event of its own."""
        answer = decoded(body, _Body)
        if answer.error is not None:
            raise RemoteError(f"the server failed on the way: {str(answer.error)[:300]}", "server")
        probabilities = answer.completion_probabilities
        if probabilities and len(probabilities) != len(answer.tokens):
            raise malformed(f"{len(answer.tokens)} tokens, {len(probabilities)} probabilities")
        pieces = [AnswerToken(token, "", None, None) for token in answer.tokens]
        if probabilities:
            pieces = [_piece(each, asked) for each in probabilities]
        finish = {"limit": "length", "eos": "eos"}.get(answer.stop_type, "stop") if answer.stop else None
        cached = None if answer.timings is None else answer.timings.cache_n
        counts = answer.tokens_evaluated, cached, answer.tokens_predicted
        return AnswerChunk(pieces, finish, None, None, *counts, text=answer.content)

    async def tokenize(self, client: HttpClient, model: str, text: str) -> list[int]:
        """Tokenises a text; control tokens that are spelt in it stay text."""
        return [token for token, _ in await self.tokens_of(client, model, text)]

    async def tokens_of(self, client: HttpClient, model: str, text: str) -> list[tuple[int, bytes | None]]:
        del model
        return await _tokens(client, text, control=False)

    async def detokenize(self, client: HttpClient, model: str, ids: Sequence[int]) -> str:
        del model
        return str(decoded(await client.post("/detokenize", {"tokens": list(ids)}), _Content).content)

    async def render_chat(
        self,
        client: HttpClient,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> list[int]:
        del model
        if not add_generation_prompt:
            raise UnsupportedFeatureError(f"{client.address.host} renders conversations for an answer alone")
        asked: dict[str, Any] = {"messages": [dict(each) for each in messages]}
        if tools:
            asked["tools"] = [dict(tool) for tool in tools]
        text = decoded(await client.post("/apply-template", asked), _Prompt).prompt
        return [token for token, _ in await _tokens(client, text, control=True)]


async def _tokens(client: HttpClient, text: str, *, control: bool) -> list[tuple[int, bytes | None]]:
    body = {"content": text, "add_special": True, "parse_special": control, "with_pieces": True}
    found = decoded(await client.post("/tokenize", body), _Tokens).tokens
    try:
        return [(each.id, each.piece.encode() if isinstance(each.piece, str) else bytes(each.piece)) for each in found]
    except ValueError:
        raise malformed("a piece whose bytes are none") from None


def _piece(token: _Probability, asked: RemoteRequest) -> AnswerToken:
    if len(token.top_logprobs) > asked.alternatives + 1:
        raise malformed(f"{len(token.top_logprobs):,} alternatives where {asked.alternatives:,} were asked for")
    top = {each.id: checked_logprob(each.logprob) for each in token.top_logprobs}
    top.setdefault(token.id, checked_logprob(token.logprob))
    return AnswerToken(token.id, "", top[token.id], TokenAlternatives(list(top), list(top.values())))
