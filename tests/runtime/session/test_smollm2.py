"""Conversations with the embedded model: every token is computed once."""

from __future__ import annotations

import json

import pytest

from runtime import GenerationOptions, Grammar, SamplingOptions, Snapshot, load

pytestmark = pytest.mark.slow
GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0))
QUESTIONS = ("Name a colour.", "And another one?", "Which of them is warmer?")


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_conversation_computes_each_token_once(backend: str) -> None:
    with load("smollm2", backend) as model, model.open_session() as session:
        chat: list[dict[str, str]] = []
        for question in QUESTIONS:
            chat.append({"role": "user", "content": question})
            status = session.ensure_messages_sync(chat)
            assert (status.dropped, session.explain_context().divergence) == (0, None)
            prompt = session.ids
            records = list(session.decode_sync(GREEDY))
            chat.append({"role": "assistant", "content": "".join(r.text for r in records if r.finish_reason != "eos")})
        # the last token was drawn, not pushed
        assert model.metrics().tokens_computed == len(session) - 1
        model.clear_cache()
        assert [r.token_id for r in model.generate_sync(prompt, GREEDY)] == [r.token_id for r in records]
        assert model.detokenize(session.ids).count("<|im_start|>assistant") == 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_json_answer_interrupted_at_each_token_continues_identically(backend: str) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 4}, "warm": {"type": "boolean"}},
        "required": ["city", "warm"],
        "additionalProperties": False,
    }
    grammar = Grammar.json_schema(schema)
    options = GenerationOptions(max_tokens=24, sampling=SamplingOptions(temperature=0.9), grammar=grammar, seed=11)
    with load("smollm2", backend) as model:
        with model.open_session() as session:
            session.ensure_messages_sync([{"role": "user", "content": "Name a city, as JSON."}])
            prompt = len(session)
            whole = list(session.decode_sync(options))
            ids = session.ids
        json.loads(b"".join(record.token_bytes for record in whole if record.finish_reason != "eos"))
        for cut in range(1, len(whole)):
            with model.open_session() as session:
                session.ensure_prefix_sync(ids[:prompt])
                stream = session.decode_sync(options)
                first = [next(stream) for _ in range(cut)]
                stream.close()
                stored = json.dumps(session.snapshot().to_mapping())
            with model.resume(Snapshot.from_mapping(json.loads(stored))) as again:
                rest = list(again.go_on_sync())
                assert again.ids == ids
                assert "".join(record.text for record in (*first, *rest)) == "".join(record.text for record in whole)
