"""GET /metrics in Prometheus's text format, under vLLM's names where vLLM has the figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.serve.served_model import ServedModel
from runtime import Latency

QUANTILES: Final = (("0.5", "p50"), ("0.95", "p95"))


async def metrics(served: ServedModel) -> bytes:
    """Figures for Prometheus, of the server and of the engine; those of the engine start anew with its process."""
    return "".join(f"{line}\n" for line in _lines(served)).encode()


def _lines(served: ServedModel) -> Iterator[str]:
    model = served.loaded
    assert model is not None  # loaded before the port is open
    now, counts = model.metrics(), served.counts
    label = f'{{model_name="{_escaped(served.name)}"}}'

    def figure(name: str, kind: str, words: str, value: float) -> Iterator[str]:
        yield f"# HELP {name} {words}"
        yield f"# TYPE {name} {kind}"
        yield f"{name}{label} {value:.10g}"

    running = max(now.requests_active - now.requests_waiting, 0)
    yield from figure("vllm:num_requests_running", "gauge", "Requests that are worked on.", running)
    yield from figure("vllm:num_requests_waiting", "gauge", "Requests that wait.", now.requests_waiting)
    used = now.kv_bytes / now.kv_budget if now.kv_budget else 0.0
    yield from figure("vllm:kv_cache_usage_perc", "gauge", "Part of the KV budget in use, 1 is all.", used)
    yield from figure("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", counts["prompt_tokens"])
    yield from figure("vllm:prefix_cache_hits_total", "counter", "Of them, those that the cache held.", counts["cached_tokens"])
    yield from figure("vllm:prompt_tokens_total", "counter", "Tokens of prompts.", counts["prompt_tokens"])
    yield from figure("vllm:generation_tokens_total", "counter", "Tokens drawn.", counts["generation_tokens"])
    yield from figure("elsewise:kv_bytes", "gauge", "KV in memory, in bytes.", now.kv_bytes)
    yield from figure("elsewise:kv_budget_bytes", "gauge", "What KV may take, in bytes.", now.kv_budget)
    yield from figure("elsewise:leases", "gauge", "Paths of the cache that are in use.", model.cache_report().leases)
    yield from figure("elsewise:kv_needed_bytes", "gauge", "KV that requests in flight may need.", served.needed)
    yield from figure("elsewise:rejected_total", "counter", "Requests refused with 429.", counts["rejected"])
    yield from figure("elsewise:disconnects_total", "counter", "Requests whose client went away.", counts["disconnects"])
    yield from figure("elsewise:embedded_texts_total", "counter", "Texts that were embedded.", counts["embedded_texts"])
    yield from figure("elsewise:engine_restarts_total", "counter", "Starts after the first.", counts["engine_restarts"])
    yield from figure("elsewise:engine_tokens_computed_total", "counter", "Tokens computed.", now.tokens_computed)
    yield from _summary("elsewise:time_to_first_token_seconds", "Of the last requests.", now.first_token_latency, served.name)
    yield from _summary("elsewise:inter_token_latency_seconds", "Of the last requests.", now.token_latency, served.name)
    yield from _summary("elsewise:request_queue_time_seconds", "Of the last requests.", now.queue_latency, served.name)
    yield "# HELP elsewise:responses_total Answers by path and HTTP status; 0 where the client had gone."
    yield "# TYPE elsewise:responses_total counter"
    for (path, status), number in sorted(served.responses.items()):
        yield f'elsewise:responses_total{{path="{path}",status="{status}"}} {number}'


def _summary(name: str, words: str, latency: Latency, model: str) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} gauge"
    for quantile, attribute in QUANTILES:
        value = getattr(latency, attribute)
        if value is not None:
            yield f'{name}{{model_name="{_escaped(model)}",quantile="{quantile}"}} {value:.6g}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
