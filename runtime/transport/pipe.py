"""`spawn` and `PipeTransport`: a model whose engine is another process."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from runtime.aio import AwaitedAnswer, FutureLike, Mailbox, RunStream, Turns
from runtime.api.language_model import LanguageModel
from runtime.api.progress import ShowProgress, reporting_load
from runtime.backends.registry import available_backends, dotted_backends
from runtime.beams import OnStep
from runtime.branches import Branches
from runtime.errors import InvalidRequestError, RuntimeFault
from runtime.info import OnProgress
from runtime.loading.progress import LoadProgress, OnLoad
from runtime.options.checking import check_callback
from runtime.options.load import LoadOptions
from runtime.records import TokenRun
from runtime.transport.arrays import unpack_pieces
from runtime.transport.base import TextFacts
from runtime.transport.child import EngineLimits, offload_limits
from runtime.transport.frames import MAX_PAYLOAD
from runtime.transport.link import EngineLink, Ticket, end_link, grace_within
from runtime.transport.messages import CallMessage, Load, Loaded, encode
from runtime.transport.methods import CAPABILITIES, METHODS


class PipeTransport:
    """Calls an engine process. Once that has ended, waiting and new calls get `EngineDiedError`.

    Args:
        link: The link to the process, which has loaded its model.
        loaded: The description of the model that the process sent.
    """

    capabilities = CAPABILITIES

    def __init__(self, link: EngineLink, loaded: Loaded) -> None:
        self._link, self._first = link, loaded
        self._turns: Turns[Ticket] = Turns(link.submit)
        texts = [text.decode("utf-8", "surrogatepass") for text in unpack_pieces(loaded.str_vocab)]
        self.text = TextFacts(
            loaded.eos_token_ids,
            loaded.chat_template,
            unpack_pieces(loaded.byte_vocab),
            lambda: texts,
            loaded.own_options,
            loaded.own_ends,
        )

    @property
    def state(self) -> Loaded:
        """The snapshots that the engine pushed last."""
        return self._link.state or self._first

    @property
    def pid(self) -> int:
        assert self._link.pid is not None  # it has loaded a model
        return self._link.pid

    @property
    def ended(self) -> RuntimeFault | None:
        return self._link.ended

    async def call(
        self, method: str, *, on_progress: OnProgress | None = None, on_step: OnStep | None = None, **arguments: Any
    ) -> Any:
        """Runs an operation that has one answer; a cancelled call is cancelled in the engine too."""
        check_callback(on_progress)
        check_callback(on_step, "on_step")
        self._check_answer(method, arguments)
        if METHODS[method].steps:
            arguments["watched"] = on_step is not None
        awaited: AwaitedAnswer[Any] = AwaitedAnswer(self._turns.inbox())
        listeners = {"on_progress": on_progress, "on_step": on_step}
        reports = {name: partial(awaited.report, each) for name, each in listeners.items() if each is not None}
        ticket = self._ticket(method, arguments, awaited, **reports)
        self._turns.submit(ticket)
        try:
            return await awaited.answer()
        except BaseException:
            self._link.cancel(ticket.id)
            raise

    def stream(self, method: str, *, on_progress: OnProgress | None = None, **arguments: Any) -> Branches[TokenRun]:
        """Token runs by branch, as they arrive; a stream that is closed early is cancelled in the engine too."""
        dropped: set[int] = set()
        vocabulary = self.text.byte_vocab
        running: list[int] = []  # holds the number of the call while it runs

        async def read() -> AsyncGenerator[tuple[int, TokenRun], None]:
            stream = RunStream(self._turns.inbox(), on_progress=on_progress, dropped=dropped)

            def deliver(run: TokenRun, branch: int) -> None:
                stream.chunk(replace(run, vocabulary=vocabulary), branch)

            ticket = self._ticket(method, arguments, stream, on_run=deliver, on_progress=stream.progress)
            self._turns.submit(ticket)
            running.append(ticket.id)
            for branch in tuple(dropped):
                drop(branch)
            try:
                async for item in stream.runs():
                    yield item
            finally:
                running.clear()
                stream.left = True
                self._link.cancel(ticket.id)

        def drop(branch: int) -> None:
            dropped.add(branch)
            for number in running:
                self._turns.flush()  # the call must be submitted first
                self._link.drop(number, branch)

        return Branches(read(), drop)

    def post(self, method: str, **arguments: Any) -> None:
        self._turns.flush()
        self._link.submit([self._ticket(method, arguments, AwaitedAnswer(queue.SimpleQueue()))])

    def heartbeat(self) -> tuple[int, str, int]:
        """A constant: the link watches the process itself."""
        return 0, "idle", 0

    def close(self) -> None:
        self._link.close_soon().result()
        self._link.join()

    async def close_async(self, within: float | None) -> None:
        await end_link(self._link, grace=None if within is None else grace_within(within))

    def finalize(self) -> None:
        self._link.close_soon(grace=0.0)

    def _ticket(self, method: str, arguments: dict[str, Any], answer: FutureLike, **receivers: Callable[..., None]) -> Ticket:
        number = self._link.next_id()
        payload = encode(CallMessage(number, method, msgspec.Raw(encode(arguments))))
        if len(payload) > MAX_PAYLOAD:
            raise InvalidRequestError(
                f"a request of {len(payload):,} bytes is more than the {MAX_PAYLOAD:,} that cross the pipe at once; "
                "ask for less at a time"
            )
        return Ticket(number, payload, METHODS[method], answer, **receivers)

    def _check_answer(self, method: str, arguments: dict[str, Any]) -> None:
        """Refuses an answer that is too large for the pipe before anything is computed."""
        info = self.state.info
        if method == "logprobs":
            _check_rows(len(arguments["batch"]), info.vocab_size, "rows of {width:,} log-probabilities", "rows")
        elif method == "embed":
            _check_rows(len(arguments["paths"]), info.hidden_size, "vectors", "texts")


_ENVELOPE_BYTES = 256  # bytes of an answer in addition to its array


def _check_rows(rows: int, width: int, what: str, unit: str) -> None:
    most = (MAX_PAYLOAD - _ENVELOPE_BYTES) // (4 * width)
    if rows > most:
        raise InvalidRequestError(
            f"{rows:,} {what.format(width=width)} take {4 * rows * width:,} bytes, more than the {MAX_PAYLOAD:,} that "
            f"cross the pipe at once; ask for {most:,} {unit} at a time"
        )


DEFAULT_LOADER = "runtime.api.load:load"


async def spawn(
    source: str | Path,
    backend: str | None = "auto",
    *,
    log_path: Path | None = None,
    limits: EngineLimits | None = None,
    loader: str = DEFAULT_LOADER,
    progress: ShowProgress = False,
    on_progress: OnLoad | None = None,
    **options: Any,
) -> LanguageModel:
    """Loads a model into an engine process of its own and returns when it is ready. A cancellation ends the process.

    Args:
        source: A model folder, a GGUF file, an id on the shelf, or "smollm2". A relative path counts from here.
        backend: "auto" (mlx on Apple silicon, or without torch, or for weights quantised for it; else hf), "hf", "mlx", "mock",
            or a registered one.
        log_path: File to which the engine's warnings and native errors are appended (created with mode 0600); None: this
            process's standard error.
        limits: When the engine counts as hung.
        loader: "package.module:callable" that makes the model in the engine process.
        progress: As in `load`.
        on_progress: Called with the progress of the weights, on the caller's loop, before this returns (hf and mlx).
        options: See `LoadOptions`.

    Raises:
        InvalidRequestError: An option is unknown, or cannot cross a pipe.
        UnknownBackendError, BackendUnavailableError: The backend does not exist; its libraries are missing.
        ModelLoadError: The model is not here (the message has the command that fetches it), incomplete or damaged.
        EngineDiedError: The process ended, or hung, while it loaded.
    """
    if not isinstance(source, str | Path):
        raise InvalidRequestError(f"a {type(source).__name__} cannot be sent to an engine process; load it in this one")
    if loader == DEFAULT_LOADER:
        LoadOptions.from_mapping(options)  # refused here, before a process starts
    if limits is None:
        limits = EngineLimits() if options.get("offload", "none") == "none" else offload_limits(str(source))
    name = backend or "auto"

    def make_load() -> Load:
        return Load(str(source), name, options, loader, _importable_backends(name), limits.beat_seconds)

    loaded: AwaitedAnswer[Loaded] = AwaitedAnswer(Mailbox(asyncio.get_running_loop()))

    with reporting_load(progress, on_progress) as listener:

        def report(state: LoadProgress) -> None:
            if listener is not None and not loaded.done():  # no reports after the model was loaded, or the wait cancelled
                listener(state)

        link = EngineLink(
            make_load,
            loaded,
            threads=options.get("threads"),
            log_path=log_path,
            limits=limits,
            on_load=None if listener is None else partial(loaded.report, report),
        )
        try:
            return LanguageModel(PipeTransport(link, await loaded.answer()))
        except BaseException:  # cancelled too
            await end_link(link, grace=0.0)
            raise


def _importable_backends(chosen: str) -> dict[str, str]:
    """The backends that another process can import: dotted names by name.

    Raises:
        InvalidRequestError: The chosen backend was registered as an object that only this process has.
    """
    dotted = dotted_backends()
    if chosen not in dotted and chosen != "auto" and available_backends().get(chosen) is True:
        raise InvalidRequestError(
            f"backend {chosen!r} was registered as an object of this process; register it as 'package.module:function' "
            "so that the engine process can import it"
        )
    return dotted
