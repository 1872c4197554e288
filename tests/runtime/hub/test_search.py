"""Searching models on a hub through the child process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime import DownloadError, HubModel, InvalidRequestError, search_models
from runtime.hub.search import search
from tests.runtime.hub.local_hub import Files, LocalHub, Reply, Request, status

MLX: dict[str, Any] = {"library_name": "mlx", "tags": ["mlx", "4-bit"]}


def found(hub: LocalHub, query: str = "tiny", limit: int = 10) -> tuple[HubModel, ...]:
    """Searches in this process, with the code that the child runs, without waiting."""
    return search(query, limit, lambda seconds, why: None, endpoint=hub.address)


@pytest.mark.slow
def test_search_results_say_which_backends_can_run_them(hub: LocalHub, tiny: Files) -> None:
    # given
    config = json.loads(tiny["config.json"])
    hub.add("org/tiny", tiny)
    hub.repositories["org/tiny"].told = {
        "downloads": 900,
        "likes": 7,
        "tags": ["license:apache-2.0", "text-generation"],
        "safetensors": {"parameters": {"F32": 12_000}, "total": 12_000},
    }
    hub.add("org/tiny-4bit", tiny)
    told = MLX | {"downloads": 800, "safetensors": {"parameters": {"U32": 1500, "F16": 50}, "total": 1550}}
    hub.repositories["org/tiny-4bit"].told = told | {"config": config | {"quantization_config": {"bits": 4}}}
    hub.add("org/other", tiny)
    # when
    plain, packed = search_models("  Tiny ")
    # then
    assert plain == HubModel(
        "org/tiny", backends=("hf", "mlx"), parameters=12_000, licence="apache-2.0", downloads=900, likes=7
    )
    assert packed == HubModel("org/tiny-4bit", backends=("mlx",), parameters=12_000, quantisation="4 bit (mlx)", downloads=800)
    [asked] = hub.queries
    assert (asked["search"], asked["limit"], asked["pipeline_tag"]) == (["Tiny"], ["20"], ["text-generation"])
    assert hub.fetched() == []  # a single request
    assert len(hub.asked) == 1


@pytest.mark.parametrize(
    ("without", "more", "config", "problem"),
    [
        ({"model.safetensors"}, {}, {}, "only pickled weights (pytorch_model.bin), which are never opened"),
        ({"config.json"}, {"a.gguf": b"GGUF"}, {}, "only GGUF files; download one (a.gguf)"),
        ({"tokenizer.json"}, {}, {}, "no tokenizer.json"),
        (set(), {}, {"quantization_config": {"quant_method": "awq"}}, "quantised with awq, which needs CUDA"),
        (set(), {}, {"model_type": "never_heard_of"}, "neither transformers nor mlx-lm knows"),
        (set(), {}, {"model_type": "tiny_own", "auto_map": {"AutoModel": "a.B"}}, "code of its own (auto_map in config.json)"),
        (set(), {}, {"model_type": "tiny_own", "model_file": "a.py"}, "code of its own (model_file in config.json)"),
        (set(), {}, {"hidden_size": 10**12}, "hidden_size is 1000000000000"),
        (set(), {}, {"model_type": None}, "the hub does not say what it is"),
    ],
)
def test_a_result_that_cannot_run_here_states_the_reason(
    without: set[str], more: Files, config: dict[str, Any], problem: str, hub: LocalHub, tiny: Files
) -> None:
    told = json.dumps(json.loads(tiny["config.json"]) | config).encode()
    files = {**tiny, "config.json": told, **more}
    hub.add("org/tiny", {name: data for name, data in files.items() if name not in without})
    [model] = found(hub)
    assert model.backends == ()
    assert problem in model.problem


def test_an_adapter_is_listed_as_an_adapter(hub: LocalHub) -> None:
    hub.add("org/tiny", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"})
    [model] = found(hub)
    assert (model.kind, model.backends, model.problem) == ("adapter", ("hf", "mlx"), "")


@pytest.mark.slow
def test_gated_and_private_models_are_marked(hub: LocalHub, tiny: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("org/tiny-a", "org/tiny-b", "org/tiny-c"):
        hub.add(name, tiny)
    hub.repositories["org/tiny-a"].told = {"gated": "auto", "downloads": 2}
    hub.repositories["org/tiny-b"].owner = "me"
    hub.tokens["hf_mine"] = "me"
    assert [(model.source, model.gated, model.private) for model in found(hub)] == [
        ("org/tiny-a", True, False),
        ("org/tiny-c", False, False),
    ]
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert [(model.source, model.gated, model.private) for model in search_models("tiny")] == [
        ("org/tiny-a", True, False),
        ("org/tiny-b", False, True),
        ("org/tiny-c", False, False),
    ]


@pytest.mark.parametrize(
    ("reply", "reason", "said"),
    [
        (status(401), "denied", r"refuses \(HTTP 401\); log in with `elsewise models login`"),
        (status(403), "denied", "HTTP 403"),
        (status(404), "missing", "not there"),
        (status(429), "busy", r"asks for fewer requests \(HTTP 429\); try again later"),
        (status(503), "busy", "is in trouble"),
        (status(418), "server", "HTTP 418"),
        (lambda request: request.answer(200, b"<html>"), "server", "answer cannot be read"),
        (lambda request: request.answer(200, b"[" * 100_000), "server", "answer cannot be read"),
        (lambda request: request.json(200, {"error": "no"}), "server", "a dict, no list"),
    ],
)
def test_a_hub_that_does_not_answer_properly_is_a_typed_error(reply: Reply, reason: str, said: str, hub: LocalHub) -> None:
    hub.before = [reply]
    with pytest.raises(DownloadError, match=said) as fault:
        found(hub)
    assert fault.value.reason == reason
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://no-such-hub.invalid"])
def test_an_unreachable_hub_is_a_network_error(address: str, hub: LocalHub) -> None:
    hub.address = address
    with pytest.raises(DownloadError, match=r"cannot be reached .*; check the network") as fault:
        found(hub)
    assert fault.value.reason == "network"


def test_a_busy_hub_is_asked_again_by_a_search(hub: LocalHub, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    left = [503, 429]
    hub.before = [lambda request: bool(left) and request.answer(left.pop(), b"")]
    assert len(found(hub)) == 1


def test_malformed_entries_are_skipped_or_listed_with_a_problem(hub: LocalHub) -> None:
    odd: list[Any] = [
        3,
        {"id": "../../up"},
        {"id": None},
        {"id": "org/odd", "siblings": "none", "tags": [1, None], "config": [], "downloads": "many", "likes": -4},
        {"id": "org/deep", "siblings": [1, {"rfilename": 2}], "safetensors": {"parameters": 4, "total": 1 << 80}},
        {"id": "org/text", "config": {"model_type": ["x"], "quantization_config": {"bits": "4"}}, "tags": ["mlx"], "gated": 1},
        {
            "id": "org/bits",
            "config": {"quantization": {}},
            "safetensors": {"parameters": {"U32": 9}},
            "tags": ["license:a\x07"],
        },
    ]

    def answered(request: Request) -> bool:
        return request.json(200, odd)

    hub.before = [answered]
    models = found(hub)
    assert [model.source for model in models] == ["org/odd", "org/deep", "org/text", "org/bits"]
    assert all(model.problem and not model.backends and model.parameters is None for model in models)
    assert {(model.downloads, model.licence) for model in models} == {(0, "")}
    assert found(hub, limit=4) == models[:1]


@pytest.mark.parametrize(("query", "limit"), [("", 5), ("  ", 5), ("a\0b", 5), ("x" * 201, 5), ("a", 0), ("a", 101)])
def test_an_invalid_query_is_refused_without_a_request(query: str, limit: int, hub: LocalHub) -> None:
    with pytest.raises(InvalidRequestError):
        search_models(query, limit)
    assert hub.asked == []
