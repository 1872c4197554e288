"""Broken or malicious servers: memory stays bounded, and the error names the fault."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
from asyncio import StreamWriter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime import (
    ContextOverflowError,
    InvalidRequestError,
    LanguageModel,
    ModelMissingError,
    RemoteError,
    connect,
)
from runtime.remote.dialect import Probe, RemoteModel
from runtime.remote.dialects.vllm import VLLM
from runtime.remote.http import MOST_EVENT_BYTES, HttpClient, ServerAddress
from tests.runtime.remote.servers import Raw, Server, event, send, serving, start_events

MEBIBYTE = 1 << 20


def choice(**changes: Any) -> dict[str, Any]:
    told = {"token_logprobs": [-0.5], "tokens": ["token_id:65"], "top_logprobs": [{"token_id:65": -0.5}]}
    one = {"index": 0, "text": "A", "token_ids": [65], "finish_reason": None, "logprobs": told, **changes}
    return {"choices": [one]}


def writes(*bodies: Any, then: float = 0.0, pause: float = 0.0, times: int = 1) -> Raw:
    async def raw(writer: StreamWriter) -> None:
        start_events(writer)
        for _ in range(times):
            for body in bodies:
                event(writer, body)
                await writer.drain()
                await asyncio.sleep(pause)
        await asyncio.sleep(then)

    return raw


async def ten_gigabytes(writer: StreamWriter) -> None:
    start_events(writer)
    event(writer, b"data: ")
    for _ in range(10 * 1024):
        event(writer, b"x" * MEBIBYTE)
        await writer.drain()


BOMB = gzip.compress(b"{" + b" " * (64 * MEBIBYTE))


async def bomb(writer: StreamWriter) -> None:
    send(writer, 200, BOMB, content_encoding="gzip")


async def announced(writer: StreamWriter) -> None:
    send(writer, 200, b"{}", content_length=str(1 << 40))


async def page(writer: StreamWriter) -> None:
    send(writer, 200, b"<html>hotel wifi</html>", content_type="text/html")


async def no_http(writer: StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


def answers(body: Any, status: int = 200, **headers: str) -> Raw:
    async def raw(writer: StreamWriter) -> None:
        send(writer, status, body, **headers)

    return raw


def logprobs(*, own: Any = -0.5, top: Any) -> dict[str, Any]:
    return {"token_logprobs": [own], "tokens": ["token_id:65"], "top_logprobs": [top]}


STREAMS: dict[str, tuple[Raw, str, str]] = {
    "10 GB line": (ten_gigabytes, "protocol", "a line of over"),
    "comments for ever": (writes(b": hello\n" * 100, times=1000), "protocol", "without an event"),
    "events without tokens": (writes({"choices": []}, times=2000), "protocol", "events without a token"),
    "silence": (writes(choice(), then=30), "timeout", "sent nothing of the answer"),
    "slow drip": (writes(choice(), b"d", pause=0.02, times=500), "timeout", "sent nothing of the answer"),
    "half an event": (writes(b'data: {"choices": ['), "lost", "connection"),
    "no reason for the end": (writes(choice(), b"data: [DONE]\n\n"), "lost", "without saying why"),
    "cut in the middle": (writes(choice()), "lost", "connection"),
    "NaN": (
        writes(b'data: {"choices":[{"text":"","token_ids":[65],"logprobs":{"token_logprobs":[NaN]}}]}\n\n'),
        "protocol",
        "cannot be used",
    ),
    "huge number": (writes(choice(logprobs=logprobs(own=5.0, top={"token_id:65": 5.0}))), "protocol", "log-probability is 5"),
    "too much mass": (
        writes(choice(logprobs=logprobs(top={"token_id:65": -0.1, "token_id:66": -0.1}))),
        "protocol",
        "together",
    ),
    "wrong id": (writes(choice(token_ids=[259])), "protocol", "outside its vocabulary"),
    "negative id": (writes(choice(token_ids=[-1])), "protocol", "outside its vocabulary"),
    "wrong alternative": (writes(choice(logprobs=logprobs(top={"token_id:9999": -1.0}))), "protocol", "outside its vocabulary"),
    "id that is none": (writes(choice(logprobs=logprobs(top={"token_id:x": -1.0}))), "protocol", "no token id"),
    "id of thirty digits": (
        writes(choice(logprobs=logprobs(top={f"token_id:{10**30}": -1.0}))),
        "protocol",
        "outside its vocabulary",
    ),
    "nine choices": (writes({"choices": choice()["choices"] * 9}), "protocol", "cannot be used"),
    "other shape": (writes({"choices": "no"}), "protocol", "cannot be used"),
    "no JSON": (writes(b"data: {]\n\n"), "protocol", "cannot be used"),
    "50,000 alternatives": (
        writes(choice(logprobs=logprobs(top={f"token_id:{i}": -20.0 for i in range(50_000)}))),
        "protocol",
        "50,000 alternatives",
    ),
    "more ids than numbers": (writes(choice(token_ids=[65, 66])), "protocol", "1 tokens"),
    "its own error": (writes({"error": {"message": "out of memory"}}), "server", "out of memory"),
    "a web page": (page, "protocol", "not with text/event-stream"),
    "compressed": (bomb, "protocol", "compressed"),
    "another protocol": (no_http, "protocol", "does not speak HTTP"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", STREAMS)
def test_an_invalid_stream_is_a_remote_error_with_bounded_memory_and_time(server: Server, folder: Path, kind: str) -> None:
    raw, reason, said = STREAMS[kind]
    patience = 0.5 if reason == "timeout" else 10.0  # on a busy machine, writing 50,000 alternatives takes over 0.5 s
    with connect(server.base_url, tokenizer=folder, idle_seconds=patience) as remote:
        server.raw["/v1/completions"] = raw
        tracemalloc.start()
        began = time.monotonic()
        with pytest.raises(RemoteError, match=said) as fault:
            list(remote.generate_sync([1, 2], max_tokens=50))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert fault.value.reason == reason
        assert time.monotonic() - began < 30
        assert peak < 6 * MOST_EVENT_BYTES  # includes the buffers of the server, which runs in this process


def test_an_endless_stream_ends_after_max_tokens(server: Server, folder: Path) -> None:
    with connect(server.base_url, tokenizer=folder) as remote:
        server.raw["/v1/completions"] = writes(choice(), times=1_000_000)
        records = list(remote.generate_sync([1, 2], max_tokens=50))
        assert len(records) == 50
        assert records[-1].finish_reason == "length"


async def read_later(writer: StreamWriter) -> None:
    await asyncio.sleep(0.5)
    event(writer, choice(finish_reason="stop"))


async def read_in_parts(writer: StreamWriter) -> None:
    event(writer, choice())
    for _ in range(30):
        event(writer, b": keepalive\n\n")
        await writer.drain()
        await asyncio.sleep(0.1)
    event(writer, choice(finish_reason="stop"))


@pytest.mark.parametrize(
    ("rest", "idle"), [(read_later, 0.2), pytest.param(read_in_parts, 2.0, marks=pytest.mark.slow)], ids=["silent", "comments"]
)
def test_a_long_prefill_after_the_response_head_does_not_time_out(server: Server, folder: Path, rest: Raw, idle: float) -> None:
    async def raw(writer: StreamWriter) -> None:
        start_events(writer)
        await writer.drain()
        await rest(writer)
        event(writer, b"data: [DONE]\n\n")

    with connect(server.base_url, tokenizer=folder, idle_seconds=idle) as remote:
        server.raw["/v1/completions"] = raw
        assert list(remote.generate_sync([1, 2], max_tokens=50))[-1].finish_reason == "stop"


def test_records_before_a_fault_in_the_stream_are_kept(server: Server, folder: Path) -> None:
    with connect(server.base_url, tokenizer=folder) as remote:
        server.raw["/v1/completions"] = writes(choice(), choice(), b"data: {]\n\n")
        records = remote.generate_sync([1, 2], max_tokens=50)
        assert "".join(next(records).text for _ in range(2)) == "AA"
        with pytest.raises(RemoteError):
            next(records)


@pytest.mark.parametrize("said", ["\x1b[2J", "\u202e", "x" * 600])
def test_names_with_control_characters_or_excessive_length_are_ignored(server: Server, folder: Path, said: str) -> None:
    server.models.append({**server.models[0], "id": "tiny" + said})
    server.raw["/version"] = answers({"version": "0.32" + said})
    with connect(server.base_url, tokenizer=folder) as remote:  # the only model with a valid name
        assert remote.info.options["model"] == "tiny"
        assert remote.info.options["server_version"] == ""


@pytest.mark.parametrize("token", [9999, -1])
def test_a_token_id_outside_the_vocabulary_for_a_line_break_is_refused(server: Server, token: int) -> None:
    with connect(server.base_url, tokenizer="server") as remote:
        server.raw |= {"/tokenize": answers({"tokens": [token]}), "/detokenize": answers({"prompt": "\n"})}
        with pytest.raises(RemoteError, match=f"token id {token} is outside its vocabulary"):
            remote.top_logprobs_sync([65], 3)


def test_an_empty_finish_reason_does_not_end_the_answer(server: Server, folder: Path) -> None:
    with connect(server.base_url, tokenizer=folder) as remote:
        server.raw["/v1/completions"] = writes(
            *[choice(finish_reason="")] * 2, choice(finish_reason="length"), b"data: [DONE]\n\n"
        )
        assert [record.finish_reason for record in remote.generate_sync([1, 2], max_tokens=3)] == [None, None, "length"]


def scores(*told: Any) -> Raw:
    return answers(choice(prompt_logprobs=[None, *told]))


def told(logprob: float = -1.0, rank: int = 1) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank}


def vectors(*rows: list[float], first: int = 0) -> Raw:
    return answers({"data": [{"index": first + place, "embedding": row} for place, row in enumerate(rows)]})


UNUSABLE = ("protocol", "cannot be used")
ANY: dict[str, tuple[Raw, str, str]] = {  # in place of any answer that is not streamed
    "announced terabyte": (announced, "protocol", "announces"),
    "10 GB line": (ten_gigabytes, "protocol", "answers with more than"),
    "gzip bomb": (bomb, "protocol", "compressed"),
    "a web page": (page, "protocol", "cannot be used"),
    "another protocol": (no_http, "protocol", "does not speak HTTP"),
    "half an answer": (answers(b'{"choices"', content_length="100"), "lost", "connection"),
    "no JSON": (answers(b"{]"), "protocol", "cannot be used"),
    "other shape": (answers({"choices": "no", "data": "no"}), "protocol", "cannot be used"),
}
WHOLE: dict[str, dict[str, tuple[Raw, str, str]]] = {
    "query": ANY
    | {
        "NaN": (answers(b'{"choices":[{"text":"","token_ids":[65],"logprobs":{"token_logprobs":[NaN]}}]}'), *UNUSABLE),
        "huge number": (answers(choice(logprobs=logprobs(top={"token_id:65": 5.0}))), "protocol", "log-probability is 5"),
        "too much mass": (
            answers(choice(logprobs=logprobs(top={"token_id:65": 0.0, "token_id:66": 0.0}))),
            "protocol",
            "together",
        ),
        "wrong id": (answers(choice(logprobs=logprobs(top={"token_id:9999": -1.0}))), "protocol", "outside its vocabulary"),
        "id that is none": (answers(choice(logprobs=logprobs(top={"token_id:x": -1.0}))), "protocol", "no token id"),
        "50,000 alternatives": (
            answers(choice(logprobs=logprobs(top={f"token_id:{i}": -20.0 for i in range(50_000)}))),
            "protocol",
            "50,000 alternatives",
        ),
    },
    "score": ANY
    | {
        "NaN": (answers(b'{"choices":[{"text":"","prompt_logprobs":[null,{"2":{"logprob":NaN}}]}]}'), *UNUSABLE),
        "huge number": (scores({"2": told(5.0)}), "protocol", "log-probability is 5"),
        "wrong id": (scores({"2": told(), "9999": told()}), "protocol", "outside its vocabulary"),
        "id that is none": (scores({"x": told()}), "protocol", "no token id"),
        "no number of the token": (scores({"3": told()}), "protocol", "cannot be used"),
        "too few positions": (scores(), "protocol", "cannot be used"),
        "a rank of 2^40": (scores({"2": told(rank=1 << 40)}), "protocol", "a vocabulary of 259"),
        "a rank below 0": (scores({"2": told(rank=-1)}), "protocol", "a vocabulary of 259"),
        "a rank of 260": (scores({"2": told(rank=260)}), "protocol", "a vocabulary of 259"),
        "50,000 alternatives": (scores({str(i): told(-20.0) for i in range(50_000)}), "protocol", "50,000 alternatives"),
    },
    "embed": ANY
    | {
        "NaN": (answers(b'{"data":[{"index":0,"embedding":[NaN]},{"index":1,"embedding":[1]}]}'), *UNUSABLE),
        "beyond float32": (vectors([1e300], [1.0]), "protocol", "not finite"),
        "too few": (vectors([1.0]), "protocol", "1 vectors for 2 texts"),
        "other texts": (vectors([1.0], [1.0], first=1), "protocol", "2 vectors for 2 texts"),
        "two lengths": (vectors([1.0, 2.0], [1.0]), "protocol", "vectors of one length"),
        "one of no length": (vectors([1.0, 2.0], []), "protocol", "vectors of one length"),
        "empty": (vectors([], []), "protocol", "empty or not finite"),
    },
}


ASKED: dict[str, Callable[[LanguageModel], object]] = {
    "query": lambda remote: remote.top_logprobs_sync([1, 2], 3),
    "score": lambda remote: remote.score_sync([1, 2]),
    "embed": lambda remote: remote.embed_sync(["a", "b"]),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("asked", "kind"), [(asked, kind) for asked, kinds in WHOLE.items() for kind in kinds])
def test_an_invalid_answer_is_a_remote_error(model: LanguageModel, folder: Path, asked: str, kind: str) -> None:
    raw, reason, said = WHOLE[asked][kind]
    with serving(model, embeddings=True) as server, connect(server.base_url, tokenizer=folder, idle_seconds=0.5) as remote:
        server.raw["/v1/embeddings" if asked == "embed" else "/v1/completions"] = raw
        with pytest.raises(RemoteError, match=said) as fault:
            ASKED[asked](remote)
        assert fault.value.reason == reason


@pytest.mark.parametrize("path", ["/v1/models", "/version"])
def test_an_invalid_model_list_is_refused_and_an_invalid_version_page_is_ignored(
    server: Server, folder: Path, path: str
) -> None:
    server.raw[path] = page
    if path == "/version":
        connect(server.base_url, tokenizer=folder).close()
    else:
        with pytest.raises(RemoteError, match=r"no JSON|lists no models"):
            connect(server.base_url, tokenizer=folder)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("status", "message", "kind", "reason"),
    [
        (400, "maximum context length is 2048 tokens, however you requested 3000 tokens", ContextOverflowError, None),
        (400, "the context length, it seems", InvalidRequestError, None),
        (400, "Token id 400 is out of vocabulary", InvalidRequestError, None),
        (404, "The model `x` does not exist.", ModelMissingError, None),
        (404, "Not Found", RemoteError, "missing"),
        (401, "no", RemoteError, "denied"),
        (403, "no", RemoteError, "denied"),
        (429, "slow down", RemoteError, "busy"),
        (503, "loading", RemoteError, "busy"),
        (500, "oops \x1b[31m", RemoteError, "server"),
    ],
)
def test_http_error_statuses_are_mapped_to_typed_errors(
    server: Server, remote: LanguageModel, status: int, message: str, kind: type[Exception], reason: str | None
) -> None:
    async def refuse(writer: StreamWriter) -> None:
        send(writer, status, json.dumps({"error": {"message": message}}).encode(), retry_after="7")

    server.raw["/v1/completions"] = refuse
    before = len(server.bodies("/v1/completions"))
    with pytest.raises(kind) as fault:
        remote.top_logprobs_sync([1], 1)
    assert len(server.bodies("/v1/completions")) == before + 1  # no request is repeated
    assert "\x1b" not in str(fault.value)
    if isinstance(fault.value, RemoteError):
        assert fault.value.reason == reason
        assert fault.value.retry_after == (7.0 if reason == "busy" else None)


@pytest.mark.parametrize("page", [{"data": 5}, b"[" * 900 + b"]" * 900, b"[" * 100_000 + b"]" * 100_000])
def test_malformed_model_lists_are_refused(server: Server, folder: Path, page: Any) -> None:
    server.raw["/v1/models"] = answers(page)
    with pytest.raises(RemoteError, match=r"no JSON|lists no models"):
        connect(server.base_url, tokenizer=folder)


def test_an_implausibly_large_vocabulary_is_refused(model: LanguageModel) -> None:
    with serving(model, owner="elsewise", cap=20) as server:
        server.models[0]["vocab_size"] = 1 << 23
        with pytest.raises(RemoteError, match="a vocabulary of 8,388,608"):
            connect(server.base_url, tokenizer="server")


def test_an_implausibly_long_token_text_is_refused(server: Server) -> None:
    with connect(server.base_url, tokenizer="server") as remote:
        server.raw["/detokenize"] = answers({"prompt": "x" * 5000})
        with pytest.raises(RemoteError, match="has 5,000 bytes"):
            remote.tokenize("a")


def test_a_refused_embedding_probe_does_not_prevent_the_connection(server: Server, folder: Path) -> None:
    server.raw["/v1/embeddings"] = answers({"error": {"message": "The model `tiny` does not exist."}}, 404)
    with connect(server.base_url, tokenizer=folder) as remote:
        assert "embeddings" not in remote.info.capabilities


def test_a_probe_refuses_an_oversized_answer(server: Server, folder: Path) -> None:
    server.raw["/v1/completions"] = answers({"choices": [{"text": "x" * (5 * MEBIBYTE)}]})
    with pytest.raises(RemoteError, match="announces"):
        connect(server.base_url, dialect="openai", tokenizer=folder)


INPUT = [{"type": "int_type", "loc": ["body", "n"], "msg": "not a number", "input": "my own prompt"}]


@pytest.mark.parametrize("body", [{"detail": INPUT}, {"error": {"message": str(INPUT)}}])
def test_a_prompt_quoted_in_an_error_is_removed(server: Server, folder: Path, body: Any) -> None:
    with connect(server.base_url, tokenizer=folder) as remote:
        server.raw["/v1/completions"] = answers(body, 422)
        with pytest.raises(InvalidRequestError, match="not a number") as fault:
            remote.top_logprobs_sync([1], 1)
        assert "my own prompt" not in str(fault.value)


def test_the_key_is_removed_from_errors_and_model_ids_of_a_server(
    server: Server, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    key = "sk-very-secret-0123456789"
    with connect(server.base_url, tokenizer=folder, api_key=key) as remote:
        server.raw["/v1/completions"] = writes({"error": {"message": f"no {key} \x1b[31m"}})
        with pytest.raises(RemoteError, match=r"no \(key\)") as fault:
            list(remote.generate_sync([1, 2], max_tokens=5))
        assert key not in str(fault.value)
        assert "\x1b" not in str(fault.value)
    del server.raw["/v1/completions"]
    server.models[0]["id"] = f"tiny {key}"
    with connect(server.base_url, tokenizer=folder, api_key=key):
        assert key not in caplog.text
    server.models.append({**server.models[0], "id": "second"})
    for named in (None, "tiny sk"):
        with pytest.raises(ModelMissingError) as missing:
            connect(server.base_url, named, api_key=key)
        assert key not in str(missing.value)


def test_cookies_are_not_kept(server: Server, folder: Path) -> None:
    server.raw["/version"] = answers({"version": "1"}, set_cookie="a=b")
    with connect(server.base_url, tokenizer=folder) as remote:
        remote.top_logprobs_sync([1], 1)
    assert not any("cookie" in headers for _, headers, _ in server.seen)


def test_the_cap_of_alternatives_is_not_read_from_the_host_s_name(model: LanguageModel) -> None:
    async def found(url: str) -> int:
        client = HttpClient(ServerAddress(url, "mac-max:8000", loopback=True, secure=False))
        try:
            return (await VLLM().abilities(client, RemoteModel("tiny", 2048), Probe())).alternatives
        finally:
            await client.close()

    with serving(model, cap=7) as server:
        assert asyncio.run(found(server.base_url)) == 7
