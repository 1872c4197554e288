"""A conversation with the embedded model: every token of it is computed once."""

from __future__ import annotations

import pytest

from runtime import GenerationOptions, SamplingOptions, load

pytestmark = pytest.mark.slow
GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0))
QUESTIONS = ("Name a colour.", "And another one?", "Which of them is warmer?")


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_conversation_costs_each_token_once(backend: str) -> None:
    with load("smollm2", backend, threads=2) as model, model.open_session() as session:
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
