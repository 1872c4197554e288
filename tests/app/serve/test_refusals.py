"""Requests without permission, invalid requests, and contents that are never logged."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from app.serve import Access, checked_keys, is_loopback
from app.serve import completions as completions_of
from tests.app.serve.conftest import Served, serving, tiny

PATH = "/v1/completions"
KEY = "a-key-of-enough-characters"


def error_of(response: Any) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [[]]}, 400, None),
        ({"prompt": ""}, 400, None),
        ({"prompt": [1, "a"]}, 400, "prompt"),
        ({"prompt": [[1], 2]}, 400, "prompt"),
        ({"prompt": [-1]}, 400, "prompt"),
        ({"prompt": [1.5]}, 400, "prompt"),
        ({"prompt": [10**6]}, 400, None),
        ({"prompt": [10**30]}, 400, None),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({"prompt": [1] * 5000}, 400, None),
        ({"prompt": "x " * 400_000}, 400, None),
        ({"prompt": "a", "model": "another"}, 404, "model"),
        ({"prompt": "a", "max_tokens": -1}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": "5"}, 400, "max_tokens"),
        ({"prompt": "a", "temperature": -0.5}, 400, "temperature"),
        ({"prompt": "a", "top_p": 1.5}, 400, "top_p"),
        ({"prompt": "a", "top_k": -2}, 400, "top_k"),
        ({"prompt": "a", "n": 0}, 400, "n"),
        ({"prompt": "a", "n": 2000}, 400, "n"),
        ({"prompt": ["a"] * 600, "n": 2}, 400, "n"),
        ({"prompt": ["x " * 400_000] + ["a"] * 1100}, 400, "n"),
        ({"prompt": [5] * 50, "echo": True, "logprobs": 1000, "max_tokens": 0, "n": 128}, 400, "logprobs"),
        ({"prompt": [5] * 50, "prompt_logprobs": 1000, "max_tokens": 0, "n": 128}, 400, "prompt_logprobs"),
        ({"prompt": "a", "seed": -1}, 400, "seed"),
        ({"prompt": "a", "stop": ""}, 400, "stop"),
        ({"prompt": "a", "stop": [1]}, 400, "stop"),
        ({"prompt": "a", "logprobs": -2}, 400, "logprobs"),
        ({"prompt": "a", "logprobs": True}, 400, "logprobs"),
        ({"prompt": "a", "logprobs": -1, "max_tokens": 10**6}, 400, "logprobs"),
        ({"prompt": "a", "prompt_logprobs": -2}, 400, "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs"),
        ({"prompt": "a", "logprob_token_ids": [1000]}, 400, "logprob_token_ids"),
        ({"prompt": "a", "logprob_token_ids": list(range(129))}, 400, "logprob_token_ids"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"5000": 1}}, 400, None),
        ({"prompt": "a", "logit_bias": {"9" * 5000: 1}}, 400, "logit_bias"),
        ({"prompt": "a", "stop_token_ids": [5000]}, 400, None),
        ({"prompt": "a", "structured_outputs": {}}, 400, "structured_outputs"),
        ({"prompt": "a", "structured_outputs": {"choice": []}}, 400, "structured_outputs"),
        ({"prompt": "a", "structured_outputs": {"regex": "("}}, 400, None),
        ({"prompt": "a", "structured_outputs": {"regex": "("}, "stream": True}, 400, None),
        ({"prompt": "a", "response_format": {"type": "xml"}}, 400, None),
        ({"prompt": "a", "best_of": 3}, 400, "best_of"),
        ({"prompt": "a", "use_beam_search": True}, 400, "use_beam_search"),
        ({"prompt": "a", "cache_salt": ""}, 400, "cache_salt"),
        ({"prompt": "a", "priority": "high"}, 400, "priority"),
        ({"prompt": "a", "suffix": "b"}, 400, "suffix"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"prompt": "a", "max_tokns": 3}, 400, "max_tokns"),
    ],
)
def test_invalid_input_is_refused_in_openai_s_shape(served: Served, body: Any, status: int, param: str | None) -> None:
    response = served.client.post(PATH, json=body)
    assert response.status_code == status, response.text
    error = error_of(response)
    assert param is None or error["param"] == param
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


ASKED = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [ASKED, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}]},
        {"messages": [{**ASKED, "extra": nested(600)}]},
        {"messages": [ASKED], "tools": [{"type": "function", "function": {"name": "f", "parameters": nested(600)}}]},
        {"messages": [ASKED], "tools": [{"type": "function", "function": 5}], "tool_choice": "required"},
    ],
)
def test_messages_and_tools_of_invalid_shape_are_refused(served: Served, body: Any) -> None:
    response = served.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert error_of(response)["type"] == "invalid_request_error"


SAID = {"role": "user", "content": "a secret"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"messages": [SAID], "model": "another"}, 404),
        ("/v1/chat/completions", {"messages": "a secret"}, 400),
        ("/v1/chat/completions", {"messages": [SAID], "max_tokns": 3}, 400),
        ("/v1/embeddings", {"input": "a secret", "model": "another"}, 404),
        ("/v1/embeddings", {"input": {"a secret": 1}}, 400),
        ("/v1/embeddings", {"input": "a secret", "size": 3}, 400),
        ("/tokenize", {"prompt": "a secret", "model": "another"}, 404),
        ("/tokenize", {"prompt": ["a secret"]}, 400),
        ("/tokenize", {"prompt": "a secret", "add_bos": True}, 400),
        ("/detokenize", {"tokens": [1], "model": "another", "return_token_bytes": True}, 404),
        ("/detokenize", {"tokens": ["a secret"]}, 400),
        ("/detokenize", {"tokens": [1], "text": "a secret"}, 400),
    ],
)
def test_each_endpoint_refuses_in_openai_s_shape_and_logs_no_prompt(
    served: Served, caplog: pytest.LogCaptureFixture, path: str, body: Any, status: int
) -> None:
    caplog.set_level(logging.DEBUG)
    response = served.client.post(path, json=body)
    assert response.status_code == status, response.text
    assert error_of(response)["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    served.client.get("/health")  # on the same connection: the request before it is logged by then
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("app", "runtime", "uvicorn"))]
    assert any(f"POST {path} {status}" in line for line in ours)
    assert not any("secret" in line for line in ours)


@pytest.mark.parametrize(("path", "name"), [("/detokenize", "tokens"), ("/v1/embeddings", "input")])
def test_too_many_ids_are_refused(served: Served, path: str, name: str) -> None:
    most = 1 << 17
    response = served.client.post(path, json={name: [5] * (most + 1)})
    assert response.status_code == 400
    assert error_of(response)["param"] == name
    assert "131,073 ids are more than the 131,072" in error_of(response)["message"]
    assert path != "/detokenize" or served.post(path, tokens=[5] * most)["prompt"]


def test_a_prompt_beyond_the_context_has_openai_s_code(served: Served) -> None:
    assert error_of(served.client.post(PATH, json={"prompt": [1] * 5000}))["code"] == "context_length_exceeded"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"prompt": NaN}', b"[" * 100_000])
def test_a_body_that_is_not_a_request_is_refused(served: Served, body: bytes) -> None:
    response = served.client.post(PATH, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/nothing", {}, 404),
        ("GET", PATH, {}, 405),
        ("DELETE", "/v1/models", {}, 405),
        ("POST", PATH, {"content-type": "text/plain"}, 415),
        ("POST", PATH, {}, 415),
        ("GET", "/v1/models", {"host": "evil.example"}, 403),
        ("GET", "/health", {"host": ""}, 403),
        ("GET", "/v1/models", {"origin": "http://evil.example"}, 403),
        ("GET", "/v1/models", {"origin": "null"}, 403),
        ("OPTIONS", PATH, {"origin": "http://evil.example"}, 403),
        ("GET", "/v1/models", {"host": "localhost:1"}, 200),
        ("GET", "/v1/models", {"host": "[::1]:99"}, 200),
        ("GET", "/v1/models", {"host": "127.0.0.1"}, 200),
    ],
)
def test_methods_paths_and_headers_are_checked_before_the_body(
    served: Served, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    response = served.client.request(method, path, headers=headers, content=b"{}" if method == "POST" else None)
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers
    if status != 200:
        error_of(response)


def test_the_size_of_a_body_is_limited(served: Served) -> None:
    big = b'{"prompt": "' + b"x" * (33 << 20) + b'"}'
    assert served.client.post(PATH, content=big, headers={"content-type": "application/json"}).status_code == 413


def test_a_configured_key_is_required_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    origin = "http://localhost:3000"
    access = Access(keys=(KEY,), hosts=frozenset({"box.lan"}), origins=frozenset({origin}), loopback=False)
    with serving(tiny(), access) as served:
        assert served.client.get("/health").status_code == 200
        for host in ("127.0.0.1:1/health?", "127.0.0.1:1/health#", "localhost:1\\health"):  # a URL with it has another path
            assert served.client.get("/v1/models", headers={"host": host}).status_code == 403
        for header in ({}, {"authorization": f"Bearer {KEY}x"}, {"authorization": KEY}, {"authorization": "Bearer"}):
            response = served.client.get("/v1/models", headers=header)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
            assert KEY not in response.text
            assert error_of(response)["code"] == "invalid_api_key"
        mine = {"authorization": f"Bearer {KEY}", "host": "box.lan:80", "origin": origin}
        response = served.client.post(PATH, headers=mine, json={"prompt": "a secret prompt", "max_tokens": 1})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, origin)
        preflight = served.client.request("OPTIONS", PATH, headers={"origin": origin})
        assert preflight.status_code == 204
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        sent = "authorization, x-stainless-lang"  # like openai's client in a web page
        preflight = served.client.request("OPTIONS", PATH, headers={"origin": origin, "access-control-request-headers": sent})
        assert preflight.headers["access-control-allow-headers"] == sent
        served.client.get("/v1/secret/path?secret=1", headers=mine)
        served.client.post(PATH, headers=mine, json={"prompt": "a secret prompt", "temperature": -1})
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("app", "runtime", "uvicorn"))]
    assert any("POST /v1/completions 200" in line for line in ours)
    assert not any(KEY in line or "secret" in line for line in ours)


def test_keys_can_have_separate_caches() -> None:
    other = KEY[::-1]
    prompt = {"prompt": [41, 42, 43, 44, 45, 46], "max_tokens": 1}
    with serving(tiny(), Access(keys=(KEY, other), salt_per_key=True)) as served:

        def cached(key: str, **body: str) -> int:
            response = served.client.post(PATH, headers={"authorization": f"Bearer {key}"}, json={**prompt, **body})
            found: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return found

        assert [cached(KEY), cached(other), cached(KEY, cache_salt="a"), cached(other, cache_salt="a")] == [0] * 4
        assert min(cached(KEY), cached(other), cached(KEY, cache_salt="a"), cached(other, cache_salt="a")) >= 5


def test_an_unexpected_error_is_reported_and_logged_without_its_message(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = "the secret prompt"

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError(words)

    monkeypatch.setattr(completions_of, "generation_options", fail)
    response = served.client.post(PATH, json={"prompt": "a"})
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text
    assert "secret" not in caplog.text
    caplog.clear()  # a logged error would fail the test


def test_keys_and_addresses_are_checked() -> None:
    assert checked_keys([f"{KEY}\n\n  {KEY}2 \n"]) == (KEY, f"{KEY}2")
    for bad in ("short", "with a space in it", "é" * 20):
        with pytest.raises(ValueError, match="key 1"):
            checked_keys([bad])
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.1.2.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.2", "example.com")))


def test_models_version_and_health_describe_the_server(served: Served) -> None:
    (card,) = served.client.get("/v1/models").json()["data"]
    info = served.model.info
    assert (card["id"], card["owned_by"], card["max_model_len"]) == (info.name, "elsewise", info.context_length)
    from runtime import __version__

    assert served.client.get("/version").json() == {"version": __version__}
    assert served.client.get("/health").status_code == 200
