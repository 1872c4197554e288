"""Unsent messages by session, with their attached files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ui.port import TextFile
from ui.widgets.visible import utf16_length


def with_files(text: str, files: Sequence[TextFile]) -> str:
    """The message as it is sent: the files, then the text."""
    blocks = [f"[{file.name}]\n{file.text.rstrip()}\n[end of {file.name}]" for file in files]
    return "\n\n".join([*blocks, text]) if blocks else text


NEW = 0  # the key of a session that has no turns yet: its id is forgotten if it stays empty
MOST_KEPT = 50  # the latest drafts, which are stored for the next window


class MessageDraft(Struct, frozen=True):
    """An unsent message, or another version of a user's turn."""

    text: str
    replaces: int | None = None  # the node id of the user's turn
    version: str = ""  # the notice about it
    cursor: int = 0  # QChars
    files: tuple[TextFile, ...] = ()  # attached
    before: MessageDraft | None = None  # the draft that the version interrupted

    @property
    def whole(self) -> MessageDraft:
        """One message made of this draft and the drafts that it interrupted."""
        return self if self.before is None else joined(self, self.before.whole)

    def in_copy(self, nodes: Mapping[int, int]) -> MessageDraft:
        """The same draft in a copy of the session; `nodes` maps old node ids to new ones."""
        before = None if self.before is None else self.before.in_copy(nodes)
        return replace(self, replaces=None if self.replaces is None else nodes.get(self.replaces), before=before)


def joined(first: MessageDraft, second: MessageDraft) -> MessageDraft:
    """Both drafts as one message."""
    texts = [draft.text for draft in (first, second) if draft.text.strip()]
    files = tuple(dict.fromkeys((*first.files, *second.files)))
    return MessageDraft("\n\n".join(dict.fromkeys(texts)), cursor=first.cursor, files=files)


def put(held: dict[int, MessageDraft], key: int, draft: MessageDraft) -> None:
    """Stores a draft unless it is blank. Drafts for `NEW`, which two windows may have, are joined."""
    before = held.pop(key, None)
    if key == NEW and before is not None:
        draft = joined(draft, before)
    if draft.text.strip() or draft.files or draft.before:
        held[key] = draft


class UnsentDrafts:
    """The drafts of all windows. Keys are session ids, or `NEW`.

    Attributes:
        shown: For each window a function that returns its shown draft with its key; only `kept` reads them.
    """

    def __init__(self, kept: Iterable[Sequence[int | str]] = ()) -> None:
        self.shown: list[Callable[[], tuple[int, MessageDraft]]] = []
        self._held: dict[int, MessageDraft] = {}  # of sessions that no window shows
        for key, *texts in kept:
            text, *rest = map(str, texts)
            files = tuple(map(TextFile, rest[::2], rest[1::2]))
            self.put(int(key), MessageDraft(text, cursor=utf16_length(text), files=files))

    def put(self, key: int, draft: MessageDraft) -> None:
        """Stores a draft that is no longer shown."""
        put(self._held, key, draft)

    def take(self, key: int) -> MessageDraft:
        """Removes and returns the draft of a session, to show it."""
        return self._held.pop(key, MessageDraft(""))

    def attach(self, key: int, file: TextFile) -> None:
        """Attaches a file that was still being read when its session was closed."""
        draft = self._held.get(key, MessageDraft(""))
        self.put(key, replace(draft, files=tuple(dict.fromkeys((*draft.files, file)))))

    def detach(self, key: int, file: TextFile) -> None:
        """Removes a file that was pinned in the meantime."""
        draft = self._held.get(key, MessageDraft(""))
        self.put(key, replace(draft, files=tuple(held for held in draft.files if held != file)))

    def drop(self, key: int, text: str) -> None:
        """Forgets a draft that is exactly `text`, as it was sent."""
        held = self._held.get(key)
        if held is not None and with_files(held.text, held.files) == text:
            del self._held[key]
            self.put(key, held.before or MessageDraft(""))

    def kept(self) -> tuple[tuple[int | str, ...], ...]:
        """All drafts for the next window: key, text, then name and text of each file; the latest last."""
        held = dict(self._held)
        for shown in self.shown:
            put(held, *shown())
        rows: list[tuple[int | str, ...]] = []
        for key, draft in held.items():
            whole = draft.whole
            if whole.text or whole.files:
                rows.append((key, whole.text, *(part for file in whole.files for part in (file.name, file.text))))
        return tuple(rows[-MOST_KEPT:])
