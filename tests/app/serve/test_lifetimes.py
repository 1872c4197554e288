"""Clients that disconnect, many at once, an engine that ends, and the command itself."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from app.cli.options import load_options
from app.cli.serve import serve as serve_command
from app.serve import ServedModel
from app.serve import app as app_of
from runtime import RemoteError, connect
from tests.app.cli.conftest import Elsewise
from tests.app.serve.conftest import PATIENCE_SECONDS, Served, serving, tiny
from tests.pages import PAGES, blocks
from tests.tiny_models import tiny_path

PATH = "/v1/completions"
LONG = {"prompt": [5, 6, 7], "max_tokens": 3000, "ignore_eos": True}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def idle(served: Served) -> bool:
    served.post(PATH, prompt=[5], max_tokens=1)  # a step, after which the report is new
    return served.model.metrics().requests_active == 0 and served.model.cache_report().leases == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnected_client_ends_its_request(served: Served, stream: bool) -> None:
    before = served.model.metrics().requests_cancelled
    body = json.dumps({**LONG, "stream": stream}).encode()
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        until(lambda: served.model.metrics().requests_active == 1)
    left = time.monotonic()
    until(lambda: served.model.metrics().requests_active == 0)
    assert time.monotonic() - left < 10  # seconds, on a machine under load; without load a step
    assert served.model.metrics().requests_cancelled == before + 1
    until(lambda: idle(served))


@pytest.mark.slow
def test_a_client_that_stops_reading_is_disconnected(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_of, "SEND_SECONDS", 0.2)
    monkeypatch.setattr(app_of, "HEAD_SECONDS", 0.5)
    before = served.engine.counts["disconnects"]
    body = json.dumps({**LONG, "stream": True, "logprobs": -1}).encode()
    host, port = served.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        until(lambda: served.engine.counts["disconnects"] == before + 1)
        until(lambda: served.engine.needed == 0)
        until(lambda: client.getsockname() not in {each.raddr for each in psutil.Process().net_connections("tcp")})
    until(lambda: idle(served))


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_client_without_a_whole_request_is_disconnected_unlike_one_that_waits_for_its_answer(
    served: Served, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(app_of, "HEAD_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as client:
        client.settimeout(PATIENCE_SECONDS)
        begun = time.monotonic()
        client.sendall(first + b"GET /health HTTP/1.1\r\nHost: ")  # the rest is never sent
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert answer.count(b" 200 OK") == bool(first)
        assert time.monotonic() - begun >= 0.5
    long = {"prompt": [5, 6, 7], "max_tokens": 300, "ignore_eos": True, "logprobs": -1}
    monkeypatch.setattr(app_of, "HEAD_SECONDS", 0.01)
    assert served.post(PATH, **long)["usage"]["completion_tokens"] == 300


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_does_not_read_its_answer_is_disconnected_unlike_a_slow_one(
    served: Served, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    monkeypatch.setattr(app_of, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(app_of, "SEND_SECONDS", 1.0)
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 300, "ignore_eos": True, "logprobs": -1}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE_SECONDS)
        client.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        client.sendall(head.encode() + body)
        until(lambda: served.model.metrics().requests_active == 1)
        until(lambda: served.engine.needed == 0)
        answer = b""
        time.sleep(0 if reads else 3)
        try:
            while piece := client.recv(1 << 16):
                answer += piece
                time.sleep(0.001)
        except ConnectionResetError:
            pass
        fields, _, text = answer.partition(b"\r\n\r\n")
        length = int(fields.lower().partition(b"content-length: ")[2].split()[0])
        assert (len(text) == length) is reads


@pytest.mark.slow
def test_many_clients_of_which_half_disconnect_leave_no_requests(served: Served) -> None:
    clients = 64

    async def ask(client: httpx2.AsyncClient, number: int) -> int:
        body = {"prompt": [5, 6, 7 + number % 7], "max_tokens": 12, "stream": True, "ignore_eos": True}
        async with client.stream("POST", PATH, json=body) as response:
            pieces = 0
            async for line in response.aiter_lines():
                pieces += line.startswith("data: {")
                if number % 2 and pieces:
                    return 0
            assert line == "" or line == "data: [DONE]"
            return pieces

    async def run() -> list[int]:
        limits = httpx2.Limits(max_connections=clients)
        timeout = PATIENCE_SECONDS
        async with httpx2.AsyncClient(base_url=served.url, timeout=timeout, limits=limits, trust_env=False) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(clients)))

    assert all(pieces > 0 for pieces in asyncio.run(run())[::2])
    until(lambda: idle(served))
    assert served.engine.needed == 0


def test_a_request_that_does_not_fit_beside_running_ones_gets_status_429() -> None:
    with serving(tiny(kv_cache_bytes=1 << 20)) as served:
        info = served.model.info
        half = (1 << 20) // info.kv_bytes_per_token  # tokens of one budget
        long = "word " * 200
        running = {"prompt": [5, 6, 7], "max_tokens": 200, "ignore_eos": True, "seed": 1, "stream": True}
        with (
            served.client.stream("POST", PATH, json=running) as response,
            served.engine.admitted(served.model, 2 * half - 403),
        ):
            pieces = response.iter_lines()
            first = next(pieces)
            for path, body in (
                (PATH, {"prompt": [5] * 200, "max_tokens": 1}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}], "max_tokens": 1}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}], "max_tokens": 1, "stream": True}),
                ("/v1/embeddings", {"input": long}),
            ):
                response = served.client.post(path, json=body)
                assert response.status_code == 429, response.text
                assert int(response.headers["retry-after"]) >= 1
                assert response.json()["error"]["code"] == "kv_budget_busy"
            served.post(PATH, prompt=[5] * 20, max_tokens=1)  # a request that fits is admitted
            assert served.model.metrics().requests_active == 1
            streamed = [first, *pieces]  # and the running request has ended as it ends alone
        assert streamed[-2:] == ["data: [DONE]", ""]
        assert said(streamed) == said(served.client.post(PATH, json=running).text.split("\n"))
        served.post(PATH, prompt=[5] * 200, max_tokens=1)
        too_large = served.client.post(PATH, json={"prompt": [5] * (half + 10), "max_tokens": 1})
        assert (too_large.status_code, too_large.json()["error"]["code"]) == (400, "kv_budget_exceeded")


def said(lines: list[str]) -> str:
    """The text of a stream."""
    chunks = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {"))
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def test_a_stream_whose_engine_ends_is_closed_with_an_error_chunk() -> None:
    with serving(tiny()) as served:
        with served.client.stream("POST", PATH, json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            served.model.close()
            *_, last, _, done, _ = lines
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_stopped"
        assert done == "data: [DONE]"
        with connect(served.url, tokenizer="server") as remote:
            records = remote.generate_sync([5, 6, 7], max_tokens=3000, ignore_eos=True)
            next(records)
            served.model.close()
            with pytest.raises(RemoteError, match="the engine has stopped") as fault:
                list(records)
        assert fault.value.reason == "server"


def test_an_engine_that_ended_is_restarted() -> None:
    async def run() -> None:
        engine = ServedModel(tiny())
        first = await engine.model()
        await first.close_async()
        again = await asyncio.gather(engine.model(), engine.model())
        assert again[0] is again[1] is not first
        await engine.close()

    asyncio.run(run())


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str, list[str]]]]:
    """Starts `elsewise serve`; its process, its address, and its output so far."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> tuple[subprocess.Popen[str], str, list[str]]:
        line = [
            sys.executable,
            "-m",
            "app",
            "--data-dir",
            str(tmp_path / "data"),
            "--verbose",
            "serve",
            str(tiny_path("llama")),
        ]
        environ = {**os.environ, **environment}
        process = subprocess.Popen(
            [*line, "--backend", "mock", "--port", "0", *arguments], stderr=subprocess.PIPE, text=True, env=environ
        )
        started.append(process)
        said: list[str] = []
        assert process.stderr is not None
        for heard in process.stderr:
            said.append(heard)
            if heard.startswith("serving "):
                return process, heard.split(" at ")[1].strip().removesuffix("/v1"), said
        raise AssertionError(said)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_documentations_command_lines_are_accepted() -> None:
    lines = blocks(PAGES["docs/server.md"], "text")[0].splitlines()
    assert len(lines) >= 5
    for line in lines:
        program, name, *arguments = shlex.split(line, comments=True)
        assert (program, name) == ("elsewise", "serve")
        load_options("--load", serve_command.make_context(name, arguments).params["loads"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal(command: Any, number: signal.Signals) -> None:
    process, url, _ = command(
        "--name", "small", ELSEWISE_SERVE_KEY="a-key-of-enough-characters", ELSEWISE_API_KEY="another-key-for-a-server"
    )
    headers = {"authorization": "Bearer a-key-of-enough-characters"}
    with httpx2.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False, headers=headers) as client:
        asked = {"model": "small", "prompt": "a secret prompt", "max_tokens": 3, "ignore_eos": True}
        answer = client.post(PATH, json=asked).json()
        assert answer["usage"]["completion_tokens"] == 3
        assert client.get("/v1/models", headers={"authorization": "Bearer no"}).status_code == 401
        assert client.get("/v1/models", headers={"authorization": "Bearer another-key-for-a-server"}).status_code == 401
    process.send_signal(number)
    _, rest = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "POST /v1/completions 200" in rest
    assert "secret" not in rest
    assert "a-key-of" not in rest


@pytest.mark.slow
def test_a_killed_engine_is_restarted_by_the_next_request(command: Any) -> None:
    process, url, _ = command()
    with httpx2.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
        (engine,) = psutil.Process(process.pid).children()
        engine.kill()
        until(lambda: client.get("/health").status_code == 503)
        assert client.post(PATH, json={"prompt": [5], "max_tokens": 1}).status_code == 200
        assert client.get("/health").status_code == 200


def test_the_old_name_of_the_key_is_accepted_with_a_note(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWISE_API_KEY", "a-key-of-enough-characters")
    done = elsewise("serve", str(tiny_path("llama")), "--host", "203.0.113.7")
    assert done.code == 1
    assert "name it ELSEWISE_SERVE_KEY" in done.err
    assert "--host 203.0.113.7" in done.err
    assert "give them a key" not in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "lets other machines ask: give them a key"),
        (("--key-file", "short.txt"), "key 1 is not usable"),
        (("--key-file", "empty.txt"), "there is no key in it"),
        (("--salt-per-key",), "--salt-per-key needs keys"),
        (("--tls", "no.pem", "no.key"), "there is no such file"),
        (("--tls", "good.txt", "good.txt"), "they are no certificate and its key"),
        (("--name", " "), "give a name of printable characters"),
        (("--name", "caf\udce9"), "give a name of printable characters"),  # as Python reads bytes that are not UTF-8
        (("--load", "nothing=1"), "unknown load option"),
        (("--host", "203.0.113.7", "--key-file", "good.txt"), "--host 203.0.113.7"),
    ],
)
def test_unsafe_arguments_are_refused_before_a_model_is_loaded(
    elsewise: Elsewise, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    for name, text in (("short.txt", "abc"), ("empty.txt", "\n"), ("good.txt", "a-key-of-enough-characters")):
        (tmp_path / name).write_text(text)
    given = [str(tmp_path / each) if each.endswith(".txt") else each for each in arguments]
    done = elsewise("serve", str(tiny_path("llama")), *given)
    assert done.code in (1, 2)
    assert words in done.err


def test_answers_are_sent_without_delay_by_tcp() -> None:
    async def accepted() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        bound = app_of.bind("127.0.0.1", 0)
        async with await asyncio.start_server(look, sock=bound):
            _, writer = await asyncio.open_connection(*bound.getsockname())
            found = await seen
            writer.close()
            await writer.wait_closed()
            return found

    assert asyncio.run(accepted())
