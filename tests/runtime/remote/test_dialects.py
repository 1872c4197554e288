"""Other kinds of servers. The shapes of mlx_lm (0.32) and llama.cpp were recorded; SGLang's are from its documentation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import (
    FullVocabUnavailableError,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    RemoteError,
    SamplingOptions,
    TokenRecord,
    UnsupportedFeatureError,
    connect,
)
from tests.runtime.remote.servers import EOS, Refused, Server, event, send, serving, start_events


def best(row: Any, count: int) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-row[token], token))[:count]


class Other(Server):
    """The common base of the other kinds."""

    ends = b"0\r\n\r\n"

    async def drawn(
        self, ids: Sequence[int], most: int, temperature: float, stops: Sequence[int] = EOS
    ) -> AsyncGenerator[tuple[TokenRecord, Any], None]:
        options = GenerationOptions(
            max_tokens=most,
            sampling=SamplingOptions(temperature=max(temperature, 0.0)),
            eos_token_ids=tuple(stops),
            resolve=False,
        )
        path = list(ids)
        async with aclosing(self.model.generate(ids, options)) as records:
            async for record in records:
                row = await self.model.next_token_logprobs(path)
                path.append(record.token_id)
                yield record, row

    async def stream(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        start_events(writer)
        async with aclosing(self.parts(body)) as parts:
            async for part in parts:
                event(writer, part)
        writer.write(self.ends)

    def parts(self, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        raise NotImplementedError

    async def last(self, body: dict[str, Any]) -> Any:
        return [part async for part in self.parts(body)][-1]


class LlamaServer(Other):
    async def answer(self, method: str, path: str, body: Any) -> Any:
        match path:
            case "/v1/models":
                return {"data": [{"id": "tiny.gguf", "owned_by": "llamacpp", "meta": {"n_vocab": 259, "n_ctx_train": 4096}}]}
            case "/props":
                return {"default_generation_settings": {"n_ctx": 2048}, "chat_template": "x", "build_info": "b8681"}
            case "/tokenize":
                return {"tokens": [self.piece(token) for token in await self.model.tokenize_async(body["content"])]}
            case "/detokenize":
                return {"content": self.model.detokenize(body["tokens"])}
            case "/apply-template":
                return {"prompt": "".join(f"{each['role']}: {each['content']}\n" for each in body["messages"])}
            case "/completion":
                parts = [part async for part in self.parts(body)]
                whole = dict(parts[-1])
                for name in ("tokens", "completion_probabilities"):
                    whole[name] = [each for part in parts for each in part.get(name, ())]
                return whole
        raise Refused(404, "File Not Found")

    def piece(self, token: int) -> dict[str, Any]:
        piece = self.model.byte_vocab[token]
        try:
            return {"id": token, "piece": piece.decode()}
        except UnicodeDecodeError:
            return {"id": token, "piece": list(piece)}

    async def parts(self, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        forced = [token for token, value in body.get("logit_bias", ()) if value == 1e6]
        why, count = "limit", 0
        async for record, row in self.drawn(body["prompt"], body["n_predict"], body["temperature"]):
            token = forced[0] if forced else record.token_id  # the numbers are those of the raw row
            count += 1
            told: dict[str, Any] = {"id": token, "token": record.text, "bytes": [], "logprob": float(row[token])}
            told["top_logprobs"] = [{"id": t, "logprob": float(row[t])} for t in best(row, body.get("n_probs", 0))]
            why = "eos" if record.finish_reason == "eos" else why
            shown = "" if why == "eos" else record.text
            numbers = {"completion_probabilities": [told], "tokens_predicted": count}
            yield {"content": shown, "tokens": [token], "stop": False, **numbers}
        counts = {"tokens_predicted": count, "tokens_evaluated": 3, "timings": {"cache_n": 1, "prompt_n": 2}}
        yield {"content": "", "tokens": [], "stop": True, "stop_type": why, **counts}


class SplitCharacters(LlamaServer):
    """Answers with characters of several tokens, of which it reports the last token only."""

    answers = "a世🙂b"

    async def parts(self, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        if body["n_predict"] == 1:
            async for part in super().parts(body):
                yield part
            return
        count = 0
        for character in self.answers:
            ids = await self.model.tokenize_async(character)
            count += len(ids)
            told = {"id": ids[-1], "logprob": -1.0, "top_logprobs": [{"id": ids[-1], "logprob": -1.0}]}
            numbers = {"completion_probabilities": [told], "tokens_predicted": count}
            yield {"content": character, "tokens": ids[-1:], "stop": False, **numbers}
        # one more token: half of a character
        yield {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": count + 1}


class SGLangServer(Other):
    ends = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

    async def answer(self, method: str, path: str, body: Any) -> Any:
        match path:
            case "/v1/models":
                return {"data": [{"id": "tiny", "owned_by": "sglang", "max_model_len": 2048}]}
            case "/get_model_info":
                return {"model_path": "tiny", "tokenizer_path": "tiny", "is_generation": True}
            case "/tokenize":
                return {"tokens": await self.model.tokenize_async(body["prompt"])}
            case "/detokenize":
                return {"prompt": self.model.detokenize(body["tokens"])}
            case "/generate":
                return await self.last(body)
        raise Refused(404, "Not Found")

    async def parts(self, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        ids = body["input_ids"] if "input_ids" in body else await self.model.tokenize_async(body["text"])
        given, count = body["sampling_params"], body["top_logprobs_num"]
        stops = (*given.get("stop_token_ids", ()), *(() if given.get("ignore_eos") else EOS))
        own: list[Any] = []
        tops: list[Any] = []
        chosen: list[Any] = []
        meta: dict[str, Any] = {"prompt_tokens": len(ids), "cached_tokens": 1, "finish_reason": None}
        if body.get("logprob_start_len") == 0:
            rows = [await self.model.next_token_logprobs(ids[:n]) for n in range(1, len(ids))]
            scores = [[float(row[token]), token, None] for row, token in zip(rows, ids[1:], strict=True)]
            meta["input_token_logprobs"] = [[None, ids[0], None], *scores]
            meta["input_top_logprobs"] = [None, *([[float(row[t]), t, None] for t in best(row, count)] for row in rows)]
        async for record, row in self.drawn(ids, given["max_new_tokens"], given["temperature"], stops):
            own.append([float(row[record.token_id]), record.token_id, None])
            tops.append([[float(row[t]), t, None] for t in best(row, count)])
            chosen.append([[float(row[t]), t, None] for t in body.get("token_ids_logprob", ())])
            if record.finish_reason == "eos":
                meta["finish_reason"] = {"type": "stop", "matched": record.token_id}
            elif record.finish_reason:
                meta["finish_reason"] = {"type": "length", "length": len(own)}
            told = {"output_token_logprobs": list(own), "output_top_logprobs": list(tops), "completion_tokens": len(own)}
            yield {"text": "", "meta_info": {**meta, **told, "output_token_ids_logprobs": list(chosen)}}


class MlxServer(Other):
    ends = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

    async def answer(self, method: str, path: str, body: Any) -> Any:
        match path:
            case "/v1/models":
                return {"object": "list", "data": [{"id": "tiny", "object": "model", "created": 1}]}
            case "/health":
                return {"status": "ok"}
            case "/v1/completions":
                if not isinstance(body["prompt"], str):
                    raise Refused(404, "text input must be of type str")
                return await self._whole(body)
        raise Refused(404, "Not Found")

    async def _whole(self, body: dict[str, Any]) -> Any:
        content = []
        ids = await self.model.tokenize_async(body["prompt"])
        async for _, row in self.drawn(ids, body["max_tokens"], body["temperature"]):
            tops = [{"id": t, "token": "?", "logprob": float(row[t])} for t in reversed(best(row, body["top_logprobs"]))]
            content.append({**tops[0], "top_logprobs": tops})
        usage = {"prompt_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": 1}}
        return {
            "choices": [{"index": 0, "finish_reason": "length", "logprobs": {"content": content}, "text": "?"}],
            "usage": usage,
        }

    async def parts(self, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        reason = "length"
        async for record, _ in self.drawn(
            await self.model.tokenize_async(body["prompt"]), body["max_tokens"], body["temperature"]
        ):
            if record.finish_reason == "eos":
                reason = "stop"
                break
            if record.text:
                yield {"choices": [{"index": 0, "finish_reason": None, "text": record.text}]}
        yield {"choices": [{"index": 0, "finish_reason": reason, "text": ""}]}
        yield {"choices": [], "usage": {"prompt_tokens": 3}}


class TextServer(MlxServer):
    """An OpenAI server: five alternatives, identified by text."""

    async def answer(self, method: str, path: str, body: Any) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "tiny", "owned_by": "me"}]}
        if path != "/v1/completions":
            raise Refused(404, "Not Found")
        tokens, own, tops = [], [], []
        async for record, row in self.drawn(
            await self.model.tokenize_async(body["prompt"]), body["max_tokens"], body["temperature"]
        ):
            tokens.append(record.text)
            own.append(float(row[record.token_id]))
            tops.append({self.model.detokenize([t]): float(row[t]) for t in best(row, body.get("logprobs", 0))})
        told = {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops}
        choice = {"text": "".join(tokens), "finish_reason": "length", "logprobs": told if "logprobs" in body else None}
        return {"choices": [choice]}


KINDS = {"llama.cpp": LlamaServer, "sglang": SGLangServer, "mlx_lm": MlxServer, "openai": TextServer}
TEXT = "Some words"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_server_is_recognised_with_its_capabilities(model: LanguageModel, folder: Path, kind: str) -> None:
    ids = model.tokenize(TEXT)
    with serving(model, KINDS[kind]) as server, connect(server.base_url, tokenizer=folder) as remote:
        assert remote.info.backend == kind
        assert remote.has("token_ids") is (kind in ("llama.cpp", "sglang"))
        assert not remote.has("whole_rows")
        count = {"mlx_lm": 11, "openai": 5}.get(kind, 12)
        ours, theirs = model.top_logprobs_sync(ids, count), remote.top_logprobs_sync(ids, count)
        if kind == "openai":  # tokens that are incomplete characters cannot be identified by text
            assert set(theirs.ids.tolist()) <= set(ours.ids.tolist())
        else:
            assert theirs.ids.tolist() == ours.ids.tolist()
            np.testing.assert_allclose(theirs.logprobs, ours.logprobs, atol=1e-6)
            assert theirs.tail_mass == pytest.approx(ours.tail_mass, abs=1e-6)
        with pytest.raises(FullVocabUnavailableError):
            remote.next_token_logprobs_sync(ids)
        if "prompt log-probabilities" in remote.info.capabilities:
            wanted = [record.logprob and pytest.approx(record.logprob, abs=1e-6) for record in model.score_sync(ids, 3)]
            assert [record.logprob for record in remote.score_sync(ids, 3)] == wanted
        else:
            with pytest.raises(UnsupportedFeatureError, match="does not score given texts"):
                remote.score_sync(ids)


class PoolingServer(Server):
    """vLLM with ``--runner pooling``."""

    async def answer(self, method: str, path: str, body: Any) -> Any:
        if path == "/v1/completions":
            raise Refused(404, "Not Found")
        return await super().answer(method, path, body)


def test_a_pooling_vllm_server_offers_embeddings_only(model: LanguageModel, folder: Path) -> None:
    with (
        serving(model, PoolingServer, embeddings=True) as server,
        connect(server.base_url, tokenizer=folder) as remote,
    ):
        np.testing.assert_allclose(remote.embed_sync([TEXT]), model.embed_sync([TEXT]), atol=1e-6)
        assert any("no log-probabilities" in warning for warning in remote.info.warnings)
        with pytest.raises(UnsupportedFeatureError, match="gives no log-probabilities"):
            remote.top_logprobs_sync([5], 1)
    with serving(model, PoolingServer) as server, pytest.raises(RemoteError, match="does not have what was asked for"):
        connect(server.base_url, tokenizer=folder)


def test_a_cache_salt_that_the_server_does_not_support_is_a_warning_and_refused_per_request(
    model: LanguageModel, folder: Path
) -> None:
    with serving(model, MlxServer) as server, connect(server.base_url, tokenizer=folder, cache_salt="mine") as remote:
        assert any("takes no cache_salt" in warning for warning in remote.info.warnings)
        with pytest.raises(UnsupportedFeatureError, match="takes no cache_salt"):
            remote.top_logprobs_sync([5], 2, cache_salt="a request's own")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_greedy_answer_equals_that_of_the_local_model(model: LanguageModel, folder: Path, kind: str) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12}
    with serving(model, KINDS[kind]) as server, connect(server.base_url, tokenizer=folder) as remote:
        for prompt in (TEXT, "Once upon", "b"):
            ids = model.tokenize(prompt)
            ours, theirs = list(model.generate_sync(ids, **options)), list(remote.generate_sync(ids, **options))
            shown = "".join(record.text for record in ours if record.finish_reason != "eos")
            if "token ids" in remote.info.capabilities:
                assert [record.token_id for record in theirs] == [record.token_id for record in ours]
                assert theirs[0].top_ids == ours[0].top_ids
            assert "".join(record.text for record in theirs if record.finish_reason != "eos") == shown


def test_the_tokenizer_of_the_server_works_for_llama_cpp_and_is_refused_for_sglang(model: LanguageModel) -> None:
    with serving(model, SGLangServer) as server, pytest.raises(UnsupportedFeatureError, match="how large its vocabulary"):
        connect(server.base_url, tokenizer="server")
    with serving(model, LlamaServer) as server, connect(server.base_url, tokenizer="server") as remote:
        assert remote.tokenize(TEXT) == model.tokenize(TEXT)
        assert remote.complete_sync(TEXT, max_tokens=3, temperature=0.0)


@pytest.mark.parametrize("tokenizer", ["folder", "server"])
def test_tokens_of_split_characters_that_llama_cpp_omits_are_restored(
    model: LanguageModel, folder: Path, tokenizer: str
) -> None:
    class Garbled(SplitCharacters):
        answers = "a\ufffd"  # the count below claims more tokens than this text has

        async def parts(self, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
            async for part in super().parts(body):
                yield {**part, "tokens_predicted": part["tokens_predicted"] + 9 * (part["content"] == "\ufffd")}

    named = folder if tokenizer == "folder" else "server"
    with serving(model, SplitCharacters) as server, connect(server.base_url, tokenizer=named) as remote:
        records = list(remote.generate_sync([5, 6], max_tokens=20))
        assert [record.token_id for record in records] == model.tokenize("a世🙂b")
        assert "".join(record.text for record in records) == "a世🙂b"
        assert [record.logprob for record in records] == [-1.0, *(None,) * 2, -1.0, *(None,) * 3, -1.0, -1.0]
    with serving(model, Garbled) as server, connect(server.base_url, tokenizer=named) as remote:
        answer = remote.generate_sync([5, 6], max_tokens=20)
        assert next(answer).text == "a"
        with pytest.raises(RemoteError, match="are missing"):
            list(answer)


@pytest.mark.parametrize(("window", "of_llama"), [(0, -1), (9, 9)])
def test_the_penalty_window_is_sent_in_the_convention_of_each_server(
    model: LanguageModel, folder: Path, window: int, of_llama: int
) -> None:
    options = GenerationOptions(max_tokens=2, sampling=SamplingOptions(repetition_penalty=1.2, penalty_window=window))
    with serving(model, LlamaServer) as server, connect(server.base_url, tokenizer=folder) as remote:
        list(remote.generate_sync([5, 6], options))
        assert server.bodies("/completion")[-1]["repeat_last_n"] == of_llama
    with serving(model, MlxServer) as server, connect(server.base_url, tokenizer=folder) as remote:
        list(remote.generate_sync([5, 6], options))
        assert server.bodies("/v1/completions")[-1]["repetition_context_size"] == window


def test_a_server_that_takes_only_text_needs_a_local_tokenizer(model: LanguageModel) -> None:
    with (
        serving(model, MlxServer) as server,
        pytest.raises(UnsupportedFeatureError, match="get that model by"),
    ):
        connect(server.base_url)


def test_sglang_gives_log_probabilities_of_chosen_ids(model: LanguageModel, folder: Path) -> None:
    with serving(model, SGLangServer) as server, connect(server.base_url, tokenizer=folder) as remote:
        ours, theirs = model.top_logprobs_sync([1, 2], 2, chosen=[9]), remote.top_logprobs_sync([1, 2], 2, chosen=[9])
        assert theirs.chosen == pytest.approx(ours.chosen, abs=1e-6)


@pytest.mark.parametrize(("kind", "path"), [("llama.cpp", "/props"), ("sglang", "/get_model_info")])
def test_a_named_dialect_tolerates_an_info_page_of_another_shape(
    model: LanguageModel, folder: Path, kind: str, path: str
) -> None:
    async def listed(writer: asyncio.StreamWriter) -> None:
        send(writer, 200, [1])

    with serving(model, KINDS[kind]) as server:
        server.raw[path] = listed
        with connect(server.base_url, dialect=kind, tokenizer=folder) as remote:
            assert remote.info.backend == kind


def test_a_dialect_can_be_named_and_a_wrong_one_is_refused(server: Server, folder: Path) -> None:
    with connect(server.base_url, dialect="openai", tokenizer=folder) as remote:
        assert remote.info.backend == "openai"
    with pytest.raises((InvalidRequestError, RemoteError)):
        connect(server.base_url, dialect="sglang", tokenizer=folder)
