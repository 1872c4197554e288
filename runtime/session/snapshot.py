"""`Snapshot`: the plain values of a session, without its KV, from which another session can continue."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self, get_args

from runtime.errors import InvalidRequestError, RuntimeFault, SnapshotFormatError, SnapshotMismatchError
from runtime.options.generation import GenerationOptions
from runtime.session.manifest import Manifest
from runtime.session.status import Mark, SegmentKind, token_hash

SNAPSHOT_VERSION: Final = 1
_KINDS: Final = get_args(SegmentKind)
_NAMES: Final = frozenset(
    {"version", "ids", "ids_sha256", "text", "marks", "prefix", "messages", "manifest", "top_k", "limit", "options",
     "generation", "blocks"}
)  # fmt: skip
MOST_TOKENS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer in a session: its beginning and its options.

    Attributes:
        start: The number of session tokens before the answer.
        options: The resolved options with the seed: a draw depends only on the seed and the token's place.
        finish: The finish reason; None: the answer has not ended.
    """

    start: int
    options: GenerationOptions
    finish: str | None = None

    def rest(self, resident: int) -> GenerationOptions | None:
        """The options that continue the answer in a session of `resident` tokens; None if it has ended.

        `grammar_prefix` counts the tokens that the grammar reads again.
        """
        made = resident - self.start
        left = None if self.options.max_tokens is None else self.options.max_tokens - made
        if self.finish is not None or (left is not None and left < 1):
            return None
        own = self.options.grammar_prefix + made if self.options.grammar is not None else 0
        return replace(self.options, max_tokens=left, grammar_prefix=own)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session at one moment, without KV; `LanguageModel.resume` opens it again.

    Attributes:
        ids: The tokens.
        text: The bytes of the tokens, for a model with another vocabulary.
        marks: The beginnings of the segments.
        prefix: The number of leading tokens that `ensure_prefix` or `ensure_messages` set.
        messages: (role, content) of the last `ensure_messages`; empty without one.
        manifest: The manifest of the tokens.
        top_k: See `SessionConfig`.
        limit: See `SessionConfig`.
        options: See `SessionConfig`.
        generation: The last answer, ended or not.
        blocks: Names of the path's KV blocks, in hex; empty where the engine has no block file.
    """

    ids: tuple[int, ...]
    text: bytes
    marks: tuple[Mark, ...]
    prefix: int
    messages: tuple[tuple[str, str], ...]
    manifest: Manifest
    top_k: int | None = 10
    limit: int | None = None
    options: GenerationOptions | None = None
    generation: Generation | None = None
    blocks: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        generation = self.generation
        return {
            "version": SNAPSHOT_VERSION,
            "ids": list(self.ids),
            "ids_sha256": token_hash(self.ids),
            "text": base64.b64encode(self.text).decode(),
            "marks": [[mark.kind, mark.label, mark.start] for mark in self.marks],
            "prefix": self.prefix,
            "messages": [list(message) for message in self.messages],
            "manifest": self.manifest.to_mapping(),
            "top_k": self.top_k,
            "limit": self.limit,
            "options": None if self.options is None else _plain(self.options),
            "generation": None
            if generation is None
            else {"start": generation.start, "options": _plain(generation.options), "finish": generation.finish},
            "blocks": list(self.blocks),
        }

    @classmethod
    def from_mapping(cls, stored: object) -> Self:
        """A stored snapshot, as `to_mapping` made it; every field is checked.

        Raises:
            SnapshotFormatError: Not a snapshot, damaged, or of a newer version.
        """
        if not isinstance(stored, Mapping):
            raise SnapshotFormatError(f"a stored snapshot is a mapping, not {stored!r:.60}")
        version = stored.get("version")
        if type(version) is not int or version < 1:
            raise SnapshotFormatError(f"this is no stored snapshot: its version is {version!r:.40}")
        if version > SNAPSHOT_VERSION:
            raise SnapshotFormatError(
                f"the snapshot has version {version}, this Elsewise reads up to {SNAPSHOT_VERSION}; update it"
            )
        if set(stored) != _NAMES:
            odd = sorted(map(str, set(stored) ^ _NAMES))
            raise SnapshotFormatError(f"this is no stored snapshot: {', '.join(odd)[:80]} is missing or not known")
        try:
            return cls._read(stored)
        except SnapshotFormatError:
            raise
        except (TypeError, ValueError, OverflowError, binascii.Error, RuntimeFault) as wrong:
            raise SnapshotFormatError(f"this is no stored snapshot, or it is damaged: {wrong}") from wrong

    @classmethod
    def _read(cls, stored: Mapping[str, Any]) -> Self:
        ids = _counts(stored["ids"], "ids", (1 << 31) - 1)
        if len(ids) > MOST_TOKENS or token_hash(ids) != stored["ids_sha256"]:
            raise SnapshotFormatError("the ids of the snapshot do not have their checksum: it is damaged")
        generation = stored["generation"]
        return cls(
            ids=ids,
            text=base64.b64decode(stored["text"], validate=True),
            marks=_marks(stored["marks"], len(ids)),
            prefix=_counts([stored["prefix"]], "prefix", len(ids))[0],
            messages=tuple((_text(role), _text(content)) for role, content in stored["messages"]),
            manifest=Manifest.from_mapping(stored["manifest"]),
            top_k=None if stored["top_k"] is None else _counts([stored["top_k"]], "top_k", 1000)[0],
            limit=None if stored["limit"] is None else _counts([stored["limit"]], "limit", MOST_TOKENS)[0],
            options=None if stored["options"] is None else GenerationOptions.from_mapping(stored["options"]),
            generation=None if generation is None else _generation(generation, len(ids)),
            blocks=tuple(bytes.fromhex(_text(key)).hex() for key in stored["blocks"]),
        )

    def require(self, now: Manifest) -> None:
        """Refuses another model, tokenizer, template or setting than that of the session's tokens.

        Raises:
            SnapshotMismatchError: The message has every difference, with both values.
        """
        if found := self.manifest.differences(now):
            raise SnapshotMismatchError(
                f"the snapshot was made with something else (then, now): {'; '.join(found)}. Bring that back, or take its text "
                "alone: resume_text"
            )


def _plain(options: GenerationOptions) -> dict[str, Any]:
    """Options as JSON values, for `GenerationOptions.from_mapping`."""
    made = asdict(options)
    biases = made["sampling"].get("logit_bias")
    if biases:
        made["sampling"]["logit_bias"] = {str(token): bias for token, bias in biases.items()}
    return made


def _generation(stored: Any, resident: int) -> Generation:
    if not isinstance(stored, Mapping) or set(stored) != {"start", "options", "finish"}:
        raise ValueError("its generation should have start, options and finish")
    finish = None if stored["finish"] is None else _text(stored["finish"])
    start = _counts([stored["start"]], "start", resident)[0]
    return Generation(start, GenerationOptions.from_mapping(stored["options"]), finish)


def _marks(stored: Any, resident: int) -> tuple[Mark, ...]:
    marks = tuple(Mark(kind, _text(label), start) for kind, label, start in stored)
    starts = _counts([mark.start for mark in marks], "marks", max(resident - 1, 0))
    if any(mark.kind not in _KINDS for mark in marks) or list(starts) != sorted(set(starts)) or (bool(marks) != bool(resident)):
        raise ValueError("its marks are no segments")
    if marks and starts[0]:
        raise ValueError("its first tokens have no mark")
    return marks


def _counts(given: Any, what: str, most: int) -> tuple[int, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidRequestError(f"{what} should be whole numbers, not {given!r:.40}")
    if not all(type(n) is int and 0 <= n <= most for n in given):
        raise InvalidRequestError(f"{what} should be whole numbers within 0 and {most:,}")
    return tuple(given)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise InvalidRequestError(f"a text should stand where {given!r:.40} does")
    return given
