"""HTTP with limits: bounded answers and server-sent events, typed errors, a key that is sent to one host only.

Everything runs on the transport's loop. Answers are requested uncompressed, so that limits on received bytes also limit memory;
redirects are refused. Errors and logs contain neither the key nor a prompt.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from runtime.errors import ContextOverflowError, InvalidRequestError, ModelMissingError, RemoteError, RuntimeFault

A = TypeVar("A")
T = TypeVar("T")

CONNECT_SECONDS: Final = 3.0
IDLE_SECONDS: Final = 60.0  # time limit for the next complete event, or for the rest of an answer
FIRST_SECONDS: Final = 60.0  # time limit for the beginning of an answer to an empty prompt
FIRST_SECONDS_PER_TOKEN: Final = 0.02  # added per token of the prompt: even a slow server prefills 50 tokens per second
MOST_EVENT_BYTES: Final = 8 << 20  # a thousand alternatives take 60 KiB
MOST_SMALL_BYTES: Final = 4 << 20  # of answers without log-probabilities: lists of models, token ids
_MOST_ERROR_BYTES: Final = 64 << 10
_MOST_CONNECTIONS: Final = 64
_KEEPALIVE_SECONDS: Final = 3.0  # of idle connections; uvicorn (vLLM, Elsewise) and llama.cpp close them after 5 s
_QUOTED: Final = re.compile(r"['\"]input['\"]\s*:|\binput_value=")  # pydantic quotes the request after these words
_MOST_EMPTY_LINES: Final = 2000  # consecutive lines without data: comments, each followed by a blank line


def first_seconds(tokens: int) -> float:
    """The time limit, in seconds, for the beginning of the answer to a prompt of this many tokens."""
    return FIRST_SECONDS + FIRST_SECONDS_PER_TOKEN * tokens


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's address: ``https://host:port/root``, without ``/v1``."""

    url: str
    host: str
    loopback: bool
    secure: bool

    @classmethod
    def parse(cls, base_url: str, *, plain_http: bool = False) -> ServerAddress:
        """Parses an address as a user writes it.

        Args:
            base_url: With or without ``/v1`` at the end; without a scheme, ``http://`` if the host is this machine.
            plain_http: Allows unencrypted HTTP to another machine.

        Raises:
            InvalidRequestError: Not an HTTP address, an address that contains a key, or unencrypted to another machine.
        """
        if not isinstance(base_url, str) or not base_url.strip():
            raise InvalidRequestError("base_url is the address of a server, such as http://127.0.0.1:8000 or https://host/v1")
        written = base_url.strip()
        if "://" not in written:
            written = f"{'http' if _is_loopback(re.split('[:/]', written)[0]) else 'https'}://{written}"
        shown = "(with a name or a password)" if "@" in written else f"{base_url!r:.200}"
        try:
            url = httpx2.URL(written)
        except httpx2.InvalidURL as fault:
            words = "" if "@" in written else f": {fault}"
            raise InvalidRequestError(f"base_url {shown} is no address{words}") from None
        if url.userinfo:
            raise InvalidRequestError("base_url has a name or a password in it; give the key as api_key")
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidRequestError(f"base_url begins with http:// or https:// and a host, not {shown}")
        if url.port is not None and not 0 < url.port < 1 << 16:
            raise InvalidRequestError(f"base_url {shown}: a port is a number from 1 to 65,535, not {url.port}")
        if url.query or url.fragment:
            raise InvalidRequestError("base_url has a query (?...) or a fragment (#...); give the address alone")
        loopback = _is_loopback(url.host)
        if url.scheme == "http" and not loopback and not plain_http:
            raise InvalidRequestError(
                f"http:// to {url.host} sends prompts, answers and the key unencrypted; use https://, or confirm it for this "
                "host (`plain_http=True`, `--plain-http`)"
            )
        root = url.path.rstrip("/").removesuffix("/v1")
        port = "" if url.port is None else f":{url.port}"
        host = f"[{url.host}]" if ":" in url.host else url.host
        return cls(f"{url.scheme}://{host}{port}{root}", f"{host}{port}", loopback, url.scheme == "https")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class HttpClient:
    """Sends requests to one server. Used on one event loop.

    Args:
        address: The server.
        key: Sent as a bearer token with each request; empty for none.
        idle: Seconds without data after which a request fails.
    """

    def __init__(self, address: ServerAddress, key: str = "", *, idle: float = IDLE_SECONDS) -> None:
        self.address = address
        self._key, self._idle = key, idle
        headers = {"Accept-Encoding": "identity", "User-Agent": "elsewise"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS, write=idle),
            limits=httpx2.Limits(
                max_connections=_MOST_CONNECTIONS,
                max_keepalive_connections=_MOST_CONNECTIONS,
                keepalive_expiry=_KEEPALIVE_SECONDS,
            ),
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # stores none
            trust_env=address.secure,  # no proxy of the environment for unencrypted requests, which it could read
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str, *, within: float) -> bytes:
        """The body of a GET answer, at most `MOST_SMALL_BYTES`; `within`: seconds until the answer begins."""
        async with self._response("GET", path, None, within) as response:
            return await self._body(response, MOST_SMALL_BYTES)

    async def post(
        self, path: str, body: dict[str, Any], *, within: float = FIRST_SECONDS, most: int = MOST_SMALL_BYTES
    ) -> bytes:
        """The body of the answer to a POST of a JSON body.

        Args:
            path: The path below the server's root.
            body: JSON values.
            within: Seconds until the answer begins.
            most: The largest accepted answer, in bytes.

        Raises:
            RemoteError: For any of its reasons.
            InvalidRequestError, ContextOverflowError, ModelMissingError: The server refuses the request.
        """
        async with self._response("POST", path, body, within) as response:
            return await self._body(response, most)

    async def events(self, path: str, body: dict[str, Any], *, within: float) -> AsyncGenerator[bytes, None]:
        """The data of server-sent events up to ``[DONE]``, each at most `MOST_EVENT_BYTES`. Closing it closes the socket.

        Raises:
            RemoteError: As for `post`; also if the stream ends without ``[DONE]``.
        """
        async with self._response("POST", path, body, within) as response:
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise self.wrong(f"answers a stream with {kind[:60] or 'no type'}, not with text/event-stream")
            lines = _Lines(self._chunks(response), self)
            patience = max(self._idle, within)  # vLLM and mlx_lm send the head before they read the prompt
            while (data := await lines.event(patience)) != b"[DONE]":
                yield data
                patience = self._idle

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, body: dict[str, Any] | None, within: float
    ) -> AsyncIterator[httpx2.Response]:
        """A successful response whose body has not been read."""
        try:
            content = None if body is None else msgspec.json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as fault:
            raise InvalidRequestError(f"this cannot be sent to a server: {fault}") from fault
        request = self._client.build_request(
            method, self.address.url + path, content=content, headers={"Content-Type": "application/json"} if content else {}
        )
        try:
            response = await self._sent(request, within)
        except httpx2.HTTPError as fault:
            raise self._network_fault(fault) from None
        try:
            if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
                raise self.wrong("answers compressed, which was not asked for")
            if response.is_redirect:
                target = self.without_key(response.headers.get("location", ""))[:200]
                raise RemoteError(
                    f"{self.address.host} redirects to {target!r}; the key and the prompt are not sent there: connect to that "
                    "address itself if it is the right one",
                    "redirect",
                )
            if not response.is_success:
                raise self.refusal(response.status_code, await self._start_of(response), response.headers.get("retry-after"))
            yield response
        except httpx2.HTTPError as fault:
            raise self._network_fault(fault) from None
        finally:
            await response.aclose()

    async def _sent(self, request: httpx2.Request, within: float) -> httpx2.Response:
        """Sends the request, and repeats it if the server cannot have begun to process it.

        It is repeated once if no connection could be made, and every time a pooled connection was closed before the whole
        request was written; a GET is also repeated if that happens after it was written.
        """
        fresh = sent = False  # a new connection was made; the whole request was written

        async def trace(event: str, _: dict[str, Any]) -> None:
            nonlocal fresh, sent
            fresh = fresh or event == "connection.connect_tcp.complete"
            sent = sent or event == "http11.send_request_body.complete"

        request.extensions["trace"] = trace
        again = True
        while True:
            sent = False
            try:
                async with asyncio.timeout(within + CONNECT_SECONDS):
                    return await self._client.send(request, stream=True)
            except TimeoutError:
                raise RemoteError(
                    f"{self.address.host} has not begun to answer within {within:.0f} s; it may be loading, or busy: try later",
                    "timeout",
                ) from None
            except httpx2.ConnectError:
                if not again:
                    raise
                again = False
            except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
                if fresh or (sent and request.method != "GET"):  # otherwise a pooled connection failed, and has left the pool
                    raise

    async def _body(self, response: httpx2.Response, most: int) -> bytes:
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise self.wrong(f"announces {int(length):,} bytes where at most {most:,} were expected")
        body = bytearray()
        try:
            async with asyncio.timeout(self._idle + most / (1 << 20)):  # allows slow servers a second per megabyte
                async for chunk in self._chunks(response):
                    body += chunk
                    if len(body) > most:
                        raise self.wrong(f"answers with more than {most:,} bytes")
        except TimeoutError:
            raise self.late("the rest of its answer", self._idle) from None
        return bytes(body)

    async def _start_of(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._idle):
                async for chunk in self._chunks(response):
                    body += chunk
                    if len(body) > _MOST_ERROR_BYTES:
                        break
        return bytes(body[:_MOST_ERROR_BYTES])

    async def _chunks(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        async for chunk in response.aiter_raw(1 << 16 if response.headers.get("content-length") else None):
            yield chunk

    # ---- errors ----------------------------------------------------------------------------------------------

    def refusal(self, status: int, body: bytes, retry_after: str | None = None) -> RuntimeFault:
        """The error for an answer whose status is not success."""
        host, said = self.address.host, self.without_key(_message(body)) or f"HTTP {status}"
        if status in (401, 403):
            return RemoteError(
                f"{host} refuses the key ({said}); give the right one (`api_key`, the "
                "keychain's, or `ELSEWISE_API_KEY` with `ELSEWISE_API_HOST`)",
                "denied",
            )
        if status in (400, 404, 413, 422) and (overflow := _overflow(said)) is not None:
            return overflow
        if status == 404:
            if re.search(r"model", said, re.I) and not re.search(r"not found$", said.strip(), re.I):
                return ModelMissingError(f"{host} has no such model: {said}")
            return RemoteError(f"{host} does not have what was asked for: {said}", "missing")
        if status in (400, 413, 422):
            return InvalidRequestError(f"{host} refuses the request: {said}")
        if status in (429, 503):
            wait = float(retry_after) if retry_after is not None and re.fullmatch(r"\d{1,6}", retry_after) else None
            later = "" if wait is None else f"; it asks to wait {wait:.0f} s"
            return RemoteError(f"{host} is busy ({said}){later}", "busy", wait)
        if status in (405, 501):
            return RemoteError(f"{host} does not have what was asked for: {said}", "missing")
        return RemoteError(f"{host} failed with HTTP {status}: {said}", "server")

    def without_key(self, text: str) -> str:
        """At most 500 characters of a server's text, without the key and control characters."""
        text = text.replace(self._key, "(key)") if self._key else text
        return "".join(char if char.isprintable() else " " for char in text)[:500]

    def cleanly(self, read: Callable[[bytes, A], T], body: bytes, asked: A) -> T:
        """Reads an answer by `read`. The key, which a server may repeat, is removed from an error's message."""
        try:
            return read(body, asked)
        except RemoteError as fault:
            raise RemoteError(self.without_key(str(fault)), fault.reason, fault.retry_after) from None

    def wrong(self, what: str) -> RemoteError:
        """The error for an answer that cannot be used."""
        return RemoteError(
            f"{self.address.host} {what}; it is no server that is known here, or something lies in between", "protocol"
        )

    def late(self, what: str, seconds: float) -> RemoteError:
        """The error for a part of an answer that did not arrive in time."""
        return RemoteError(
            f"{self.address.host} sent nothing of {what} for {seconds:.0f} s; the connection was closed", "timeout"
        )

    def _network_fault(self, fault: httpx2.HTTPError) -> RemoteError:
        said = self.without_key(str(fault)) or type(fault).__name__
        host = self.address.host
        if isinstance(fault, httpx2.ConnectTimeout):
            return RemoteError(f"{host} does not answer within {CONNECT_SECONDS:.0f} s; is the server running?", "network")
        if "CERTIFICATE_VERIFY_FAILED" in said:
            why = said.partition("verify failed: ")[2].partition(" (")[0] or said
            return RemoteError(
                f"the certificate of {host} is not trusted here ({why}), so nothing was sent; add its authority to those of "
                "this system, or name a file with it in SSL_CERT_FILE",
                "network",
            )
        if isinstance(fault, httpx2.ConnectError):
            return RemoteError(f"no connection to {host}: {said}", "network")
        if isinstance(fault, httpx2.RemoteProtocolError) and "llegal" in said:
            return self.wrong(f"does not speak HTTP ({said})")
        return RemoteError(f"the connection to {host} was lost: {said}", "lost")


class _Lines:
    """Parses server-sent events from chunks of bytes (WHATWG HTML, section 9.2), each within a time limit."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], client: HttpClient) -> None:
        self._chunks, self._client = chunks, client
        self._buffer = bytearray()
        self._searched = 0  # leading bytes of the buffer without a line break

    async def event(self, patience: float) -> bytes:
        """The data of the next event that has any. Names and ids of events are skipped.

        Args:
            patience: Seconds without an event or a comment after which the request fails.
        """
        parts: list[bytes] = []
        size = empty = 0
        try:
            async with asyncio.timeout(patience) as limit:
                while True:
                    line = await self._line()
                    if line.startswith(b"data:"):
                        parts.append(line[5:].removeprefix(b" "))
                        size += len(line)
                        if size > MOST_EVENT_BYTES:
                            raise self._client.wrong(f"sends an event of over {MOST_EVENT_BYTES:,} bytes")
                    elif not line and parts:
                        return b"\n".join(parts)
                    else:
                        if line.startswith(b":"):  # a keep-alive, as mlx_lm sends during the prefill
                            limit.reschedule(asyncio.get_running_loop().time() + patience)
                        empty += 1
                        if empty > _MOST_EMPTY_LINES:
                            raise self._client.wrong(f"sends {empty:,} lines without an event")
        except TimeoutError:
            raise self._client.late("the answer", patience) from None

    async def _line(self) -> bytes:
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end]).removesuffix(b"\r")
                del self._buffer[: end + 1]
                self._searched = 0
                return line
            self._searched = len(self._buffer)
            if self._searched > MOST_EVENT_BYTES:
                raise self._client.wrong(f"sends a line of over {MOST_EVENT_BYTES:,} bytes")
            try:
                self._buffer += await anext(self._chunks)
            except StopAsyncIteration:
                raise RemoteError(
                    f"the connection to {self._client.address.host} ended in the middle of the answer", "lost"
                ) from None


def _message(body: bytes) -> str:
    """The server's message in a refusal: OpenAI's ``error.message``, FastAPI's ``detail``, or the whole text."""
    try:
        return _QUOTED.split(_message_of(msgspec.json.decode(body)), maxsplit=1)[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "" if body.lstrip().startswith(b"<") else body.decode("utf-8", "replace").strip()


def _message_of(page: Any) -> str:
    error = page.get("error", page) if isinstance(page, dict) else page
    for name in ("message", "detail", "msg"):
        if isinstance(error, dict) and error.get(name):
            error = error[name]
            break
    if isinstance(error, list) and error and all(isinstance(each, dict) for each in error):  # FastAPI: only place and reason
        return "; ".join(f"{each.get('loc', '')} {each.get('msg', '')}".strip() for each in error)
    return str(error)


def _overflow(said: str) -> ContextOverflowError | None:
    """The error for a message about the context length; None for another one.

    In the messages of vLLM, Elsewise, SGLang and llama.cpp either the limit or the number of tokens comes first.
    """
    if not re.search(r"context", said, re.I):
        return None
    limit = re.search(r"(?:context (?:length|size|of)[^0-9]{0,40}|n_ctx[^0-9]{0,5})(\d[\d,]*)", said, re.I)
    asked = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d", said)]
    if limit is None:
        return None
    most = int(limit[1].replace(",", ""))
    more = [number for number in asked if number > most]
    return (
        ContextOverflowError("prompt", 0, max(more), most) if more else ContextOverflowError("prompt", 0, most + 1, most, False)
    )
