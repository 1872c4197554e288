"""Finding sessions by their title and by the text of any branch."""

from __future__ import annotations

import asyncio

import pytest

from storage import NewNode, SessionStore
from tests.storage.helpers import chat

TEXTS = {
    "marks": "what is very **important** here",
    "french": "Le café naïve d'été, Straße",
    "chinese": "我们可以去巴黎看看，然后回家。",
    "japanese": "京都でラーメンを食べる",
    "korean": "서울에서 만나요",
    "thai": "สวัสดีชาวโลก",
    "emoji": "sunny 🙂 day 👩‍💻 🫠",
    "code": 'if x->y && "quoted" OR NOT near(foo): C++',
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("cafe", "french"),
        ("CAFÉ", "french"),
        ("d'été", "french"),
        ("naiv", "french"),
        ("巴黎", "chinese"),
        ("黎", "chinese"),
        ("去巴黎看", "chinese"),
        ("巴黎 回家", "chinese"),
        ("ラーメン", "japanese"),
        ("京都", "japanese"),
        ("서울", "korean"),
        ("ชาว", "thai"),
        ("🙂", "emoji"),
        ("day 🫠", "emoji"),
        ("👩‍💻", "emoji"),
        ('"quoted"', "code"),
        ("NOT", "code"),
        ("->", "code"),
        ("near(foo", "code"),
        ('"', "code"),
        ("巴去", None),
        ("🙃", None),
        ("cafes", None),
        ("***", None),
        ("body:quoted*", None),
        ("cafe 巴黎", None),  # both words, but in different sessions
    ],
)
def test_a_query_finds_its_session(store: SessionStore, query: str, found: str | None) -> None:
    async def run() -> list[str]:
        for title, text in TEXTS.items():
            session = await store.create_session(title)
            await store.add_node(NewNode(session, None, "user", text))
        return [row.title for row in await store.sessions(query)]

    assert asyncio.run(run()) == ([found] if found else [])


@pytest.mark.parametrize(
    ("query", "found", "around"),
    [
        ("CAFÉ", "french", "cafe"),
        ("巴黎 回家", "chinese", "巴黎"),
        ("京都", "japanese", "京都"),
        ("#tag cafe", "french", "cafe"),
        ("very important", "marks", "very **important"),
        ("->", "code", None),  # a query of punctuation finds the session, but has no passage to show
    ],
)
def test_a_hit_has_the_matching_passage_and_its_surroundings(
    store: SessionStore, query: str, found: str, around: str | None
) -> None:
    async def run() -> None:
        ids = {}
        for title, text in TEXTS.items():
            ids[title] = session = await store.create_session(title)
            await store.add_node(NewNode(session, None, "user", text))
        hits = await store.search_hits(query)
        if around is None:
            assert hits == {}
            return
        assert list(hits) == [ids[found]]
        hit = hits[ids[found]]
        assert hit.words.lower().startswith(around[:3]) or "é" in hit.words
        assert len(hit.words) == len(around)
        assert hit.before + hit.words + hit.behind in TEXTS[found]

    asyncio.run(run())


def test_a_hit_is_in_the_latest_text_that_has_all_the_words(store: SessionStore) -> None:
    async def run() -> None:
        session, user, _ = await chat(store, "Holidays", text="Where should we go?")
        one = await store.add_node(
            NewNode(session, user, "assistant", "To Lisbon. " + "Then on. " * 50 + "When it rains, to Porto.")
        )
        other = await store.add_node(NewNode(session, user, "assistant", "To Porto"))
        assert (await store.search_hits("porto"))[session].node_id == other
        hit = (await store.search_hits("rain porto"))[session]
        assert (hit.node_id, hit.words) == (one, "rain")
        assert hit.before.endswith("Then on. When it ")
        assert hit.behind == "s, to Porto."
        assert len(hit.before) == 80
        await store.rename_session(session, "Journeys")
        assert await store.search_hits("journeys") == {}  # only the title has it
        assert await store.search_hits("") == {}

    asyncio.run(run())


def test_the_words_of_a_query_may_be_in_the_title_and_in_different_branches(store: SessionStore) -> None:
    async def run() -> None:
        session, user, _ = await chat(store, "Holidays", text="Where should we go?")
        await store.add_node(NewNode(session, user, "assistant", "to Lisbon when it rains"))
        for query in ("holi", "lisbon where", "holidays rains answer", "  ", ""):
            assert [row.id for row in await store.sessions(query)] == [session], query
        assert await store.sessions("lisbon porto") == []

    asyncio.run(run())


def test_renaming_a_session_and_finishing_an_answer_update_the_search(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("apples")
        node = await store.add_node(NewNode(session, None, "assistant", status="open"))
        await store.rename_session(session, "pears")
        await store.finish_node(node, finish_reason="eos", stats={}, text="plums")
        assert await store.sessions("apples") == []
        assert len(await store.sessions("pears plums")) == 1

    asyncio.run(run())
