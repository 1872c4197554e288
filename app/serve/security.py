"""Checks of requests before they are read: Host, Origin, key, content type and size."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.types import Receive

from app.serve.errors import ApiError

LARGEST_BODY: Final = 32 << 20  # bytes
BODY_SECONDS: Final = 30.0  # for the whole body
OPEN_PATHS: Final = frozenset({"/health"})  # answered without a key: they only show that a server runs


@dataclass(frozen=True, slots=True)
class Access:
    """The callers that are answered."""

    keys: tuple[str, ...] = ()  # accepted keys; empty: no key is needed
    # Host names beside localhost, IP addresses and, unless on loopback, this machine's names
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()  # allowed web origins, such as ``http://localhost:3000``
    loopback: bool = True  # whether only this machine can connect
    salt_per_key: bool = False  # whether clients with different keys have separate caches

    def check(self, request: Request) -> None:
        """Refuses a request that is not allowed.

        Raises:
            ApiError: 403 for its Host or Origin, 401 for its key.
        """
        self._check_host(request.headers.get("host", ""))
        origin = request.headers.get("origin")
        if origin is not None and origin not in self.origins:
            raise ApiError("web pages of this origin may not ask; `elsewise serve --allow-origin` names those that may", 403)
        if self.keys and request.scope["path"] not in OPEN_PATHS:
            self._check_key(_key_of(request))

    def salt(self, request: Request, own: str | None) -> str | None:
        """The cache salt of a checked request.

        Args:
            request: Its key becomes part of the salt with `salt_per_key`.
            own: The salt in its body.
        """
        if not self.salt_per_key:
            return own
        return f"{hashlib.sha256(_key_of(request)).hexdigest()} {own or ''}"

    def _check_host(self, header: str) -> None:
        """Refuses unknown names, which a foreign page could have pointed at this address (DNS rebinding)."""
        name = "" if set(header) & set("/?#@\\") else _host_of(header)  # delimiters of a URL would move its path
        if name in ("localhost", *self.hosts) or _is_address(name):
            return
        if not self.loopback and name in machine_names():
            return
        raise ApiError("this Host is not served; `elsewise serve --allow-host` names those that are", 403)

    def _check_key(self, given: bytes) -> None:
        matches = [hmac.compare_digest(given, known.encode()) for known in self.keys]  # all: the time reveals nothing
        if not any(matches):
            raise ApiError("a valid key is needed: Authorization: Bearer KEY", 401, code="invalid_api_key")


def _key_of(request: Request) -> bytes:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip().encode() if scheme.lower() == "bearer" else b""


def machine_names() -> frozenset[str]:
    """The names of this machine on its network."""
    name = socket.gethostname().lower()
    return frozenset({name, name.partition(".")[0], f"{name.partition('.')[0]}.local"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host.strip("[]")).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _host_of(header: str) -> str:
    host = header.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".")


def checked_keys(texts: Iterable[str]) -> tuple[str, ...]:
    """Keys, one per line; blank lines are left out.

    Raises:
        ValueError: A key is shorter than 16 characters, or not valid in a header; the message does not quote it.
    """
    keys = tuple(line.strip() for text in texts for line in text.splitlines() if line.strip())
    for number, key in enumerate(keys, 1):
        if len(key) < 16 or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(f"key {number} is not usable: at least 16 printable ASCII characters without spaces")
    return keys


def cors_headers(origin: str | None, access: Access) -> Sequence[tuple[bytes, bytes]]:
    """Headers that allow a page of an allowed origin to read the answer."""
    if origin is None or origin not in access.origins:
        return ()
    return ((b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin"))


async def read_body(request: Request, receive: Receive) -> bytes:
    """The JSON body.

    Raises:
        ApiError: 415 without a JSON content type, which a foreign page cannot send without a preflight; 413 too large; 408
            too slow.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError("send JSON, with the header Content-Type: application/json", 415)
    too_large = ApiError(f"the body has more than {LARGEST_BODY:,} bytes", 413)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > LARGEST_BODY:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionResetError
                body += message.get("body", b"")
                if len(body) > LARGEST_BODY:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ApiError(f"the body did not arrive within {BODY_SECONDS:.0f} s", 408) from None
