"""mlx_lm.server (0.32): takes text; an answer that is not streamed has up to 11 alternatives of a token, by id.

Measured: the ``id`` and ``logprob`` of a token are those of the first alternative, not of the sampled token, and the
alternatives are unsorted. A prompt that is a list ends the server's generation thread, so a prompt is always one text.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

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
from runtime.remote.dialects.openai import Dialect, Id, TokenUsage, decoded
from runtime.remote.http import HttpClient

MOST_ALTERNATIVES: Final = 11  # of top_logprobs


class _Alternative(msgspec.Struct):
    id: Id
    logprob: float


class _Content(msgspec.Struct):
    top_logprobs: list[_Alternative] = []


class _Logprobs(msgspec.Struct):
    content: list[_Content] = []


class _Choice(msgspec.Struct):
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(max_length=8)] = []  # requests ask for one
    usage: TokenUsage | None = None


class MlxLm(Dialect):
    """A server of mlx_lm."""

    name = "mlx_lm"
    pages: tuple[str, ...] = ("/health",)
    sampler = frozenset(
        {
            *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "penalty_window"),
            *("logit_bias", "banned_tokens"),
        }
    )

    def recognise(self, probe: Probe) -> str | None:
        """Recognises the server by models without an owner, and by its ``/health`` page."""
        if probe.models and not any("owned_by" in entry for entry in probe.models):
            return "" if probe.pages.get("/health") == {"status": "ok"} else None
        return None

    async def abilities(self, client: HttpClient, facts: RemoteModel, probe: Probe) -> Abilities:
        """Asks for one token, which loads the model."""
        del probe
        found = Abilities(alternatives=MOST_ALTERNATIVES, cached_tokens=True, sampling=self.sampler)
        asked = RemoteRequest(model=facts.model, prompt=Prompt([], "Hi"), alternatives=MOST_ALTERNATIVES)
        chunk = await self.ask(client, asked, found)
        if not chunk.pieces or chunk.pieces[0].alternatives is None:
            raise malformed("no alternatives for one token")
        return found

    def request(self, asked: RemoteRequest, abilities: Abilities, *, stream: bool) -> tuple[str, dict[str, Any]]:
        """For ``/v1/completions``. Only whole answers have alternatives."""
        path, body = super().request(asked, Abilities(sampling=abilities.sampling), stream=stream)
        window = body.pop("penalty_window", 0)  # 0 is all tokens, also for the server, whose default is 20
        if body.get("repetition_penalty", 1.0) != 1.0:
            body["repetition_context_size"] = window
        if asked.alternatives and not stream:
            body |= {"logprobs": True, "top_logprobs": min(asked.alternatives, MOST_ALTERNATIVES)}
        return path, body

    def read(self, body: bytes, asked: RemoteRequest) -> AnswerChunk:
        """Reads ``choices[0]``: the alternatives of its tokens, or its text."""
        answer = decoded(body, _Body)
        usage = answer.usage or TokenUsage()
        if not answer.choices:
            return AnswerChunk(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
        choice: _Choice = answer.choices[0]
        if choice.logprobs is None:
            pieces = [AnswerToken(None, choice.text, None, None)] if choice.text else []
        else:
            pieces = [_piece(content, asked) for content in choice.logprobs.content]
        return AnswerChunk(pieces, choice.finish_reason or None, None, None, usage.prompt_tokens, usage.cached_tokens)


def _piece(content: _Content, asked: RemoteRequest) -> AnswerToken:
    if len(content.top_logprobs) > asked.alternatives:
        raise malformed(f"{len(content.top_logprobs)} alternatives where {asked.alternatives} were asked for")
    found = TokenAlternatives(
        [each.id for each in content.top_logprobs], [checked_logprob(each.logprob) for each in content.top_logprobs]
    )
    return AnswerToken(None, "", None, found)
