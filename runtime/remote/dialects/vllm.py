"""vLLM's completions (0.32): token ids in and out, log-probabilities up to the whole vocabulary, scores of given texts.

Measured against a real server. ``logprob_token_ids`` is never sent to vLLM: all requests that share an engine step with such a
request, even those of other clients, get fewer alternatives than they asked for. ``return_tokens_as_token_ids`` is always set:
without it alternatives are keyed by text, and some collide.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec

from runtime.errors import InvalidRequestError, RemoteError, RuntimeFault, UnsupportedFeatureError
from runtime.options.priority import Priority
from runtime.remote.dialect import FULL, Abilities, Probe, Prompt, RemoteModel, RemoteRequest, malformed
from runtime.remote.dialects.openai import NEUTRAL, Dialect, Id, decoded, entry_of, names_of, whole
from runtime.remote.http import HttpClient

CHOSEN_IDS: Final = 128  # of logprob_token_ids; the server refuses more
_DEFAULT_CAP: Final = 20  # of --max-logprobs


class _Tokens(msgspec.Struct):
    tokens: list[Id]


class _Text(msgspec.Struct):
    prompt: str


class _Pieces(msgspec.Struct):
    token_bytes: list[Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]]


class VLLM(Dialect):
    """A server of the vLLM project."""

    name = "vllm"
    pages: tuple[str, ...] = ("/version",)
    checks_ids = True
    returns_eos = True
    grammars = frozenset({"json_schema", "regex"})
    sampler = frozenset({"temperature", *NEUTRAL, "logit_bias", "banned_tokens"})

    def recognise(self, probe: Probe) -> str | None:
        """Recognises the server by the owner of its models; the version is on ``/version``."""
        if any(entry.get("owned_by") == "vllm" for entry in probe.models):
            return probe.version("/version", "version")
        return None

    def facts(self, probe: Probe, model: str) -> RemoteModel:
        """Reads ``/v1/models``, where the `parent` of an adapter is its base."""
        entry = entry_of(probe, model)
        adapters = tuple(each["id"] for each in probe.models if each.get("parent") == model and each["id"] != model)
        return RemoteModel(model, whole(entry.get("max_model_len")), names_of(entry), adapters)

    async def abilities(self, client: HttpClient, facts: RemoteModel, probe: Probe) -> Abilities:
        """Sends four small requests and one for a full vector; the first warms the server up, which can take half a minute.

        A server with ``--runner pooling`` has only embeddings.
        """
        del probe
        most = Abilities(
            token_prompts=True,
            token_ids=True,
            alternatives=1,
            ignores_eos=True,
            prompt_logprobs=True,
            sampling=self.sampler,
        )
        ready = RemoteRequest(model=facts.model, prompt=Prompt([], "Hello there"), alternatives=1, scored=1)
        path, body = self.request(ready, most, stream=False)
        body["prompt"] = ready.prompt.text  # the answer has the ids
        try:
            first = decoded(await client.post(path, body), _Readiness)
        except RemoteError as fault:
            if fault.reason != "missing" or not await self.has_embeddings(client, facts.model):
                raise
            return Abilities(token_prompts=True, tokenizer=await self._tokenizes(client, facts.model), embeddings=True)
        if not first.choices:
            raise malformed("no choice for one token")
        choice = first.choices[0]
        scores = choice.prompt_logprobs is not None
        ids = choice.prompt_token_ids
        if not ids or choice.token_ids is None:
            raise RemoteError(
                f"{client.address.host} returns no token ids (return_token_ids of vLLM 0.10.2 and later); connect to it with "
                "dialect='openai', or bring it up to date",
                "missing",
            )
        asked = RemoteRequest(model=facts.model, prompt=Prompt(ids, ""), alternatives=1)
        (cap, full), priority, tokenizes, embeds = await asyncio.gather(
            self._cap(client, asked, most),
            self._takes_priority(client, asked, most),
            self._tokenizes(client, facts.model),
            self.has_embeddings(client, facts.model),
        )
        return replace(
            most,
            alternatives=cap,
            full_vector=full,
            prompt_logprobs=scores,
            ranks=scores,
            cached_tokens=first.usage is not None and first.usage.prompt_tokens_details is not None,
            cache_salt=True,
            priority=priority,
            tokenizer=tokenizes,
            chat=tokenizes,
            grammars=self.grammars,
            embeddings=embeds,
        )

    async def _cap(self, client: HttpClient, asked: RemoteRequest, abilities: Abilities) -> tuple[int, bool]:
        """The most alternatives per position, and whether they are the whole vocabulary."""
        try:
            chunk = await self.ask(client, replace(asked, alternatives=FULL), abilities)
        except InvalidRequestError as fault:
            message = str(fault).partition("refuses the request:")[2]  # without the host's name
            named = re.search(r"max(?:imum)?[ a-z]*:? *(\d{1,9})\b", message)
            return (int(named[1]) if named and 0 < int(named[1]) < 1 << 24 else _DEFAULT_CAP), False
        found = chunk.pieces[0].alternatives if chunk.pieces else None
        count = 0 if found is None else len(found.keys)
        if count <= _DEFAULT_CAP:  # a server that does not know -1
            return max(count, 1), False
        return count, True

    async def _takes_priority(self, client: HttpClient, asked: RemoteRequest, abilities: Abilities) -> bool:
        """Whether requests may have a priority. vLLM 0.32 takes it, but uses it only with ``--scheduling-policy priority``."""
        try:
            await self.ask(client, replace(asked, priority=Priority.BACKGROUND), replace(abilities, priority=True))
        except RuntimeFault:
            return False
        return True

    async def _tokenizes(self, client: HttpClient, model: str) -> bool:
        try:
            return bool(await self.tokenize(client, model, "Hi"))
        except RuntimeFault:
            return False

    def request(self, asked: RemoteRequest, abilities: Abilities, *, stream: bool) -> tuple[str, dict[str, Any]]:
        """For ``/v1/completions`` with vLLM's extensions."""
        path, body = super().request(asked, abilities, stream=stream)
        body |= {"prompt": asked.prompt.ids, "return_tokens_as_token_ids": True, "return_token_ids": True}
        if asked.alternatives:
            body["logprobs"] = FULL if asked.alternatives == FULL else min(asked.alternatives, abilities.alternatives)
        if asked.chosen:
            body["logprob_token_ids"] = list(asked.chosen)
        if asked.scored is not None:
            body["prompt_logprobs"] = min(asked.scored, abilities.alternatives)
        if asked.eos is not None:
            body |= {"ignore_eos": not asked.own_eos, "stop_token_ids": list(asked.eos)}
        if asked.salt:
            body["cache_salt"] = asked.salt
        if abilities.priority and asked.priority != Priority.INSPECTOR:
            body["priority"] = asked.priority - Priority.INSPECTOR  # smaller first; 0 is the default
        if asked.grammar is not None:
            if asked.grammar.kind not in self.grammars:
                raise UnsupportedFeatureError(f"this server enforces no {asked.grammar.label}; give a JSON schema or a regex")
            name = {"json_schema": "json", "lark": "grammar"}.get(asked.grammar.kind, "regex")
            source = asked.grammar.source
            body["structured_outputs"] = {name: json.loads(source) if name == "json" else source}
        return path, body

    async def tokenize(self, client: HttpClient, model: str, text: str) -> list[int]:
        """Uses ``/tokenize``, which makes control tokens of those that are spelt in the text."""
        return list(decoded(await client.post("/tokenize", {"model": model, "prompt": text}), _Tokens).tokens)

    async def detokenize(self, client: HttpClient, model: str, ids: Sequence[int]) -> str:
        body = {"model": model, "tokens": list(ids)}
        return str(decoded(await client.post("/detokenize", body), _Text).prompt)

    async def render_chat(
        self,
        client: HttpClient,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> list[int]:
        body: dict[str, Any] = {"model": model, "messages": [dict(each) for each in messages]}
        body["add_generation_prompt"] = add_generation_prompt
        if tools:
            body["tools"] = [dict(tool) for tool in tools]
        return list(decoded(await client.post("/tokenize", body), _Tokens).tokens)

    def embedding_inputs(self, paths: Sequence[Prompt]) -> list[Any]:
        return [path.ids or path.text for path in paths]


class Elsewise(VLLM):
    """Another Elsewise (`elsewise serve`), which has vLLM's shapes, and more facts about the model."""

    name = "elsewise"
    exact_bytes = True
    grammars = frozenset({"json_schema", "regex", "lark"})

    async def abilities(self, client: HttpClient, facts: RemoteModel, probe: Probe) -> Abilities:
        return replace(await super().abilities(client, facts, probe), chosen_ids=CHOSEN_IDS)

    async def token_bytes(self, client: HttpClient, model: str, ids: Sequence[int]) -> list[bytes]:
        body = {"model": model, "tokens": list(ids), "return_token_bytes": True}
        found = decoded(await client.post("/detokenize", body), _Pieces).token_bytes
        if len(found) != len(ids):
            raise malformed(f"{len(found):,} tokens' bytes for {len(ids):,} ids")
        return [bytes.fromhex(piece) for piece in found]

    def recognise(self, probe: Probe) -> str | None:
        if any(entry.get("owned_by") == "elsewise" for entry in probe.models):
            return probe.version("/version", "version")
        return None

    def facts(self, probe: Probe, model: str) -> RemoteModel:
        """The facts of vLLM, with the vocabulary size, the tokenizer's digest and the eos ids."""
        entry = entry_of(probe, model)
        eos = entry.get("eos_token_ids")
        plain = super().facts(probe, model)
        return plain._replace(
            vocab=whole(entry.get("vocab_size")),
            tokenizer_digest=str(entry.get("tokenizer_digest") or ""),
            eos=tuple(token for token in eos if token == 0 or whole(token)) if isinstance(eos, list) else (),
        )


class _ReadyChoice(msgspec.Struct):
    token_ids: list[Id] | None = None
    prompt_token_ids: list[Id] | None = None
    prompt_logprobs: list[Any] | None = None


class _ReadyUsage(msgspec.Struct):
    prompt_tokens_details: Any = None


class _Readiness(msgspec.Struct):
    choices: Annotated[list[_ReadyChoice], msgspec.Meta(max_length=8)] = []  # requests ask for one
    usage: _ReadyUsage | None = None
