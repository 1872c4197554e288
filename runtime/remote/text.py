"""Text and token ids of a remote model, by the server or by a tokenizer of this machine that is proven the same.

A local tokenizer is used if its digest equals the server's, or if it gives the server's ids for a text of many scripts.
Otherwise the server tokenises, and the bytes of a token are fetched when it first occurs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from runtime.aio import gathered
from runtime.backends.facts import digest
from runtime.engine.text_side import TextSide
from runtime.errors import InvalidRequestError, RemoteError, RuntimeFault, UnsupportedFeatureError
from runtime.loading.config import normalised
from runtime.loading.model_folder import ModelFolder, chat_template_of, read_json
from runtime.loading.paths import is_model_id
from runtime.options.generation import AnswerEnds, GenerationOptions
from runtime.options.load import LoadOptions
from runtime.remote.dialect import Abilities, Prompt, RemoteModel, RemoteRequest, malformed
from runtime.remote.dialects.openai import Dialect, whole
from runtime.remote.http import HttpClient
from runtime.session.manifest import tokenizer_digest
from runtime.shelf.model_shelf import list_models
from runtime.shelf.source import resolve
from runtime.text.chat import render_chat_ids, wants_bos
from runtime.text.utf8 import clean_text
from runtime.transport.base import TextFacts

PROBE_TEXT: Final = (
    "Él said: 3.14159 × 2, naïve façade — 日本語のテキスト, Привет мир, مرحبا, 🙂👩‍👩‍👧 \t\n\n    def f(x):\r\n  return x**2"
)
MOST_VOCAB: Final = 1 << 22  # ids
_MOST_TOKEN_BYTES: Final = 1024  # of a token's text
_MOST_SPLIT_BYTES: Final = 256  # of a text that is split into tokens by their bytes
_IDS_PER_REQUEST: Final = 256  # ids whose texts one request fetches
_FETCH: Final = "get that model by `elsewise models fetch` (or give `connect(..., tokenizer=FOLDER)`, `--tokenizer FOLDER`)"

log = logging.getLogger(__name__)


class RemoteText(Protocol):
    """Converts between text and ids."""

    facts: TextFacts
    vocab: int
    local: bool
    template_digest: str | None
    warnings: tuple[str, ...]

    async def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, with a BOS in front where the model wants one."""

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, add_generation_prompt: bool
    ) -> list[int]:
        """Ids of a conversation."""

    async def learn(self, ids: Iterable[int]) -> None:
        """Fetches missing bytes of these ids into `facts.byte_vocab`."""

    def prompt(self, ids: Sequence[int]) -> Prompt:
        """The ids with their text."""

    def ids_of(self, text: str) -> list[int]:
        """Ids of a piece of an answer from a server that returns no ids."""

    async def parts(self, text: str, count: int, last: int) -> list[int] | None:
        """The `count` tokens that, followed by `last`, have this text; None where there is no unique such list."""

    def close(self) -> None:
        """Ends child processes."""


class LocalText:
    """Text and ids by a tokenizer of this machine."""

    local = True

    def __init__(self, side: TextSide, vocab: int, options: LoadOptions, warnings: tuple[str, ...]) -> None:
        self._side, self._options, self.vocab = side.within(vocab), options, vocab
        pieces = side.tokenizer.byte_vocab(vocab)
        self._pieces = pieces
        self._by_bytes: dict[bytes, int | None] = {}
        for token, piece in enumerate(pieces):
            if piece:
                self._by_bytes[piece] = None if piece in self._by_bytes else token
        self.facts = TextFacts(
            side.eos_token_ids,
            side.template.source if side.template else None,
            pieces,
            lambda: side.tokenizer.str_vocab(vocab),
            side.own.options,
            side.ends(vocab),
        )
        chosen = side.format
        self.template_digest = None if chosen is None else chosen.digest
        self.warnings = (*warnings, *side.warnings, *side.own.warnings, *(chosen.warnings if chosen else ()))

    async def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return await asyncio.to_thread(lambda: [self._ids(text) for text in texts])

    def _ids(self, text: str) -> list[int]:
        tokenizer = self._side.tokenizer
        ids, bos = tokenizer.encode(clean_text(text)), tokenizer.bos_token_id
        return [bos, *ids] if bos is not None and wants_bos(self._options, tokenizer) and ids[:1] != [bos] else ids

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, add_generation_prompt: bool
    ) -> list[int]:
        return await asyncio.to_thread(
            render_chat_ids,
            self._side.tokenizer,
            self._side.template,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
        )

    async def learn(self, ids: Iterable[int]) -> None:
        """Does nothing: the bytes of all ids are known."""

    def prompt(self, ids: Sequence[int]) -> Prompt:
        """The ids with the text of their bytes, without a BOS that the server adds itself."""
        shown = list(ids)
        bos = self._side.tokenizer.bos_token_id
        if bos is not None and shown[:1] == [bos] and wants_bos(self._options, self._side.tokenizer):
            shown = shown[1:]
        return Prompt(list(ids), b"".join(self._pieces[token] for token in shown).decode(errors="replace"))

    def ids_of(self, text: str) -> list[int]:
        """The only token with this text, otherwise the tokenizer's ids of the text."""
        one = self._by_bytes.get(text.encode())
        return [one] if one is not None else self._side.tokenizer.encode(text)

    async def parts(self, text: str, count: int, last: int) -> list[int] | None:
        whole, end = text.encode(errors="replace"), self._pieces[last]
        if not end or not whole.endswith(end) or len(whole) > _MOST_SPLIT_BYTES:
            return None
        found = self._splits(whole[: -len(end)], count)
        return found[0] if len(found) == 1 else None

    def _splits(self, piece: bytes, count: int) -> list[list[int]]:
        """All lists of `count` tokens with these bytes."""
        if count == 1:
            token = self._by_bytes.get(piece)
            return [] if token is None else [[token]]
        firsts = [(at, self._by_bytes.get(piece[:at])) for at in range(1, len(piece) - count + 2)]
        return [[token, *rest] for at, token in firsts if token is not None for rest in self._splits(piece[at:], count - 1)]

    def close(self) -> None:
        if self._side.template is not None:
            self._side.template.close()


class ServerText:
    """Text and ids by the server. A token's bytes are those of its text, with U+FFFD for a part of a character."""

    local = False
    template_digest: str | None = None

    def __init__(self, dialect: Dialect, client: HttpClient, facts: RemoteModel, vocab: int, has_template: bool) -> None:
        self._dialect, self._client, self._model, self.vocab = dialect, client, facts.model, vocab
        self._pieces: list[bytes] = [b""] * vocab
        self._known = bytearray(vocab)
        self._break: int | None = None  # the id of a line break, which separates the texts of ids in a request
        self.facts = TextFacts(
            facts.eos,
            "(the server's)" if has_template else None,
            self._pieces,
            lambda: [piece.decode(errors="replace") for piece in self._pieces],
            GenerationOptions(),
            AnswerEnds(eos_token_ids=facts.eos),
            digest("server's tokenizer", client.address.url, facts.model),
        )
        host, self._exact = client.address.host, dialect.exact_bytes
        parts = "" if self._exact else "a token that is a part of a character shows as U+FFFD, "
        self.warnings: tuple[str, ...] = (
            f"no tokenizer of {facts.model} is on this machine: {host} tokenises. Bytes of tokens that were not seen yet are "
            f"empty, {parts}and control tokens spelt in a text become control tokens (`connect(..., tokenizer=FOLDER)` names "
            "a tokenizer)",
        )

    async def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenises each text in a request of its own."""
        found = await gathered(*map(self._ids, texts))
        for ids in found:
            await self.learn(ids)
        return found

    async def _ids(self, text: str) -> list[int]:
        """The server's ids; stores the bytes that come with them."""
        found = await self._dialect.tokens_of(self._client, self._model, text)
        for token, piece in found:
            if self._checked(token) and piece is not None:
                self._note(token, piece)
        return [token for token, _ in found]

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, add_generation_prompt: bool
    ) -> list[int]:
        ids = await self._dialect.render_chat(self._client, self._model, messages, tools, add_generation_prompt)
        await self.learn(ids)
        return ids

    async def learn(self, ids: Iterable[int]) -> None:
        """Fetches the texts of unknown ids, many in one request."""
        unknown = [token for token in dict.fromkeys(ids) if self._checked(token) and not self._known[token]]
        if self._exact:
            await gathered(*(self._learn_bytes(part) for part in _parts(unknown)))
            return
        if unknown and self._break is None:
            candidates = await self._dialect.tokenize(self._client, self._model, "\n")
            for token in candidates[-1:]:
                if self._checked(token) and await self._text([token]) == "\n":
                    self._note(token, b"\n")
                    self._break = token
        unknown = [token for token in unknown if not self._known[token]]
        await gathered(*map(self._learn, _parts(unknown)))

    async def _learn_bytes(self, ids: list[int]) -> None:
        for token, piece in zip(ids, await self._dialect.token_bytes(self._client, self._model, ids), strict=True):
            self._note(token, piece)

    async def _learn(self, ids: list[int]) -> None:
        if len(ids) == 1 or self._break is None:
            for token in ids:
                self._note(token, (await self._text([token])).encode("utf-8", "replace"))
            return
        between = self._break
        text = await self._text([between, *(each for token in ids for each in (token, between))])
        texts = text.split("\n")
        if len(texts) == len(ids) + 2 and not texts[0] and not texts[-1]:
            for token, own in zip(ids, texts[1:-1], strict=True):
                self._note(token, own.encode("utf-8", "replace"))
            return
        half = len(ids) // 2  # one of the texts contains a line break
        await gathered(self._learn(ids[:half]), self._learn(ids[half:]))

    async def _text(self, ids: Sequence[int]) -> str:
        return await self._dialect.detokenize(self._client, self._model, ids)

    def _note(self, token: int, piece: bytes) -> None:
        if len(piece) > _MOST_TOKEN_BYTES:
            raise malformed(f"the text of token {token} has {len(piece):,} bytes")
        self._pieces[token], self._known[token] = piece, 1

    def _checked(self, token: int) -> bool:
        if not 0 <= token < self.vocab:
            raise malformed(f"token id {token} is outside its vocabulary of {self.vocab:,}")
        return True

    def prompt(self, ids: Sequence[int]) -> Prompt:
        """The ids with the text of those whose bytes are known."""
        return Prompt(list(ids), b"".join(self._pieces[token] for token in ids).decode(errors="replace"))

    def ids_of(self, text: str) -> list[int]:
        """Refused: servers that tokenise return ids."""
        raise malformed(f"a piece of text without its id ({len(text)} characters)")

    async def parts(self, text: str, count: int, last: int) -> list[int] | None:
        """The server's tokens of the text, if they end with `last` and detokenise to the same text."""
        ids = (await self._ids(text))[-count - 1 :]
        same = len(ids) == count + 1 and ids[-1] == last and await self._text(ids) == text
        return ids[:-1] if same else None

    def close(self) -> None:
        """Does nothing."""


async def choose_text(
    dialect: Dialect,
    client: HttpClient,
    facts: RemoteModel,
    abilities: Abilities,
    *,
    tokenizer: str | Path | None,
    options: LoadOptions,
) -> RemoteText:
    """Chooses the text side of a model: a local tokenizer or the server's.

    `tokenizer` is a folder or a name on the shelf, or "server" for the server's; None searches by the model's names.

    Raises:
        ModelLoadError: The named tokenizer cannot be read.
        RemoteError: An impossibly large vocabulary.
        InvalidRequestError: The named tokenizer is not the server's.
        UnsupportedFeatureError: Neither this machine nor the server has a tokenizer.
    """
    known_vocab = abilities.alternatives if abilities.full_vector else facts.vocab
    if facts.vocab > MOST_VOCAB:
        raise malformed(f"a vocabulary of {facts.vocab:,} is more than the {MOST_VOCAB:,} of any model")
    named = tokenizer is not None and tokenizer != "server"
    candidates: list[str | Path] = [tokenizer] if named and tokenizer is not None else []
    if tokenizer is None:
        candidates = [name for name in facts.names if is_model_id(name) or client.address.loopback]
        candidates += [entry.name for entry in await asyncio.to_thread(list_models) if entry.title in facts.names]
    for candidate in candidates:
        try:
            folder = await asyncio.to_thread(text_folder, candidate)
            side = (await asyncio.to_thread(TextSide.from_folder, folder)).with_format(options)
        except RuntimeFault:
            if named:
                raise
            continue
        width = known_vocab or whole(folder.config.get("vocab_size")) or len(side.tokenizer)
        difference = await _difference(side, width, dialect, client, facts, abilities)
        if difference == "" and client.address.loopback and Path(candidate).is_absolute():
            difference = None  # a server on this machine loaded this folder itself
        if difference is None or (named and not difference):
            unproven = f"the tokenizer {candidate} was named by the user; {client.address.host} cannot prove it the same"
            return LocalText(side, width, options, () if difference is None else (unproven,))
        if named:
            raise InvalidRequestError(f"the tokenizer {candidate} is not that of {facts.model}: {difference}")
        log.info("tokenizer %s not used for %s: %s", candidate, facts.model, difference or "not proven")
    if not abilities.tokenizer:
        raise UnsupportedFeatureError(
            f"{client.address.host} does not tokenise, and no tokenizer of {facts.model} is on this machine; {_FETCH}"
        )
    if not (known_vocab or dialect.checks_ids):
        raise UnsupportedFeatureError(f"{client.address.host} does not say how large its vocabulary is; {_FETCH}")
    width = known_vocab or await _vocab_by_asking(dialect, client, facts, abilities)
    return ServerText(dialect, client, facts, width, abilities.chat)


def _parts(ids: list[int]) -> list[list[int]]:
    return [ids[at : at + _IDS_PER_REQUEST] for at in range(0, len(ids), _IDS_PER_REQUEST)]


def text_folder(source: str | Path) -> ModelFolder:
    """A model folder of which only the text side is read, so that it needs no weights.

    Raises:
        ModelLoadError: There is no such folder or model.
    """
    path = Path(source).expanduser()
    if not (path / "tokenizer.json").is_file():
        return resolve(source)
    settings = read_json(path / "tokenizer_config.json") or {}
    config = read_json(path / "config.json") or {}
    return ModelFolder(
        path,
        path.name,
        normalised(config) if config else {},
        weights_digest="",
        text_digest="",
        tokenizer_config=settings,
        generation_config=read_json(path / "generation_config.json") or {},
        chat_template=chat_template_of(path, settings),
    )


async def _difference(
    side: TextSide, width: int, dialect: Dialect, client: HttpClient, facts: RemoteModel, abilities: Abilities
) -> str | None:
    """The difference of a local tokenizer from the server's, in words; None: they are the same; "": not proven."""
    if facts.tokenizer_digest:
        own = tokenizer_digest(side.tokenizer.byte_vocab(width))
        return None if own == facts.tokenizer_digest else "its digest is another"
    if not abilities.tokenizer:
        return ""
    theirs = await dialect.tokenize(client, facts.model, PROBE_TEXT)
    ours = side.tokenizer.encode(PROBE_TEXT)
    bos = side.tokenizer.bos_token_id
    if theirs not in (ours, [bos, *ours]):
        return f"a text of many scripts is {len(ours)} tokens here and {len(theirs)} there, or others"
    return None


async def _vocab_by_asking(dialect: Dialect, client: HttpClient, facts: RemoteModel, abilities: Abilities) -> int:
    """The number of ids that a server accepts, by bisection in some twenty requests for one token each."""
    low, high = 1, MOST_VOCAB  # ids below `low` are accepted, from `high` on refused
    while high - low > 1:
        middle = (low + high) // 2
        asked = RemoteRequest(model=facts.model, prompt=Prompt([middle - 1], ""))
        path, body = dialect.request(asked, abilities, stream=False)
        try:
            await client.post(path, body)
            low = middle
        except InvalidRequestError:
            high = middle
        except RemoteError as fault:
            if fault.reason != "server":
                raise
            high = middle
    return low
