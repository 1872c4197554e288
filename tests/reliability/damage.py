"""Flipped bits and truncated files: damage is always named, intact rows are read, damaged rows are never returned."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from storage import BlockFile, SessionStore, SessionTree, StoreDamagedError, StoreError, salvage
from tests.reliability.suite import Order, Tally
from tests.storage.blocks.helpers import BUDGET, chain, expected, keys
from tests.storage.helpers import chat, with_store

SESSIONS = 6
PATHS = [("a", "b", str(n), "tip") for n in range(6)]
KB = 1024


def flipped(whole: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """The file with one bit flipped, and the name of the bit."""
    chance = random.Random(seed)
    for _ in range(count):
        at, bit = chance.randrange(len(whole)), chance.randrange(8)
        yield f"bit {bit} of byte {at:,}", whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]


def truncated(whole: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """The file without its end: in half of the cases cut at a page border, as file systems lose pages."""
    chance = random.Random(seed)
    for number in range(count):
        at = (number * len(whole) // count) & ~4095 if number % 2 else chance.randrange(len(whole))
        yield f"cut to {at:,} bytes", whole[:at]


# ---- the sessions file --------------------------------------------------------------------------------------------------


async def fill(store: SessionStore) -> None:
    """Some sessions, and one of each other kind of stored data."""
    for i in range(SESSIONS):
        await chat(store, f"chat {i}", tokens=60)
    await store.save_vocabulary("digest", [b"token"] * 50)
    await store.set_setting("theme", "dark")


async def everything(store: SessionStore) -> object:
    """Everything of the store that a user can see."""
    seen = [await read(store, row.id) for row in await store.sessions()]
    return seen, [[row.id for row in await store.sessions(word)] for word in ("answer", "where", "chat")]


async def read(store: SessionStore, session_id: int) -> tuple[SessionTree, dict[int, list[dict[str, bytes]]]]:
    """Everything of one session."""
    tree = await store.load_session(session_id)
    tokens = await store.load_tokens([node.id for node in tree.nodes])
    return tree, {k: [{n: c.tobytes() for n, c in t.columns.items()} for t in v] for k, v in tokens.items()}


async def judge(store: SessionStore, sound: object) -> str:
    """The visible contents of a store on a damaged file; fails if they have changed and `verify` names nothing."""
    named = bool(await store.verify())
    try:
        same = await everything(store) == sound
    except StoreError:
        assert named, "a part cannot be read, and is not named"
        return "named, a part cannot be read"
    assert same or named, "something else is shown, and nothing is named"
    return ("named, nothing shows" if same else "named") if named else "no effect"


async def titles(store: SessionStore) -> dict[str, object]:
    """Every listed session by its title; the type of the error if it cannot be read."""
    found: dict[str, object] = {}
    for row in await store.sessions():
        try:
            tree, tokens = await read(store, row.id)
            said = [(node.role, node.text, node.status, node.token_count, node.damaged) for node in tree.nodes]
            found[row.title] = (said, list(tokens.values()))
        except StoreError as error:
            found[row.title] = type(error).__name__
    return found


def hurt(copy: Path, sound: dict[str, object]) -> tuple[str, list[str]]:
    """The result of opening a damaged file, and the changed sessions; fails if one of them is not named."""
    try:
        store = SessionStore.open(copy)
    except StoreError:  # then the readable rows go into a new file, see `app.rescue`
        return "refused and salvaged", salvaged(copy, sound)
    try:
        now, named = asyncio.run(_look(store))
    finally:
        store.close_sync()
    lost = [title for title, said in sound.items() if now.get(title) != said]
    assert set(lost) <= named, f"{lost} are hurt, {named} are named"
    return "opened", lost


def salvaged(copy: Path, sound: dict[str, object]) -> list[str]:
    """The changed sessions in the file that is salvaged from the readable rows."""
    salvage(copy)
    now = with_store(copy, titles)
    return [title for title, said in sound.items() if now.get(title) != said]


async def _look(store: SessionStore) -> tuple[dict[str, object], set[str | None]]:
    """The contents of every session, and the titles of those that `verify` names; a damaged title counts as the original."""
    named = {row.session_id for row in await store.verify()}
    now = await titles(store)
    before = {row.id: f"chat {row.id - 1}" for row in await store.sessions()}
    return now, {before.get(number) for number in named if number is not None}


def flips_of_sessions(order: Order) -> Tally:
    """One bit at a time: visible damage is named, and at most one session is damaged (by an index: after salvage)."""

    def act(copy: Path, sound: tuple[object, dict[str, object]]) -> str:
        content = copy.read_bytes()
        try:
            store = SessionStore.open(copy)
        except StoreError:
            outcome = "refused"
        else:
            outcome = asyncio.run(judge(store, sound[0]))
            store.close_sync()
        for file in copy.parent.glob(f"{copy.name}*"):
            file.unlink()
        copy.write_bytes(content)
        _, lost = hurt(copy, sound[1])
        if len(lost) > 1:
            copy.write_bytes(content)
            lost = salvaged(copy, sound[1])
            outcome += ", salvaged"
        assert len(lost) <= 1, f"{outcome}, and {lost} are hurt"
        return outcome

    return _sessions(order, flipped, act)


def truncations_of_sessions(order: Order) -> Tally:
    """Cut anywhere: refused by name or opened with the intact rows; no new text appears."""

    def act(copy: Path, sound: tuple[object, dict[str, object]]) -> str:
        try:
            outcome, lost = hurt(copy, sound[1])
        except StoreDamagedError:
            return "refused, and nothing can be read"
        return f"{outcome}, {'none' if not lost else 'all' if len(lost) == SESSIONS else 'some'} hurt"

    return _sessions(order, truncated, act)


def _sessions(
    order: Order,
    spoil: Callable[[bytes, int, int], Iterator[tuple[str, bytes]]],
    act: Callable[[Path, tuple[object, dict[str, object]]], str],
) -> Tally:
    tally, path = Tally(), order.folder / "sessions.sqlite3"
    with_store(path, fill)
    whole, sound = path.read_bytes(), (with_store(path, everything), with_store(path, titles))
    for number, (what, content) in enumerate(spoil(whole, order.count, order.seed)):
        folder = order.folder / f"{number}"
        folder.mkdir()
        copy = folder / "sessions.sqlite3"
        copy.write_bytes(content)
        tally.attempt(what, lambda copy=copy: act(copy, sound))  # type: ignore[misc]  # called at once
    return tally


# ---- the block file -----------------------------------------------------------------------------------------------------


def fill_blocks(file: Path) -> bytes:
    """A block file with branches and a pin; its content."""
    with BlockFile(file, BUDGET) as store:
        for path in PATHS:
            store.put(chain(*path, nbytes=9 * KB))
        store.pin("chat", keys(*PATHS[0]))
    return file.read_bytes()


def use_blocks(file: Path) -> str:
    """Uses the file as an engine does; fails on a wrong byte. Returns the detected damage."""
    with BlockFile(file, BUDGET) as store:
        complete = True
        for path in PATHS:
            told = store.leading(keys(*path))
            got = store.get(keys(*path))
            assert got == expected(*path, nbytes=9 * KB)[: len(got)], "a wrong byte was given out"
            complete = complete and len(got) == len(path) == told
        damaged = store.stats().damaged
        for path in PATHS:  # missing blocks are recomputed and saved again
            store.put(chain(*path, nbytes=9 * KB))
            assert store.get(keys(*path)) == expected(*path, nbytes=9 * KB)
        store.evict(20 * KB)
        damaged = max(damaged, store.stats().damaged)
    if file.with_stem("blocks.damaged").exists() or list(file.parent.glob("blocks.foreign*")):
        for kept in file.parent.glob("blocks.*.sqlite3"):
            kept.unlink()
        return "moved aside and made anew"
    return "dropped and named" if damaged else "no effect" if complete else "forgotten"


def flips_of_blocks(order: Order) -> Tally:
    """One bit at a time: a block is returned unchanged, or not at all."""
    return _blocks(order, flipped)


def truncations_of_blocks(order: Order) -> Tally:
    """The same, cut anywhere."""
    return _blocks(order, truncated)


def _blocks(order: Order, spoil: Callable[[bytes, int, int], Iterator[tuple[str, bytes]]]) -> Tally:
    tally, file = Tally(), order.folder / "blocks.sqlite3"
    heard = Heard()
    whole = fill_blocks(file)
    for what, content in spoil(whole, order.count, order.seed):
        file.write_bytes(content)

        def act() -> str:
            heard.records.clear()
            outcome = use_blocks(file)
            assert bool(heard.records) == (outcome not in ("no effect", "forgotten")), f"{outcome}: {heard.records}"
            return outcome

        tally.attempt(what, act)
    logging.getLogger().removeHandler(heard)
    return tally


class Heard(logging.Handler):
    """The logged warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())
