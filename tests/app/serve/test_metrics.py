"""/metrics and /openapi.json."""

from __future__ import annotations

import re
import time
from typing import Any

from app.serve.app import OPERATIONS
from tests.app.serve.conftest import Served

LINE = re.compile(r'([a-z_:]+)\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)+\} (\S+)')


def figures(served: Served) -> dict[str, float]:
    response = served.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    for line in response.text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP [a-z_:]+ .+|TYPE [a-z_:]+ (counter|gauge))", line)
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def test_tokens_and_answers_are_counted(served: Served) -> None:
    before = figures(served)
    usage = served.post("/v1/completions", prompt=[31, 32, 33], max_tokens=4, ignore_eos=True)["usage"]
    served.stream("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=3, ignore_eos=True)
    served.client.post("/v1/completions", json={})
    for readings in range(1, 200):  # a stream is counted when it has ended completely, which the client does not wait for
        after = figures(served)
        grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
        if grown["elsewise:responses_total"] >= 3 + readings:
            break
        time.sleep(0.01)
    assert grown["elsewise:responses_total"] == 3 + readings  # each reading of the metrics too
    assert grown["vllm:generation_tokens_total"] == 7
    assert grown["vllm:prompt_tokens_total"] > usage["prompt_tokens"]
    assert (after["vllm:num_requests_running"], after["vllm:num_requests_waiting"], after["elsewise:leases"]) == (0, 0, 0)
    assert 0 <= after["vllm:kv_cache_usage_perc"] <= 1
    assert after["elsewise:kv_budget_bytes"] > 0


def test_a_running_request_is_counted(served: Served) -> None:
    with served.client.stream(
        "POST", "/v1/completions", json={"prompt": [5], "max_tokens": 3000, "ignore_eos": True, "stream": True}
    ) as response:
        pieces = response.iter_raw()  # held: collecting it would close the connection
        next(pieces)
        assert figures(served)["vllm:num_requests_running"] == 1
    while figures(served)["vllm:num_requests_running"]:  # an endless wait is ended by the test's time-out
        time.sleep(0.01)


def test_the_document_lists_every_path_and_resolves(served: Served) -> None:
    document = served.client.get("/openapi.json").json()
    assert set(document["paths"]) == {each.path for each in OPERATIONS}
    schemas = document["components"]["schemas"]

    def check(part: Any) -> None:
        if isinstance(part, dict):
            if "$ref" in part:
                assert part["$ref"].removeprefix("#/components/schemas/") in schemas
            for each in part.values():
                check(each)
        elif isinstance(part, list):
            for each in part:
                check(each)

    check(document)
    assert schemas["CompletionRequest"]["properties"]["logprobs"]
    assert all(operation["summary"] for path in document["paths"].values() for operation in path.values())
