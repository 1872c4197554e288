"""The HTTP server: routes, the handling of a request, and the run until a signal."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.serve.chat import chat
from app.serve.completions import complete
from app.serve.errors import ApiError, api_error
from app.serve.metrics import metrics
from app.serve.schemas import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    Detokenized,
    DetokenizeRequest,
    EmbeddingRequest,
    Embeddings,
    ModelCard,
    ModelList,
    Operation,
    SamplingRequest,
    Tokenized,
    TokenizeRequest,
    TokenizerInfo,
    document,
)
from app.serve.security import Access, cors_headers, read_body
from app.serve.served_model import ServedModel
from app.serve.sse import Answer, encoder
from app.serve.texts import detokenize, embed, tokenize, tokenizer_info
from runtime import RuntimeFault, __version__

log = logging.getLogger(__name__)
GRACE_SECONDS: Final = 3  # for requests in flight when the server ends
MOST_CONNECTIONS: Final = 1024
SEND_SECONDS: Final = 60.0  # for a client to read enough for the next piece
HEAD_SECONDS: Final = 20.0  # for the head of a connection's first or next request


async def _models(served: ServedModel) -> ModelList:
    """The model that is served."""
    model = await served.model()
    info = model.info
    card = ModelCard(served.name, served.created, info.context_length, info.name)
    card.vocab_size, card.tokenizer_digest, card.eos_token_ids = info.vocab_size, model.tokenizer_digest, model.eos_token_ids
    return ModelList([card])


async def _health(served: ServedModel) -> bytes:
    """Whether the engine runs; answered without a key."""
    model = served.loaded
    if model is None or model.ended is not None:
        raise ApiError("the engine has stopped and is started again by the next request", 503, code="engine_stopped")
    return b"{}"


async def _version(served: ServedModel) -> bytes:  # noqa: ARG001  # the shape of all handlers
    """The version of Elsewise."""
    return msgspec.json.encode({"version": __version__})


async def _openapi(served: ServedModel) -> bytes:  # noqa: ARG001  # the shape of all handlers
    """This document."""
    return document(OPERATIONS)


OPERATIONS: Final = (
    Operation("/v1/completions", complete, CompletionRequest, Completion, streams=True),
    Operation("/v1/chat/completions", chat, ChatRequest, ChatCompletion, streams=True),
    Operation("/v1/embeddings", embed, EmbeddingRequest, Embeddings),
    Operation("/tokenize", tokenize, TokenizeRequest, Tokenized),
    Operation("/detokenize", detokenize, DetokenizeRequest, Detokenized),
    Operation("/v1/models", _models, answer=ModelList),
    Operation("/health", _health),
    Operation("/version", _version),
    Operation("/tokenizer_info", tokenizer_info, answer=TokenizerInfo),
    Operation("/metrics", metrics, media_type="text/plain; version=0.0.4; charset=utf-8"),
    Operation("/openapi.json", _openapi),
)


def build_app(served: ServedModel, access: Access) -> ASGIApp:
    """The ASGI application."""
    routes = [
        Route(each.path, _Endpoint(served, access, each), methods=["POST" if each.body else "GET"]) for each in OPERATIONS
    ]
    return _Guard(Starlette(routes=routes, exception_handlers={HTTPException: _refused}), served, access)


async def _refused(request: Request, fault: Exception) -> Response:  # noqa: ARG001  # Starlette's signature
    """Unknown paths and methods, in OpenAI's shape."""
    assert isinstance(fault, HTTPException)
    words = {404: "there is no such path; /openapi.json lists them", 405: "this path does not take this method"}
    error = ApiError(words.get(fault.status_code, fault.detail), fault.status_code)
    return Response(error.body(), fault.status_code, fault.headers, "application/json")


class _Guard:
    """Checks every request before routing, answers CORS preflights, and counts and logs the outcome."""

    def __init__(self, app: ASGIApp, served: ServedModel, access: Access) -> None:
        self._app, self._served, self._access = app, served, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = Request(scope)
        begun = time.monotonic()
        status = 0
        headers = cors_headers(request.headers.get("origin"), self._access)

        async def send_within(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await send(message)
            except TimeoutError:
                raise ConnectionResetError from None

        try:
            if request.method == "OPTIONS" and headers:
                asked = request.headers.get("access-control-request-headers", "authorization, content-type")
                allowed = {"access-control-allow-methods": "GET, POST", "access-control-allow-headers": asked}
                await Response(status_code=204, headers=allowed)(scope, receive, send_within)
                return
            self._access.check(request)
            await self._app(scope, receive, send_within)
        except ApiError as error:
            await _respond(error, scope, receive, send_within)
        finally:
            known = scope.get("route")
            path = known.path if isinstance(known, Route) else "other"
            self._served.responses[path, status] += 1
            # the route's path, not the request's, which may be private
            log.info("%s %s %d %.0f ms", request.method, path, status, (time.monotonic() - begun) * 1000)


class _Endpoint:
    """One path: reads the body, runs the handler, and stops it when the client disconnects."""

    def __init__(self, served: ServedModel, access: Access, operation: Operation) -> None:
        self._served, self._access, self._operation = served, access, operation
        self._decoder = msgspec.json.Decoder(operation.body) if operation.body else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = None if self._decoder is None else _decoded(self._decoder, await read_body(Request(scope), receive))
            if isinstance(request, SamplingRequest):
                request.cache_salt = self._access.salt(Request(scope), request.cache_salt)
        except ApiError as error:
            await _respond(error, scope, receive, send)
            return
        except ConnectionResetError:
            return
        work = asyncio.create_task(self._answer(request, scope, receive, send))
        disconnected = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._served.counts["disconnects"] += 1
        finally:
            for task in (work, disconnected):
                task.cancel()
            await asyncio.gather(work, disconnected, return_exceptions=True)

    async def _answer(self, request: Any, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            handler = self._operation.handler
            answer: Answer = await (handler(self._served, request) if self._decoder else handler(self._served))
            if not isinstance(answer, AsyncGenerator):
                body = answer if isinstance(answer, bytes) else encoder.encode(answer)
                await Response(body, media_type=self._operation.media_type)(scope, receive, send)
                return
            async with aclosing(answer) as pieces:
                first = await anext(pieces)
                started = True
                sse = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                await send({"type": "http.response.start", "status": 200, "headers": sse})
                await send({"type": "http.response.body", "body": first, "more_body": True})
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except (ApiError, RuntimeFault) as fault:
            await _respond(api_error(fault), scope, receive, send)
        except ConnectionResetError:  # the client has stopped reading
            self._served.counts["disconnects"] += 1
        except Exception as fault:  # noqa: BLE001  # the border: the client gets a status, the log the place
            # without the message, which may quote the request
            log.error("%s\n%s", type(fault).__name__, "".join(traceback.format_tb(fault.__traceback__)))
            if not started:
                await _respond(api_error(fault), scope, receive, send)


async def _respond(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    await Response(error.body(), error.status, error.headers, "application/json")(scope, receive, send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as fault:
        words, _, place = str(fault).partition(" - at `$")
        name = place.strip("`.").partition(".")[0].partition("[")[0]
        if not name and " field `" in words:  # an unknown or a missing field
            name = words.rpartition(" field `")[2].rstrip("`")
        where = place.strip("`.")
        raise ApiError(f"{words} (at {where})" if where else words, param=name or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise ApiError(f"the body is not JSON: {str(fault)[:200]}") from None


# ---- running -----------------------------------------------------------------------------------------------------


class _Connection(H11Protocol):
    """Closes a connection that sends no request or reads no answer, which uvicorn would keep in `MOST_CONNECTIONS`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._late = self._await_head()

    def on_response_complete(self) -> None:
        self._late.cancel()
        self._late = self._await_head()  # first: `super` may begin a request that has arrived already
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> asyncio.TimerHandle:
        answered = self.cycle

        def late() -> None:
            if self.cycle is answered:
                self.timeout_keep_alive_handler()
            if self.transport.is_closing():  # uvicorn may have closed it after an answer that ended early
                self._drop_unread()
            else:
                self._late = self.loop.call_later(SEND_SECONDS, late)

        return self.loop.call_later(HEAD_SECONDS, late)

    def _drop_unread(self, left: float = math.inf) -> None:
        """Aborts a closing connection if its client reads nothing of the rest of its answer."""
        size = self.transport.get_write_buffer_size()
        if size < left:
            self._late = self.loop.call_later(SEND_SECONDS, self._drop_unread, size)
        else:
            self.transport.abort()


class _Uvicorn(uvicorn.Server):
    """Sets `answers` when the port is open, and leaves signals to `serve`, which closes the engine after the port."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answers = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answers.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    served: ServedModel,
    access: Access,
    bound: socket.socket,
    *,
    on_ready: Callable[[], None] = lambda: None,
    stop: asyncio.Event | None = None,
    ssl: tuple[str, str] | None = None,
) -> None:
    """Loads the model, serves until `stop`, SIGINT or SIGTERM, and ends the engine.

    Args:
        served: The model.
        access: The callers that are answered.
        bound: A bound socket; closed at the end.
        on_ready: Called when the port answers.
        stop: Ends the server when it is set.
        ssl: Paths of a certificate chain and its key.
    """
    stop = stop or asyncio.Event()
    try:
        await served.model()
    except BaseException:  # frees the port
        bound.close()
        raise
    config = uvicorn.Config(
        build_app(served, access),
        log_config=None,
        log_level=logging.CRITICAL,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=False,
        http=_Connection,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_certfile=ssl[0] if ssl else None,
        ssl_keyfile=ssl[1] if ssl else None,
        ws="none",
    )
    server = _Uvicorn(config)
    loop = asyncio.get_running_loop()
    handled: list[signal.Signals] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not on the main thread: `stop` ends it
            loop.add_signal_handler(number, stop.set)
            handled.append(number)
    running = asyncio.create_task(server.serve(sockets=[bound]))
    stopping = asyncio.create_task(_until(server, stop, on_ready))
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await running
    finally:
        stopping.cancel()
        for number in handled:
            loop.remove_signal_handler(number)
        await served.close()
        bound.close()


async def _until(server: _Uvicorn, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
    await server.answers.wait()
    on_ready()
    await stop.wait()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free one.

    Raises:
        OSError: The port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only if the protocol is given; with it, a kept connection answers 40 ms late
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
    except OSError:
        bound.close()
        raise
    return bound
