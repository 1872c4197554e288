"""A server with vLLM's message shapes (0.32, as recorded from a real one) for a model in this process; faults on demand."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.aio import LoopThread
from runtime.api.language_model import LanguageModel
from runtime.backends.byte_text import CHATML, byte_tokenizer
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import TokenRecord

Raw = Callable[[asyncio.StreamWriter], Awaitable[None]]
EOS = (257, 258)
SAMPLER = ("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class Refused(Exception):
    """An answer with a status other than 200."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        self.status, self.message, self.headers = status, message, headers
        super().__init__(message)


@dataclass
class Server:
    """The settings and the counters of a test server.

    Attributes:
        model: The model that computes the answers.
        cap: The limit of alternatives, as of --max-logprobs; -1 for all.
        key: The key that requests must carry; empty for none.
        raw: By path, a function that writes in place of an answer.
        keeps: Whether a connection stays open after an answer; otherwise it is closed without notice.
        pace: Seconds between two tokens.
        embeddings: Whether the server has embeddings.
        cached: The number of cached tokens reported for each prompt; None reports nothing.
        owner: `owned_by` of its models.
        orders: Whether the server accepts a priority.
    """

    model: LanguageModel
    cap: int = -1
    key: str = ""
    raw: dict[str, Raw] = field(default_factory=dict)
    keeps: bool = True
    pace: float = 0.0
    embeddings: bool = False
    cached: int | None = 3
    owner: str = "vllm"
    orders: bool = False
    models: list[dict[str, Any]] = field(default_factory=list)
    base_url: str = ""
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)  # path, headers, body
    running: int = 0
    most_running: int = 0

    def bodies(self, path: str) -> list[Any]:
        """The bodies of the requests to a path."""
        return [body for where, _, body in self.seen if where == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                method, path, headers, body = await _request(reader)
                self.seen.append((path, headers, body))
                if path in self.raw:
                    await self.raw[path](writer)
                    break
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                handler = asyncio.ensure_future(self._handle(method, path, headers, body, writer))
                gone = asyncio.ensure_future(_closed(reader))
                try:
                    await asyncio.wait([handler, gone], return_when=asyncio.FIRST_COMPLETED)
                    if not handler.done():
                        break
                    await handler
                finally:
                    for task in (handler, gone):
                        task.cancel()
                    await asyncio.gather(handler, gone, return_exceptions=True)
                    self.running -= 1
                if not self.keeps:
                    break
        writer.close()

    async def _handle(self, method: str, path: str, headers: dict[str, str], body: Any, writer: asyncio.StreamWriter) -> None:
        try:
            if self.key and headers.get("authorization") != f"Bearer {self.key}":
                raise Refused(401, f"Unauthorized {headers.get('authorization')}")
            if body is not None and body.get("stream"):
                await self.stream(path, body, writer)
            else:
                send(writer, 200, await self.answer(method, path, body))
        except Refused as fault:
            error = {"error": {"message": fault.message, "type": "BadRequestError", "param": None, "code": fault.status}}
            send(writer, fault.status, error, **fault.headers)
        await writer.drain()

    async def answer(self, method: str, path: str, body: Any) -> Any:
        """An answer that is not streamed, as JSON."""
        match method, path:
            case "GET", "/v1/models":
                return {"object": "list", "data": self.models}
            case "GET", "/version":
                return {"version": "0.32.0"}
            case "POST", "/tokenize":
                if "messages" in body:
                    ids = await self.model.render_chat_async(
                        body["messages"], tools=body.get("tools"), add_generation_prompt=body["add_generation_prompt"]
                    )
                else:
                    ids = await self.model.tokenize_async(body["prompt"])
                return {"count": len(ids), "max_model_len": 2048, "tokens": ids, "token_strs": None}
            case "POST", "/detokenize":
                return {"prompt": self.model.detokenize(body["tokens"])}
            case "POST", "/v1/completions":
                return await self._whole(body)
            case "POST", "/v1/embeddings":
                if not self.embeddings:
                    raise Refused(404, "Not Found")
                texts = [text if isinstance(text, str) else self.model.detokenize(text) for text in body["input"]]
                vectors = await self.model.embed(texts)
                return {"data": [{"index": i, "embedding": (2 * row).tolist()} for i, row in enumerate(vectors)]}
        raise Refused(404, "Not Found")

    async def _prompt(self, body: dict[str, Any]) -> list[int]:
        if not any(body["model"] == each["id"] for each in self.models):
            raise Refused(404, f"The model `{body['model']}` does not exist.")
        prompt = body["prompt"]
        ids = await self.model.tokenize_async(prompt) if isinstance(prompt, str) else list(prompt)
        vocab = self.model.info.vocab_size
        if any(not 0 <= token < vocab for token in ids):
            raise Refused(400, f"Token id {max(ids)} is out of vocabulary")
        if len(ids) + body["max_tokens"] > 2048:
            raise Refused(
                400,
                f"This model's maximum context length is 2048 tokens. However, you requested {body['max_tokens']} output "
                f"tokens and your prompt contains at least {len(ids)} input tokens, for a total of at least "
                f"{len(ids) + body['max_tokens']} tokens.",
            )
        if body.get("priority") and not self.orders:
            raise Refused(400, "no priority is taken")
        asked = body.get("logprobs") or 0
        if self.cap >= 0 and (asked > self.cap or asked < 0):
            raise Refused(400, f"Requested sample logprobs of {asked}, which is greater than max allowed: {self.cap}")
        if len(body.get("logprob_token_ids", ())) > 128:
            raise Refused(400, "logprob_token_ids must have at most 128 ids")
        return ids

    async def _records(self, ids: Sequence[int], body: dict[str, Any]) -> AsyncGenerator[TokenRecord, None]:
        settings: dict[str, Any] = {name: body[name] for name in SAMPLER if name in body}
        if settings.get("top_k") == -1:
            settings["top_k"] = 0
        if "logit_bias" in body:
            settings["logit_bias"] = {int(token): value for token, value in body["logit_bias"].items()}
        options = GenerationOptions(
            max_tokens=body["max_tokens"],
            sampling=SamplingOptions(temperature=body["temperature"], **settings),
            seed=body.get("seed"),
            eos_token_ids=tuple(body.get("stop_token_ids", ())) + (() if body.get("ignore_eos") else EOS),
            top_k=1000,
            resolve=False,
        )
        async with aclosing(self.model.generate(ids, options)) as records:
            async for record in records:
                yield record
                if self.pace:
                    await asyncio.sleep(self.pace)

    def _choice(self, records: Sequence[TokenRecord], body: dict[str, Any], rows: Sequence[Any]) -> dict[str, Any]:
        tops, asked = [], body.get("logprobs")
        for record, row in zip(records, rows, strict=True):
            count = len(row) if asked == -1 else asked or 0
            count = 0 if body.get("logprob_token_ids") else count  # chosen ids replace the likeliest tokens
            best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:count]
            wanted = [record.token_id, *best, *body.get("logprob_token_ids", ())]
            tops.append({f"token_id:{token}": float(row[token]) for token in wanted})
        last = records[-1]
        eos = last.finish_reason == "eos"
        return {
            "index": 0,
            "text": "".join(record.text for record in records if not (eos and record is last)),
            "logprobs": None
            if asked is None
            else {
                "text_offset": [0] * len(records),
                "token_logprobs": [float(row[record.token_id]) for record, row in zip(records, rows, strict=True)],
                "tokens": [f"token_id:{record.token_id}" for record in records],
                "top_logprobs": tops,
            },
            "finish_reason": {"eos": "stop", "context": "length"}.get(last.finish_reason or "", last.finish_reason),
            "stop_reason": last.token_id if eos and last.token_id in body.get("stop_token_ids", ()) else None,
            "token_ids": [record.token_id for record in records],
            "prompt_token_ids": None,
            "prompt_logprobs": None,
        }

    async def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = await self._prompt(body)
        path, records, rows = list(ids), [], []
        async with aclosing(self._records(ids, body)) as source:
            async for record in source:
                rows.append(await self.model.next_token_logprobs(path))
                path.append(record.token_id)
                records.append(record)
        choice = self._choice(records, body, rows)
        choice["prompt_token_ids"] = ids
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = await self._scores(ids, body["prompt_logprobs"])
        usage = self._usage(len(ids), len(records))
        return {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice], "usage": usage}

    def _usage(self, prompt: int, completion: int) -> dict[str, Any]:
        details = None if self.cached is None else {"cached_tokens": self.cached}
        return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}

    async def _scores(self, ids: Sequence[int], k: int) -> list[Any]:
        rows: list[Any] = [None]
        for place in range(1, len(ids)):
            row = await self.model.next_token_logprobs(ids[:place])
            best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:k]
            rows.append(
                {
                    str(token): {"logprob": float(row[token]), "rank": 1 + int((row > row[token]).sum()), "decoded_token": "?"}
                    for token in dict.fromkeys([ids[place], *best])
                }
            )
        return rows

    async def stream(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Writes a streamed answer."""
        ids = await self._prompt(body)
        start_events(writer)
        told, count = list(ids), 0
        async with aclosing(self._records(ids, body)) as source:
            async for record in source:
                row = await self.model.next_token_logprobs(told)
                told.append(record.token_id)
                count += 1
                event(writer, {"id": "cmpl-1", "model": body["model"], "choices": [self._choice([record], body, [row])]})
                await writer.drain()
        usage = self._usage(len(ids), count)
        event(writer, {"id": "cmpl-1", "choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def send(writer: asyncio.StreamWriter, status: int, body: Any, **headers: str) -> None:
    """Writes an answer that is not streamed."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"content-type": "application/json", "content-length": str(len(data))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + data)


def start_events(writer: asyncio.StreamWriter) -> None:
    """Writes the head of a stream."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")


def event(writer: asyncio.StreamWriter, body: Any) -> None:
    """Writes one event as one chunk."""
    data = body if isinstance(body, bytes) else b"data: " + json.dumps(body).encode() + b"\n\n"
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _closed(reader: asyncio.StreamReader) -> None:
    """Waits until the client has closed the connection, without reading its next request."""
    while not reader.at_eof():  # noqa: ASYNC110  # a StreamReader has no event for it
        await asyncio.sleep(0.005)


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    return method, path, headers, json.loads(data) if data else None


@contextmanager
def serving(model: LanguageModel, kind: type[Server] = Server, *, tls: Path | None = None, **settings: Any) -> Iterator[Server]:
    """A server for a model on a free port of this machine; `tls`: the file of its key and its certificate."""
    server = kind(model, **settings)
    server.models = server.models or [
        {"id": "tiny", "object": "model", "owned_by": server.owner, "root": "tiny", "parent": None, "max_model_len": 2048}
    ]
    thread = LoopThread("test-server")
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
    starting = asyncio.start_server(server.serve, "127.0.0.1", 0, limit=1 << 24, ssl=context)  # bytes of a line
    listening = thread.submit(starting).result()
    server.base_url = f"{'http' if tls is None else 'https'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:

        async def end() -> None:
            listening.close()
            own = asyncio.current_task()
            connections = [task for task in asyncio.all_tasks() if task is not own and "serve" in repr(task.get_coro())]
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

        thread.submit(end()).result()
        thread.stop()
        thread.join()


def free_port() -> int:
    """A free port of this machine, for real servers that do not accept port 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_healthy(url: str) -> bool:
    """Whether a real server answers."""
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as page:
            return bool(page.status == 200)
    except OSError:
        return False


def tokenizer_folder(path: Path) -> Path:
    """The tokenizer and chat template of the toy backends as a folder without weights."""
    path.mkdir(exist_ok=True)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(EOS)}))
    return path
