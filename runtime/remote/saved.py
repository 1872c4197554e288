"""Connections by name, in a JSON file beside the models. Keys are stored only in the system keychain."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import filelock
import msgspec

from runtime.errors import InvalidRequestError, ModelLoadError
from runtime.hub.credentials import forget_key, keep_key, kept_key
from runtime.loading.integrity import write_atomically
from runtime.loading.paths import is_model_id, models_dir, shelf_path
from runtime.remote.http import ServerAddress

KEY_VARIABLE: Final = "ELSEWISE_API_KEY"
HOST_VARIABLE: Final = "ELSEWISE_API_HOST"
_FILE: Final = "connections.json"
_MOST_BYTES: Final = 1 << 20
_LOCK_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Connection:
    """A server's model under a name that the user chose.

    Attributes:
        name: The name, as ``--model`` takes it.
        base_url: The server's address.
        model: The model's id on the server; None: the only one.
        plain_http: Allows unencrypted HTTP to that host, also for other connections to it.
        tokenizer: A tokenizer of this machine, or "server"; None chooses.
    """

    name: str
    base_url: str
    model: str | None = None
    plain_http: bool = False
    tokenizer: str | None = None

    @property
    def key(self) -> str:
        """The server's key, from the keychain or the environment; empty without a key."""
        return key_for(self.base_url)

    def arguments(self) -> dict[str, Any]:
        """The arguments for `connect`. Blocks to read the keychain, for which the system may ask the user."""
        return {
            "base_url": self.base_url,
            "model": self.model,
            "api_key": self.key or None,
            "plain_http": self.plain_http or _is_confirmed(self.base_url),
            "tokenizer": self.tokenizer,
        }


def key_for(base_url: str) -> str:
    """The key for an address from the keychain, else the value of `KEY_VARIABLE` if `HOST_VARIABLE` names that host.

    Raises:
        InvalidRequestError: `HOST_VARIABLE` is not a host.
    """
    address = ServerAddress.parse(base_url, plain_http=True)
    if key := kept_key(address.url):
        return key
    key, host = (os.environ.get(name, "").strip() for name in (KEY_VARIABLE, HOST_VARIABLE))
    if not key or not host:
        return ""
    try:
        named = ServerAddress.parse(host, plain_http=True)
    except InvalidRequestError:
        raise InvalidRequestError(f"{HOST_VARIABLE} is a host with its port, such as vllm.example.org:8000") from None
    return key if named.host == address.host else ""


def server_address(base_url: str) -> str:
    """The complete form of an address that a user wrote.

    Raises:
        InvalidRequestError: Not an address, or unencrypted to another machine without permission.
    """
    return ServerAddress.parse(base_url, plain_http=_is_confirmed(base_url)).url


def _is_confirmed(base_url: str) -> bool:
    """Whether a stored connection allows unencrypted HTTP to that host."""
    host = ServerAddress.parse(base_url, plain_http=True).host
    try:
        plain = [each.base_url for each in connections() if each.plain_http]
    except ModelLoadError:  # counts as an empty list, as in `find_connection`
        return False
    return any(ServerAddress.parse(url, plain_http=True).host == host for url in plain)


def connections() -> list[Connection]:
    """All stored connections, by name.

    Raises:
        ModelLoadError: The file cannot be read.
    """
    path = models_dir() / _FILE
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ModelLoadError(f"{path} is larger than any list of connections; remove it and connect again")
        return sorted(msgspec.json.decode(path.read_bytes(), type=list[Connection]), key=lambda each: each.name)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise ModelLoadError(f"{path}: not readable ({fault}); remove it and connect again") from fault


def find_connection(name: str) -> Connection | None:
    """The stored connection of a name, or a temporary one for an address (``http://host:port``, ``http://host:port#model``).

    A model of the shelf takes precedence over a connection of the same name. A list that cannot be read counts as empty, so
    that models of this machine can still be loaded.
    """
    if name.startswith(("http://", "https://")):
        base_url, _, model = name.partition("#")
        return Connection(name, base_url, model or None)
    if not is_model_id(name) or shelf_path(name).exists():
        return None
    try:
        return next((each for each in connections() if each.name == name), None)
    except ModelLoadError as fault:
        log.warning("%s", fault)
        return None


def keep_connection(connection: Connection, key: str = "") -> str:
    """Stores a connection, replacing an earlier one of the same name, and its key in the keychain.

    Returns:
        The name of the keychain; empty without a key.

    Raises:
        InvalidRequestError: The name or the address is invalid.
        KeychainError: There is a key and no keychain; nothing was stored.
        ModelLoadError: The list cannot be read or written.
    """
    check_connection_name(connection.name)
    address = ServerAddress.parse(connection.base_url, plain_http=connection.plain_http or _is_confirmed(connection.base_url))
    keychain = keep_key(address.url, key) if key else ""
    with _locked_list() as path:
        _write(path, [*(each for each in connections() if each.name != connection.name), connection])
    return keychain


def check_connection_name(name: str) -> None:
    """Refuses a name that no connection can have.

    Raises:
        InvalidRequestError: Not formed like a model's name, or the name of a model of the shelf.
    """
    if not is_model_id(name):
        raise InvalidRequestError(f"a connection is called like a model (letters, digits, - _ .), not {name!r:.80}")
    if shelf_path(name).exists():
        raise InvalidRequestError(f"{name} is a model of the shelf: give the connection another name")


def forget_connection(name: str) -> bool:
    """Removes a connection, and its key unless another connection to that server needs it; False: no such connection."""
    with _locked_list() as path:
        stored = connections()
        removed = next((each for each in stored if each.name == name), None)
        if removed is None:
            return False
        rest = [each for each in stored if each.name != name]
        _write(path, rest)
    address = ServerAddress.parse(removed.base_url, plain_http=True).url
    if not any(ServerAddress.parse(each.base_url, plain_http=True).url == address for each in rest):
        forget_key(address)
    return True


@contextmanager
def _locked_list() -> Iterator[Path]:
    """The path of the list, locked against other threads and processes."""
    path = models_dir() / _FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filelock.FileLock(f"{path}.lock", timeout=_LOCK_SECONDS, mode=0o600):
            yield path
    except (filelock.Timeout, OSError) as fault:
        raise ModelLoadError(f"{path} cannot be written: {fault}") from fault


def _write(path: Path, entries: list[Connection]) -> None:
    write_atomically(path, msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n")
