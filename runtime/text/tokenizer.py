"""Text to token ids and back, exact to the byte, with the `tokenizers` library alone."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, Self, cast

import tokenizers

from resources.files import read_regular
from runtime.backends.byte_text import byte_characters
from runtime.errors import InvalidRequestError, ModelLoadError, RuntimeFault, UnsupportedFeatureError
from runtime.loading.model_folder import MAX_TOKENIZER_BYTES, ModelFolder
from runtime.text.utf8 import clean_text, spare_characters

Spelling = Literal["byte-level", "sentencepiece", "wordpiece", "plain"]

MAX_VOCABULARY = 1 << 22  # ids; the largest known vocabularies hold 262,144
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SPACE = "▁"  # U+2581, SentencePiece's space


def spelling_of(backend: tokenizers.Tokenizer) -> Spelling:
    """How the token strings of a vocabulary spell bytes."""
    decoder, before = _state(backend.decoder), _state(backend.pre_tokenizer)
    if "ByteLevel" in _types(decoder) or "ByteLevel" in _types(before):
        return "byte-level"
    if "WordPiece" in _types(decoder):
        return "wordpiece"
    if (
        {"ByteFallback", "Metaspace"} & _types(decoder)
        or "Metaspace" in _types(before)
        or _SPACE in json.dumps(decoder, ensure_ascii=False)
    ):
        return "sentencepiece"
    return "plain"


def bytes_by_id(backend: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of every token by id; empty for an unused id. Added tokens are the bytes of their text.

    Raises:
        ModelLoadError: The largest id is too large to be real.
    """
    spelling = spelling_of(backend)
    vocab = backend.get_vocab(with_added_tokens=True)
    top = max(vocab.values(), default=-1)
    if not 0 <= top < MAX_VOCABULARY:
        raise ModelLoadError(f"tokenizer.json: the largest token id is {top:,}; 0 to {MAX_VOCABULARY - 1:,} is possible")
    table = [b""] * (top + 1)
    for text, token_id in vocab.items():
        table[token_id] = token_text_bytes(text, spelling)
    for token_id, added in backend.get_added_tokens_decoder().items():
        if token_id <= top:
            spaced = spelling == "sentencepiece" and not added.special  # Gemma's runs of spaces: the decoder replaces them too
            table[token_id] = (added.content.replace(_SPACE, " ") if spaced else added.content).encode()
    return table


def token_text_bytes(text: str, spelling: Spelling) -> bytes:
    """The bytes that a token string of the vocabulary spells."""
    if spelling == "byte-level":
        table = _byte_characters()
        try:
            return bytes(table[char] for char in text)
        except KeyError:  # not in byte spelling: the text itself, as in the library's decoder
            return text.encode()
    if spelling == "sentencepiece":
        byte = _BYTE_TOKEN.match(text)
        return bytes([int(byte[1], 16)]) if byte else text.replace(_SPACE, " ").encode()
    if spelling == "wordpiece":
        return text[2:].encode() if text.startswith("##") else b" " + text.encode()
    return text.encode()


@cache
def _byte_characters() -> dict[str, int]:
    return {char: byte for byte, char in enumerate(byte_characters())}


def _state(part: object) -> Any:
    """A tokenizer part as plain JSON; None without one."""
    return None if part is None else json.loads(cast("bytes", part.__getstate__()))  # the library pickles as JSON


def _types(state: Any) -> set[str]:
    if isinstance(state, Mapping):
        own = {state["type"]} if isinstance(state.get("type"), str) else set()
        return own.union(*(_types(value) for value in state.values()))
    if isinstance(state, list):
        return set().union(*(_types(value) for value in state))
    return set()


class Tokenizer:
    """A model's tokenizer. Thread-safe.

    Text with lone surrogates is cleaned (U+FFFD, see `clean_text`); NUL and control characters are tokenised as they are.
    Bytes that a vocabulary does not have (SmolLM2 lacks some control characters) are left out, as transformers does.
    `decode` joins the tokens' bytes and nothing else: no clean-up, no stripped space, special tokens as their text.

    Attributes:
        eos_token_ids: Ids that end a generation, the model's own first.
        bos_token_id: The beginning-of-text id, or None.
        adds_bos: Whether the model expects `bos_token_id` before raw text; `encode` never adds it.
        special: Ids of the control tokens, by text.
        added: Ids of all added tokens, control tokens among them, by text.
        special_texts: Texts of special tokens by their names in chat templates: bos_token, eos_token, unk_token, pad_token.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Iterable[int] = (),
        special_texts: Mapping[str, str] | None = None,
        adds_bos: bool | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = _uncached(backend)
        self._lock = threading.Lock()  # the library's switch for special tokens is a property of the object
        self._renamed: tuple[Mapping[str, str], tokenizers.Tokenizer] | None = None  # of the last `encode_renamed`
        self._bytes = bytes_by_id(backend)
        decoder = backend.get_added_tokens_decoder()
        self.added: Mapping[str, int] = {token.content: i for i, token in decoder.items()}
        self.special: Mapping[str, int] = {token.content: i for i, token in decoder.items() if token.special}
        self.special_ids = frozenset(self.special.values())
        self.special_texts: Mapping[str, str] = dict(special_texts or {})
        named_eos = self._id_of("eos_token")
        wanted = [*eos_token_ids, *([] if named_eos is None else [named_eos])]
        self.eos_token_ids = tuple(dict.fromkeys(i for i in wanted if 0 <= i < len(self._bytes)))
        self.bos_token_id = self._id_of("bos_token")
        self._control_ids = self.special_ids - {self._id_of("unk_token"), _unknown_id(backend)}
        self.adds_bos = self.bos_token_id is not None and (self._opens_with_bos() if adds_bos is None else adds_bos)

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Self:
        """The tokenizer of a checked model folder.

        Raises:
            ModelLoadError: There is no tokenizer.json, or the library rejects it.
        """
        path = folder.path / "tokenizer.json"
        try:
            data = read_regular(path, MAX_TOKENIZER_BYTES)
        except FileNotFoundError as fault:
            reason = f"{folder.path}: no tokenizer.json; choose a folder that has the fast tokenizer's file"
            raise ModelLoadError(reason) from fault
        except OSError as fault:
            raise ModelLoadError(f"{path}: cannot be read ({fault.strerror}); put the model's own file there") from fault
        with _library_faults(f"{path}: not a usable tokenizer"):
            backend = tokenizers.Tokenizer.from_str(data.decode())
            adds_bos = folder.tokenizer_config.get("add_bos_token")
            return cls(
                backend,
                eos_token_ids=_eos_ids(folder.generation_config, folder.config),
                special_texts=_special_texts(folder.tokenizer_config),
                adds_bos=adds_bos if isinstance(adds_bos, bool) else None,
            )

    @classmethod
    def from_transformers(cls, tokenizer: Any, *, eos_token_ids: Iterable[int] = ()) -> Self:
        """Copies the fast tokenizer in a transformers tokenizer; later changes to the original have no effect.

        Args:
            tokenizer: A transformers tokenizer.
            eos_token_ids: The ids of the model's generation config.

        Raises:
            UnsupportedFeatureError: The tokenizer has no fast backend.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, tokenizers.Tokenizer):
            kind = type(tokenizer).__name__
            raise UnsupportedFeatureError(f"{kind} has no fast tokenizer behind it; pass one that has backend_tokenizer")
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        texts = {name: str(text) for name in names if (text := getattr(tokenizer, name, None)) is not None}
        with _library_faults("the tokenizer cannot be copied"):
            adds_bos = getattr(tokenizer, "add_bos_token", None)
            return cls(
                tokenizers.Tokenizer.from_str(backend.to_str()),
                eos_token_ids=eos_token_ids,
                special_texts=texts,
                adds_bos=adds_bos if isinstance(adds_bos, bool) else None,
            )

    def __len__(self) -> int:
        return len(self._bytes)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text, without added bos or eos.

        Args:
            text: Any string.
            special: True reads ``<|im_end|>`` and the like as control tokens, for rendered templates; False as plain text, for
                content.
        """
        text = clean_text(text)
        with self._lock, _library_faults("the tokenizer failed on the text"):
            self._backend.encode_special_tokens = not special
            ids = self._backend.encode(text, add_special_tokens=False).ids
        if special or self._control_ids.isdisjoint(ids):
            return ids
        spare = spare_characters(text)  # a unigram model has its control tokens as ordinary pieces
        return self.encode_renamed(text, {name: next(spare) for name in self.special})

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens' bytes, with U+FFFD for bytes that are not UTF-8."""
        return b"".join(self.token_bytes(i) for i in ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token; empty for an id of the logits without a token."""
        if token_id < 0:
            raise InvalidRequestError(f"token id {token_id} is negative")
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def byte_vocab(self, width: int | None = None) -> list[bytes]:
        """The bytes of every token by id, truncated or padded with ``b""`` to `width` (of the logits)."""
        width = len(self) if width is None else width
        return self._bytes[:width] + [b""] * (width - len(self))

    def str_vocab(self, width: int | None = None) -> list[str]:
        """The text of every token by id; the tokenizer's own spelling if the bytes alone are not UTF-8."""
        return [self._text(i, data) for i, data in enumerate(self.byte_vocab(width))]

    def to_json(self) -> str:
        """The library's own description, as in tokenizer.json."""
        with self._lock:
            return self._backend.to_str()

    def encode_renamed(self, text: str, aliases: Mapping[str, str]) -> list[int]:
        """The ids of a text in which aliases stand for added tokens, whose own texts are plain text there.

        Args:
            text: The text; an alias in it becomes its token.
            aliases: The alias of each added token, by its text.
        """
        with self._lock, _library_faults("the tokenizer failed on the text"):
            if self._renamed is None or self._renamed[0] != aliases:
                self._renamed = (dict(aliases), _renamed(self._backend.to_str(), aliases))
            return self._renamed[1].encode(text, add_special_tokens=False).ids

    def _text(self, token_id: int, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return self._backend.id_to_token(token_id) or ""

    def _id_of(self, name: str) -> int | None:
        text = self.special_texts.get(name)
        return None if text is None else self._backend.token_to_id(text)

    def _opens_with_bos(self) -> bool:
        """Whether the tokenizer's post-processor puts a bos before an empty text."""
        return self._backend.encode("", add_special_tokens=True).ids[:1] == [self.bos_token_id]


def _uncached(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Switches off the word cache of a BPE tokenizer that has not been used yet.

    From tokenizers 0.23 on each thread keeps that cache, up to some 2 MB, after the tokenizer is freed. Without it texts of
    known words take a fifth longer, about a microsecond a token.
    """
    if isinstance(backend.model, tokenizers.models.BPE):
        backend.model._resize_cache(0)  # noqa: SLF001  # the library has no public switch for a tokenizer read from JSON
    return backend


@contextmanager
def _library_faults(what: str) -> Iterator[None]:
    """Turns any exception of the library, panics (BaseExceptions) included, into one clear error."""
    try:
        yield
    except (RuntimeFault, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as fault:
        first = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
        raise ModelLoadError(f"{what}: {first[:300]}") from fault


def _unknown_id(backend: tokenizers.Tokenizer) -> int | None:
    """The id of the token for unknown text."""
    text = getattr(backend.model, "unk_token", None)
    return backend.token_to_id(text) if isinstance(text, str) else getattr(backend.model, "unk_id", None)


def _eos_ids(*configs: Mapping[str, Any]) -> list[int]:
    """The ids in the `eos_token_id` of each config, which is a number or a list."""
    found: list[int] = []
    for config in configs:
        value = config.get("eos_token_id")
        values: Sequence[Any] = value if isinstance(value, list) else [value]
        found += [i for i in values if isinstance(i, int) and not isinstance(i, bool)]
    return found


def _special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens of tokenizer_config.json, each a string or ``{"content": ...}``, as texts."""
    texts: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            texts[name] = text
    return texts


def _renamed(source: str, aliases: Mapping[str, str]) -> tokenizers.Tokenizer:
    """The tokenizer with added tokens renamed to their aliases; their ids are unchanged."""
    layout = json.loads(source)
    for token in layout["added_tokens"]:
        token["content"] = aliases.get(token["content"], token["content"])
    model = layout["model"]
    if isinstance(model["vocab"], dict):  # BPE, WordPiece, WordLevel
        model["vocab"] = {aliases.get(text, text): i for text, i in model["vocab"].items()}
    else:  # Unigram: [text, score] by id
        model["vocab"] = [[aliases.get(text, text), score] for text, score in model["vocab"]]
    if model.get("unk_token") in aliases:
        model["unk_token"] = aliases[model["unk_token"]]
    layout["post_processor"] = None  # it names renamed tokens, and a template writes every token itself
    return _uncached(tokenizers.Tokenizer.from_str(json.dumps(layout)))
