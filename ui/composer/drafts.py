"""Messages that are being written, by session, with the files that go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ui.port import TextFile
from ui.widgets.visible import utf16_length


def with_files(text: str, files: Sequence[TextFile]) -> str:
    """The message as it is sent: the files stand before what was written."""
    blocks = [f"[{file.name}]\n{file.text.rstrip()}\n[end of {file.name}]" for file in files]
    return "\n\n".join([*blocks, text]) if blocks else text


NEW = 0  # the key of a session that has no turns yet: its id is forgotten if it stays empty
MOST_KEPT = 50  # sessions whose drafts outlive the window, the latest


class Draft(Struct, frozen=True):
    """A text, and which turn it is another version of."""

    text: str
    replaces: int | None = None  # the node id of the user's turn
    version: str = ""  # the words that say so
    cursor: int = 0  # QChars
    files: tuple[TextFile, ...] = ()  # that go with it
    before: Draft | None = None  # what was being written when the version was begun

    @property
    def whole(self) -> Draft:
        """As one message, with all that was being written before it."""
        return self if self.before is None else joined(self, self.before.whole)

    def in_copy(self, nodes: Mapping[int, int]) -> Draft:
        """The same in a copy of the session, whose nodes have other numbers."""
        before = None if self.before is None else self.before.in_copy(nodes)
        return replace(self, replaces=None if self.replaces is None else nodes.get(self.replaces), before=before)


def joined(first: Draft, second: Draft) -> Draft:
    """Both as one message, where there is room for one."""
    texts = [draft.text for draft in (first, second) if draft.text.strip()]
    files = tuple(dict.fromkeys((*first.files, *second.files)))
    return Draft("\n\n".join(dict.fromkeys(texts)), cursor=first.cursor, files=files)


def put(held: dict[int, Draft], key: int, draft: Draft) -> None:
    """Adds a draft; a blank one is none. For a session without turns, which two windows may have, both are held as one."""
    before = held.pop(key, None)
    if key == NEW and before is not None:
        draft = joined(draft, before)
    if draft.text.strip() or draft.files or draft.before:
        held[key] = draft


class Drafts:
    """The drafts of all windows. Keys are session ids, or `NEW`.

    Attributes:
        shown: The draft that each window shows, and its key; no other method knows of these.
    """

    def __init__(self, kept: Iterable[Sequence[int | str]] = ()) -> None:
        self.shown: list[Callable[[], tuple[int, Draft]]] = []
        self._held: dict[int, Draft] = {}  # of the sessions that are shown in no window
        for key, *texts in kept:
            text, *rest = map(str, texts)
            files = tuple(TextFile(name, said) for name, said in zip(rest[::2], rest[1::2], strict=False))
            self.put(int(key), Draft(text, cursor=utf16_length(text), files=files))

    def put(self, key: int, draft: Draft) -> None:
        """Keeps a draft that is no longer shown."""
        put(self._held, key, draft)

    def take(self, key: int) -> Draft:
        """The draft of a session, which is shown from now on."""
        return self._held.pop(key, Draft(""))

    def attach(self, key: int, file: TextFile) -> None:
        """Adds a file that was still being read when its session was closed."""
        draft = self._held.get(key, Draft(""))
        self.put(key, replace(draft, files=tuple(dict.fromkeys((*draft.files, file)))))

    def detach(self, key: int, file: TextFile) -> None:
        """Removes a file that was pinned meanwhile."""
        draft = self._held.get(key, Draft(""))
        self.put(key, replace(draft, files=tuple(held for held in draft.files if held != file)))

    def drop(self, key: int, text: str) -> None:
        """Forgets a draft that says just that: it was sent."""
        held = self._held.get(key)
        if held is not None and with_files(held.text, held.files) == text:
            del self._held[key]
            self.put(key, held.before or Draft(""))

    def kept(self) -> tuple[tuple[int | str, ...], ...]:
        """For the next window: each key, its text, and name and text of each file, the latest last; changes nothing."""
        held = dict(self._held)
        for shown in self.shown:
            put(held, *shown())
        rows: list[tuple[int | str, ...]] = []
        for key, draft in held.items():
            whole = draft.whole
            if whole.text or whole.files:
                rows.append((key, whole.text, *(part for file in whole.files for part in (file.name, file.text))))
        return tuple(rows[-MOST_KEPT:])
