"""The fake workbench's sessions: the list, branches, settings, files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from app.workbench.transfer.exports import EXPORTS
from tests.ui.fake_state import DEFAULTS, IMPORTED, FakeState
from tests.ui.spoken import run_of
from ui import (
    AdapterChoice,
    AdapterLine,
    AnswerFormat,
    BranchDiff,
    ExportFormat,
    FolderView,
    Guess,
    ImportResult,
    OnTransfer,
    OptionView,
    Refusal,
    RowText,
    SessionChanged,
    SessionSetup,
    SessionSummary,
    SessionView,
    TextFile,
    TrashedSession,
    TreeRow,
    TurnStatus,
)


class _Group:
    def __init__(self, bench: FakeState) -> None:
        self._bench = bench


class FakeSessions(_Group):
    async def list(self, query: str = "") -> Sequence[SessionSummary]:
        self._bench.note("sessions", query)
        held = [
            s
            for s in self._bench.summaries.values()
            if s.session_id not in self._bench.trash and query.lower() in s.title.lower()
        ]
        return sorted(held, key=lambda s: (not s.pinned, -s.updated))

    async def new(self) -> SessionView:
        self._bench.note("new_session")
        view = SessionView(self._bench.new_id(), "", (), ())
        self._bench.views[view.session_id] = view
        return view

    async def rename(self, session_id: int, title: str) -> None:
        self._bench.note("rename_session", session_id, title)
        self._bench.summaries[session_id] = replace(self._bench.summaries[session_id], title=title)

    async def pin(self, session_id: int, pinned: bool) -> None:
        self._bench.note("pin_session", session_id, pinned)
        self._bench.summaries[session_id] = replace(self._bench.summaries[session_id], pinned=pinned)

    async def trash(self, session_id: int) -> bool:
        self._bench.note("trash_session", session_id)
        self._bench.trash.add(session_id)
        turns = self._bench.views[session_id].turns
        return bool(turns) and turns[-1].status is TurnStatus.STREAMING

    async def restore(self, session_id: int) -> None:
        self._bench.note("restore_session", session_id)
        self._bench.trash.discard(session_id)

    async def folders(self) -> Sequence[FolderView]:
        return list(self._bench.folder_views.values())

    async def create_folder(self, name: str) -> int:
        self._bench.note("create_folder", name)
        folder = FolderView(self._bench.new_id(), name)
        self._bench.folder_views[folder.folder_id] = folder
        return folder.folder_id

    async def rename_folder(self, folder_id: int, name: str) -> None:
        self._bench.note("rename_folder", folder_id, name)
        self._bench.folder_views[folder_id] = FolderView(folder_id, name)

    async def remove_folder(self, folder_id: int) -> None:
        self._bench.note("remove_folder", folder_id)
        del self._bench.folder_views[folder_id]

    async def move(self, session_id: int, folder_id: int | None) -> None:
        self._bench.note("move_session", session_id, folder_id)
        self._bench.summaries[session_id] = replace(self._bench.summaries[session_id], folder_id=folder_id)

    async def tag(self, session_id: int, tags: Sequence[str]) -> None:
        self._bench.note("tag_session", session_id, *tags)
        self._bench.summaries[session_id] = replace(self._bench.summaries[session_id], tags=tuple(tags))

    async def arrange(self, session_ids: Sequence[int]) -> None:
        self._bench.note("arrange_sessions", *session_ids)

    async def trashed(self) -> Sequence[TrashedSession]:
        return [TrashedSession(each, self._bench.summaries[each].title, 30) for each in sorted(self._bench.trash)]

    async def empty_trash(self, session_ids: Sequence[int]) -> int:
        self._bench.note("empty_trash", *session_ids)
        for each in session_ids:
            self._bench.trash.discard(each)
            del self._bench.summaries[each]
        return len(session_ids)

    async def open(self, session_id: int) -> SessionView:
        self._bench.note("open_session", session_id)
        return self._bench.views[session_id]

    async def show_earlier(self, session_id: int) -> SessionView:
        self._bench.note("show_earlier", session_id)
        view = self._bench.views[session_id]
        self._bench.views[session_id] = replace(view, turns=(*self._bench.before.pop(session_id, ()), *view.turns), earlier=0)
        return self._bench.views[session_id]


class FakeBranches(_Group):
    async def tree(self, session_id: int) -> Sequence[TreeRow]:
        self._bench.note("tree", session_id)
        view, above = self._bench.views[session_id], [-1]
        found: list[TreeRow] = []
        for place, row in enumerate(view.branches):
            del above[row.depth + 1 :]
            found.append(
                TreeRow(
                    node_id=row.node_id,
                    start=row.start,
                    end=row.node_id,
                    parent=above[-1],
                    depth=row.depth,
                    role="assistant" if row.logprob is not None else "user",
                    head=place,
                    beside=True,
                    before=row.before,
                    name=row.name,
                    given=row.given,
                    logprob=row.logprob,
                    on_path=row.on_path,
                    current=row.current,
                    pruned=row.pruned,
                    bookmarked=(row.node_id, row.start) in self._bench.bookmarks,
                )
            )
            above.append(place)
        ways = [sum(each.parent == place for each in found) for place in range(len(found))]
        return [row._replace(ways=count) for row, count in zip(found, ways, strict=True)]

    async def bookmark(self, session_id: int, node_id: int, start: int, marked: bool) -> None:
        self._bench.note("bookmark", session_id, node_id, start, marked)
        (self._bench.bookmarks.add if marked else self._bench.bookmarks.discard)((node_id, start))
        self._bench.emit(SessionChanged(self._bench.views[session_id]))

    async def row_texts(self, session_id: int, rows: Sequence[TreeRow]) -> Sequence[RowText]:
        self._bench.note("row_texts", session_id, *(row.key for row in rows))
        turns = {turn.node_id: turn.run for turn in self._bench.views[session_id].turns}
        words = (re.findall(r"\s*\S+", row.name) for row in rows)
        return [RowText(turns.get(row.node_id) or run_of(self._bench.vocabulary, said), row.logprob)
                for row, said in zip(rows, words, strict=True)]  # fmt: skip

    async def find_rows(self, session_id: int, words: str) -> Sequence[tuple[int, int]]:
        self._bench.note("find_rows", session_id, words)
        return [row.key for row in await self.tree(session_id) if words.lower() in f"{row.given} {row.name}".lower()]

    async def earlier_texts(self, session_id: int) -> Sequence[tuple[int, str, str]]:
        self._bench.note("earlier_texts", session_id)
        return [(turn.node_id, turn.role, turn.run.text) for turn in self._bench.before.get(session_id, ())]

    async def show_turn(self, session_id: int, node_id: int) -> SessionView:
        self._bench.note("show_turn", session_id, node_id)
        view, before = self._bench.views[session_id], self._bench.before.get(session_id, ())
        if any(turn.node_id == node_id for turn in before):
            self._bench.views[session_id] = replace(view, turns=(*before, *view.turns), earlier=0)
            return self._bench.views[session_id]
        at = next(i for i, turn in enumerate(view.turns) if node_id in turn.variants)
        turns = (*view.turns[:at], replace(view.turns[at], node_id=node_id))
        self._bench.views[session_id] = replace(view, turns=turns)
        return self._bench.views[session_id]

    async def compare(self, session_id: int, left: int, right: int) -> BranchDiff:
        self._bench.note("compare", session_id, left, right)
        return self._bench.diff

    def has(self, session_id: int, node_id: int) -> bool:
        return node_id not in self._bench.gone

    async def select(self, session_id: int, node_id: int, *, as_before: bool = False) -> SessionView:
        self._bench.note("select", session_id, node_id, *["as before"] * as_before)
        view = self._bench.views[session_id]
        rows = tuple(replace(row, current=row.node_id == node_id) for row in view.branches)
        at = next((i for i, turn in enumerate(view.turns) if node_id in turn.variants), len(view.turns) - 1)
        self._bench.paths[view.turns[-1].node_id] = view.turns
        variants = dict.fromkeys((*view.turns[at].variants, node_id))  # a column is a variant of the last turn
        turns = (*view.turns[:at], replace(view.turns[at], node_id=node_id, variants=tuple(variants)))
        self._bench.views[session_id] = replace(view, branches=rows, turns=self._bench.paths.get(node_id, turns))
        return self._bench.views[session_id]

    async def rename(self, session_id: int, node_id: int, start: int, name: str) -> None:
        self._bench.note("rename_branch", session_id, node_id, start, name)
        view = self._bench.views[session_id]
        rows = tuple(replace(r, given=name) if (r.node_id, r.start) == (node_id, start) else r for r in view.branches)
        self._bench.views[session_id] = replace(view, branches=rows)
        self._bench.emit(SessionChanged(self._bench.views[session_id]))

    async def prune(self, session_id: int, node_id: int, start: int, pruned: bool) -> None:
        self._bench.note("prune", session_id, node_id, start, pruned)
        view = self._bench.views[session_id]
        rows = tuple(replace(r, pruned=pruned) if (r.node_id, r.start) == (node_id, start) else r for r in view.branches)
        self._bench.views[session_id] = replace(view, branches=rows)
        self._bench.emit(SessionChanged(self._bench.views[session_id]))


class FakeSetup(_Group):
    async def get_adapter(self, session_id: int, wanted: str) -> SessionSetup:
        self._bench.note("get_adapter", session_id, wanted)
        await self._bench.pause()
        line = AdapterLine(AdapterChoice(f"/models/{wanted}", wanted), "lora, rank 8", loaded=True)
        return self._bench.keep_setup(session_id, adapters=[*self._bench.held_setup(session_id).adapters, line])

    async def view(self, session_id: int) -> SessionSetup:
        return self._bench.held_setup(session_id)

    async def set_option(self, session_id: int, name: str, value: object) -> SessionSetup:
        self._bench.note("set_option", session_id, name, value)
        said = OptionView(name, value, "session", value) if value is not None else OptionView(name, *DEFAULTS[name])
        return self._bench.keep_setup(
            session_id, options=[said if o.name == name else o for o in self._bench.held_setup(session_id).options]
        )

    async def choose_preset(self, session_id: int, name: str) -> SessionSetup:
        self._bench.note("choose_preset", session_id, name)
        return self._bench.keep_setup(session_id, preset=name)

    async def save_preset(self, session_id: int, name: str) -> SessionSetup:
        self._bench.note("save_preset", session_id, name)
        return self._bench.keep_setup(
            session_id, preset=name, presets={**self._bench.held_setup(session_id).presets, name: True}
        )

    async def delete_preset(self, session_id: int, name: str) -> SessionSetup:
        self._bench.note("delete_preset", session_id, name)
        left = {held: own for held, own in self._bench.held_setup(session_id).presets.items() if held != name}
        return self._bench.keep_setup(session_id, preset="", presets=left)

    async def set_system(self, session_id: int, text: str) -> SessionSetup:
        self._bench.note("set_system", session_id, text)
        return self._bench.keep_setup(session_id, system=text)

    async def set_tools(self, session_id: int, source: str) -> SessionSetup:
        self._bench.note("set_tools", session_id, source)
        return self._bench.keep_setup(session_id, tools=source)

    async def check_tools(self, source: str) -> tuple[Sequence[str], str]:
        self._bench.calls.append(("check_tools", source))
        return (["weather"], "") if "weather" in source else ((), "the definitions are no JSON")

    async def set_format(self, session_id: int, answer_format: AnswerFormat) -> SessionSetup:
        self._bench.note("set_format", session_id, answer_format)
        return self._bench.keep_setup(session_id, answer_format=answer_format)

    async def check_format(self, answer_format: AnswerFormat) -> str:
        self._bench.calls.append(("check_format", answer_format))
        if self._bench.slow_checks is not None:
            await self._bench.slow_checks.wait()
        return (
            "the regex cannot be used: unclosed group"
            if answer_format.source.count("(") > answer_format.source.count(")")
            else ""
        )

    async def add_adapter(self, session_id: int, folder: str) -> SessionSetup:
        self._bench.note("add_adapter", session_id, folder)
        if not Path(folder, "adapter_config.json").exists():  # noqa: ASYNC240  # a test may wait for it
            raise Refusal(f"{folder} holds no adapter")
        line = AdapterLine(AdapterChoice(folder, Path(folder).name), "lora, rank 8, 12 modules, 3.1 MB", loaded=True)
        return self._bench.keep_setup(session_id, adapters=[*self._bench.held_setup(session_id).adapters, line])

    async def set_adapters(self, session_id: int, stack: Sequence[AdapterChoice]) -> SessionSetup:
        self._bench.note("set_adapters", session_id, tuple(stack))
        known = {line.choice.folder: line for line in self._bench.held_setup(session_id).adapters}
        return self._bench.keep_setup(session_id, adapters=[replace(known[choice.folder], choice=choice) for choice in stack])

    async def set_guess(self, session_id: int, guess: Guess) -> SessionSetup:
        self._bench.note("set_guess", session_id, guess)
        return self._bench.keep_setup(session_id, guess=guess)

    async def pin_files(self, session_id: int, files: Sequence[TextFile]) -> SessionSetup:
        self._bench.note("pin_files", session_id, tuple(files))
        return self._bench.keep_setup(session_id, files=tuple(files))


class FakeTransfers(_Group):
    @property
    def formats(self) -> Sequence[ExportFormat]:
        return [exporter.format for exporter in EXPORTS]

    async def export(self, session_id: int, form: str, path: Path, progress: OnTransfer) -> str:
        self._bench.note("export_session", session_id, form, path)
        await self._transferred(progress)
        return "it has no snapshot" if form == "portable" else ""

    async def import_file(self, path: Path, progress: OnTransfer) -> ImportResult:
        self._bench.note("import_file", path)
        await self._transferred(progress)
        return ImportResult((IMPORTED,), ("2 things were left out",), path.name.endswith(".kv.elsewise"))

    async def take_kv(self, session_ids: Sequence[int], path: Path, progress: OnTransfer) -> int:
        self._bench.note("take_kv", session_ids, path)
        await self._transferred(progress)
        return 1234

    async def _transferred(self, progress: OnTransfer) -> None:
        for done in range(3):
            await self._bench.pause()
            progress(done + 1, 3)
