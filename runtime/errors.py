"""Every error the runtime raises on purpose.

    RuntimeFault
    ├── InvalidRequestError (ValueError)        the request makes no sense
    │   ├── ContextOverflowError                the text is longer than the model's context
    │   └── OptionError                         an option has a value that it does not take
    ├── UnknownBackendError (ValueError)        no backend has that name
    ├── BackendUnavailableError (ImportError)   the backend's libraries are not installed
    ├── GrammarError, AdapterError, ToolCallError
    ├── ModelLoadError                          the model is missing, incomplete or not supported
    │   ├── ModelMissingError                   it is not on this machine
    │   └── DownloadError                       it could not be fetched; names the reason, and the bytes that were kept
    ├── KeychainError                           a token cannot be stored: there is no keychain, or it refuses
    ├── ManifestMismatchError                   the session belongs to another model or setting
    ├── SnapshotFormatError                     the file is not a snapshot, is damaged, or is newer than this version
    ├── SnapshotMismatchError                   the snapshot was made by another model
    ├── UnsupportedFeatureError                 this model or backend cannot do it
    ├── SessionClosedError                      the session or model was closed
    │   └── ForkedError                         it belongs to the process that this one was forked from
    ├── SessionFatalError, SessionBusyError
    ├── MemoryBudgetError                       the request does not fit into the KV budget
    ├── BlockFileError (OSError)                the block file cannot be opened: in use by another process, newer, not a file
    ├── NonFiniteLogitsError                    the model's logits hold NaN or infinity
    ├── FullVocabUnavailableError               the engine returns only the likeliest tokens
    ├── RemoteError                             a server cannot be reached, refuses, or its answer cannot be used
    └── EngineDiedError                         the engine process ended

Each message names the fault, with numbers, and the way out. Commands are in backquotes; a way out that exists only in a
terminal or a program, such as setting a variable, is in parentheses too. The window shows its own ways (`ui.in_window`).
"""

from __future__ import annotations

from typing import Self


class RuntimeFault(Exception):
    """Root of the tree: catch it to handle every error that the runtime raises on purpose."""


class InvalidRequestError(RuntimeFault, ValueError):
    """The request itself is wrong; nothing was computed."""


class OptionError(InvalidRequestError):
    """An option has a value that it does not take.

    Args:
        words: The message; ``{option}`` and ``{value}`` in it are replaced by the other two arguments.
        option: The option's name, as the caller spelt it.
        value: The given value, cut to a readable length.
    """

    def __init__(self, words: str, option: str = "", value: str = "") -> None:
        self.words, self.option, self.value = words, option, value
        super().__init__(self.told(option))

    def told(self, option: str) -> str:
        """The message with another name of the option, such as that of a command line or of another library."""
        return self.words.replace("{option}", option).replace("{value}", self.value)

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str, str]]:
        return type(self), (self.words, self.option, self.value)


class ContextOverflowError(InvalidRequestError):
    """The tokens do not fit into the context; nothing was computed.

    Args:
        stage: The action or the argument ("prompt", "prefix", "suffix", "decode").
        resident: Tokens that are already there.
        additional: Tokens to add.
        limit: The context length in tokens.
        counted: Whether `additional` was counted; otherwise it is a lower bound, derived from the size of the text.
    """

    def __init__(self, stage: str, resident: int, additional: int, limit: int, counted: bool = True) -> None:
        self.stage, self.resident, self.additional, self.limit = stage, resident, additional, limit
        self.counted = counted
        over = resident + additional - limit
        least = "" if counted else "at least "
        super().__init__(
            f"{stage}: {least}{resident + additional:,} tokens do not fit into the context of {limit:,} "
            f"({over:,} too many); shorten the text, or choose a model with a longer context "
            "(a context_length given at load can be raised up to the model's own)"
        )

    def __reduce__(self) -> tuple[type[ContextOverflowError], tuple[str, int, int, int, bool]]:
        return type(self), (self.stage, self.resident, self.additional, self.limit, self.counted)


class UnknownBackendError(RuntimeFault, ValueError):
    """No backend is registered under that name."""


class BackendUnavailableError(RuntimeFault, ImportError):
    """The backend exists, but its libraries are missing; the message has the install line."""


class GrammarError(RuntimeFault):
    """The grammar is invalid or allows nothing."""


class AdapterError(RuntimeFault):
    """The adapter is unknown, of the wrong shape, or for another base model."""


class ToolCallError(RuntimeFault):
    """The model's tool call cannot be parsed."""


class ModelLoadError(RuntimeFault):
    """The model is missing, incomplete, damaged or not supported."""


class ModelMissingError(ModelLoadError):
    """The named model is not on this machine.

    Args:
        message: For the user of a command line, with the command that fetches it.
        source: The model's name; "" where it is not known.
    """

    def __init__(self, message: str, source: str = "") -> None:
        self.source = source
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ModelMissingError], tuple[str, str]]:
        return type(self), (str(self), self.source)


class DownloadError(ModelLoadError):
    """A model could not be fetched.

    Args:
        message: For the user.
        reason: One word for programs: "network", "denied", "missing", "busy", "server", "changed", "hash", "space",
            "unsuitable" (nothing that Elsewise runs), "taken" (another process fetches it) or "paused" (on request).
        kept: Bytes that were downloaded and need not be fetched again.
    """

    def __init__(self, message: str, reason: str = "server", kept: int = 0) -> None:
        self.reason, self.kept = reason, kept
        super().__init__(message)

    def __reduce__(self) -> tuple[type[DownloadError], tuple[str, str, int]]:
        return type(self), (str(self), self.reason, self.kept)


class KeychainError(RuntimeFault):
    """The system keychain is missing, locked, or refuses. The message names a way without it, and never has the token."""


class ManifestMismatchError(RuntimeFault):
    """The session belongs to another model, template or setting."""


class SnapshotFormatError(RuntimeFault):
    """The file is not a snapshot of ours, is damaged, or is newer than this version."""


class SnapshotMismatchError(RuntimeFault):
    """The snapshot was made by another model; the message names the part that differs."""


class UnsupportedFeatureError(RuntimeFault):
    """This model or backend does not support the request."""


class SessionClosedError(RuntimeFault):
    """The session or model was closed."""


class ForkedError(SessionClosedError):
    """The model belongs to the process that this one was forked from: its threads and pipes exist only there."""

    @classmethod
    def of(cls, owner: int) -> Self:
        """The error for a forked child that uses a model of process `owner`."""
        return cls(
            f"the model belongs to process {owner}, which this one was forked from; load it in this process, and start the "
            'process by spawn instead of fork: multiprocessing.get_context("spawn")'
        )


class SessionFatalError(RuntimeFault):
    """The session met a fault it cannot recover from; the message has the first cause."""


class SessionBusyError(RuntimeFault):
    """Another call runs in the session, which admits one at a time."""


class MemoryBudgetError(RuntimeFault):
    """The request does not fit into the KV budget; the message names a way to free some of it."""


class BlockFileError(RuntimeFault, OSError):
    """The block file could not be opened; the model works without it, and computes conversations again."""


class NonFiniteLogitsError(RuntimeFault):
    """The model's logits hold NaN or infinity; the answer would be meaningless."""


class FullVocabUnavailableError(RuntimeFault):
    """The engine returns only the likeliest tokens, not the whole distribution."""


class RemoteError(RuntimeFault):
    """A server cannot be reached, refuses, or its answer cannot be used. What was received before stays valid.

    Args:
        message: For the user; it never has the key.
        reason: One word for programs: "network" (no connection), "lost" (the connection broke), "timeout", "denied" (the key),
            "missing" (no such endpoint), "busy" (try later), "server" (its own fault), "protocol" (not an answer to the
            request) or "redirect".
        retry_after: Seconds that the server asks to wait; None where it does not ask.
    """

    def __init__(self, message: str, reason: str = "server", retry_after: float | None = None) -> None:
        self.reason, self.retry_after = reason, retry_after
        super().__init__(message)

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str, float | None]]:
        return type(self), (str(self), self.reason, self.retry_after)


class EngineDiedError(RuntimeFault):
    """The engine process ended; text received before stays valid."""
