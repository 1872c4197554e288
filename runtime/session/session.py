"""`Session`: a path that is prefilled, continued, cut and forked."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from runtime.errors import InvalidRequestError
from runtime.info import OnProgress
from runtime.session.blocking import blocking
from runtime.session.filling import Filling
from runtime.session.snapshot import Snapshot
from runtime.session.status import (
    ContextReport,
    Truncation,
    byte_hash,
    token_hash,
)
from runtime.session.stepping import Stepping
from runtime.session.work import Work


class Session(Filling, Stepping):
    """A path of tokens on one model, opened by `LanguageModel.open_session`. An (async) context manager.

    Coroutines have blocking twins `<name>_sync`; everything else never blocks. Works on any loop and in any thread, but
    does one thing at a time: a second caller gets `SessionBusyError`, not a queue. `fork` is allowed at any time.

    Raises (every member that asks for something):
        SessionBusyError: Something else goes on in this session.
        SessionClosedError: It, or its model, was closed.
        SessionFatalError: The engine died under it, or something unforeseen failed; `__cause__` is the first fault. Its pin
            is let go. Whoever meets the fault itself gets that.
        ManifestMismatchError: The model's settings are not those that the session was opened with.
        ContextOverflowError: More tokens than the session may hold; nothing was changed.
        InvalidRequestError: Bad ids, texts or options; nothing was changed.
    """

    def explain_context(self) -> ContextReport:
        """What stands in it, and where reuse ended.

        Raises:
            SessionFatalError: A fatal fault came before.
        """
        if not self.closed:
            self._guard.check()
        path = self._path
        return ContextReport(
            resident=len(path),
            prefix=path.prefix,
            limit=self.limit,
            available=self.limit - len(path),
            byte_hash=byte_hash([self.model.decode_token(token) for token in path.ids]),
            token_hash=token_hash(path.ids),
            manifest_digest=self.manifest.digest,
            segments=path.segments(),
            closed=self.closed,
            divergence=self._standing.divergence,
            adapters=self.manifest.spans(path.ids),
        )

    def snapshot(self) -> Snapshot:
        """Everything that is needed to go on elsewhere, without its KV. Never blocks; readable after the end too."""
        path, standing = self._path.copy(), self._standing
        return Snapshot(
            ids=tuple(path.ids),
            text=b"".join(self.model.decode_token(token) for token in path.ids),
            marks=path.marks,
            prefix=path.prefix,
            messages=standing.said.messages if standing.said is not None else (),
            manifest=self.manifest,
            top_k=self.config.top_k,
            limit=self.config.limit,
            options=self.config.options,
            generation=standing.generation,
            blocks=self._block_names(path.ids),
        )

    def _block_names(self, ids: list[int]) -> tuple[str, ...]:
        """Names of the path's KV blocks, where the engine keeps some."""
        if not self.model.info.options.get("blocks"):
            return ()
        return tuple(key.hex() for key in self.manifest.block_keys(ids))

    # ---- back and aside -----------------------------------------------------------------------------------------------

    async def truncate(self, n: int, *, on_progress: OnProgress | None = None) -> Truncation:
        """The first `n` tokens stay.

        On recurrent models the state is kept at checkpoints only: what lies between the last one and `n` is computed again
        now, and counted.
        """
        with self._entered("truncate"):
            if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= len(self._path):
                raise InvalidRequestError(f"truncate: {n!r} tokens cannot stay of the {len(self._path):,} that are resident")
            dropped = self._path.truncate(n)
            if dropped:
                self._reopen()
            self._standing.hold.move(self._path.ids)
            work = Work()
            if n and dropped and "recurrent" in self.model.info.attention_kinds:
                work = await self._fill(self._path.ids, n, on_progress, scored=False)
                self._keep()
            return Truncation(n, dropped, work.computed, self.limit - n)

    def fork(self) -> Session:
        """Another session with the same tokens. No KV is copied: both read the same until they part."""
        self._guard.check()
        return Session(self.model, self.config, self._manifest_now, self._standing.fork())

    def close(self) -> None:
        """Lets its KV go (others may still use it); a running `decode` ends. Never blocks; a second call does nothing."""
        self._guard.close()

    async def close_async(self) -> None:
        """`close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def truncate_sync(self, n: int) -> Truncation:
        """`truncate`, blocking."""
        return blocking(self.truncate(n))
