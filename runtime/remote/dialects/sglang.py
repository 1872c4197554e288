"""SGLang's ``/generate``, as documented: token ids, alternatives, chosen ids and scores of prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec

from runtime.remote.dialect import (
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
from runtime.remote.dialects.openai import Id, decoded, names_of, whole
from runtime.remote.dialects.vllm import CHOSEN_IDS, VLLM
from runtime.remote.http import HttpClient

MOST_ALTERNATIVES: Final = 1000
_GRAMMARS: Final = {"json_schema": "json_schema", "regex": "regex"}

_TokenLogprob = tuple[float | None, Id, str | None]


class _Finish(msgspec.Struct):
    type: str
    matched: int | str | list[int] | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: _Finish | None = None
    output_token_logprobs: list[_TokenLogprob] | None = None
    output_top_logprobs: list[list[_TokenLogprob] | None] | None = None
    output_token_ids_logprobs: list[list[_TokenLogprob] | None] | None = None
    input_token_logprobs: list[_TokenLogprob] | None = None
    input_top_logprobs: list[list[_TokenLogprob] | None] | None = None


class _Body(msgspec.Struct):
    meta_info: _Meta


class SGLang(VLLM):
    """A server of SGLang. Its ``/tokenize``, ``/detokenize`` and embeddings have vLLM's shapes."""

    name = "sglang"
    checks_ids = False
    pages: tuple[str, ...] = ("/get_model_info",)

    def recognise(self, probe: Probe) -> str | None:
        page = probe.pages.get("/get_model_info")
        return "" if isinstance(page, dict) and "model_path" in page else None

    def facts(self, probe: Probe, model: str) -> RemoteModel:
        found = super().facts(probe, model)
        found_page = probe.pages.get("/get_model_info")
        page = found_page if isinstance(found_page, dict) else {}
        names = names_of({"root": page.get("tokenizer_path"), "parent": page.get("model_path"), "id": model})
        return found._replace(names=tuple(dict.fromkeys((*names, *found.names))), vocab=whole(page.get("vocab_size")))

    async def abilities(self, client: HttpClient, facts: RemoteModel, probe: Probe) -> Abilities:
        del probe
        found = Abilities(
            token_prompts=True,
            token_ids=True,
            alternatives=MOST_ALTERNATIVES,
            ignores_eos=True,
            chosen_ids=CHOSEN_IDS,
            prompt_logprobs=True,
            cached_tokens=True,
            grammars=frozenset(_GRAMMARS),
            sampling=self.sampler,
        )
        asked = RemoteRequest(model=facts.model, prompt=Prompt([], "Hello there"), alternatives=1)
        path, body = self.request(asked, found, stream=False)
        del body["input_ids"]
        body["text"] = asked.prompt.text
        if not client.cleanly(self.read, await client.post(path, body), asked).pieces:
            raise malformed("no token where one was asked for")
        return replace(found, tokenizer=await self._tokenizes(client, facts.model))

    def request(self, asked: RemoteRequest, abilities: Abilities, *, stream: bool) -> tuple[str, dict[str, Any]]:
        sampling = {**self.sampling(asked, abilities), "max_new_tokens": asked.max_tokens}
        if "seed" in sampling:
            sampling["sampling_seed"] = sampling.pop("seed")
        if sampling.get("top_k") == 0:
            sampling["top_k"] = -1
        if asked.eos is not None:
            sampling |= {"stop_token_ids": list(asked.eos), "ignore_eos": not asked.own_eos}
        if asked.grammar is not None:
            sampling[_GRAMMARS[asked.grammar.kind]] = asked.grammar.source
        body: dict[str, Any] = {"input_ids": asked.prompt.ids, "sampling_params": sampling, "stream": stream}
        body |= {"return_logprob": True, "top_logprobs_num": asked.alternatives}
        if asked.scored is not None:
            body |= {"logprob_start_len": 0, "top_logprobs_num": max(asked.alternatives, asked.scored)}
        if asked.chosen:
            body["token_ids_logprob"] = list(asked.chosen)
        return "/generate", body

    def read(self, body: bytes, asked: RemoteRequest) -> AnswerChunk:
        """Reads ``meta_info``. An event of a stream may contain all tokens so far, which `AnswerChunk.generated` counts."""
        meta: _Meta = decoded(body, _Body).meta_info
        own = meta.output_token_logprobs or []
        tops = meta.output_top_logprobs or [None] * len(own)
        chosen = meta.output_token_ids_logprobs or [None] * len(own)
        if not len(own) == len(tops) == len(chosen):
            raise malformed(f"{len(own)} tokens, {len(tops)} lists of alternatives")
        pieces = []
        for token, top, values in zip(own, tops, chosen, strict=True):
            found = _by_id(
                [token, *(top or ()), *(values or ())], max(asked.alternatives, asked.scored or 0) + len(asked.chosen)
            )
            pieces.append(AnswerToken(token[1], "", found.get(token[1]), TokenAlternatives(list(found), list(found.values()))))
        finish = meta.finish_reason
        matched = finish.matched if finish is not None and isinstance(finish.matched, int) else None
        counts = meta.prompt_tokens, meta.cached_tokens
        return AnswerChunk(
            pieces, None if finish is None else finish.type, matched, _prompt(meta, asked), *counts, meta.completion_tokens
        )


def _prompt(meta: _Meta, asked: RemoteRequest) -> list[Scored | None] | None:
    if asked.scored is None or meta.input_token_logprobs is None:
        return None
    own = meta.input_token_logprobs
    tops = meta.input_top_logprobs or [None] * len(own)
    if len(own) != len(tops):
        raise malformed(f"{len(own)} scores, {len(tops)} lists of alternatives")
    rows: list[Scored | None] = []
    for token, top in zip(own, tops, strict=True):
        if token[0] is None:
            rows.append(None)
            continue
        found = _by_id([token, *(top or ())], asked.scored)
        rows.append(Scored(list(found), [0] * len(found), list(found.values())))
    return rows


def _by_id(tokens: list[_TokenLogprob], most: int) -> dict[int, float]:
    if len(tokens) > most + 2:
        raise malformed(f"{len(tokens):,} alternatives where {most:,} were asked for")
    return {token: checked_logprob(value) for value, token, _ in tokens if value is not None}
