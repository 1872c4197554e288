"""Settings of the app and of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct


class AppSettings(Struct, frozen=True):
    """Each field is one row. None and "auto" leave the choice to the engine."""

    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "auto"  # float16, bfloat16, int8, int4: of linear layers, on a processor (hf)
    chat_format: str = "auto"  # how messages become text: the model's own, "none" for text without roles, or a family's
    chat_template_file: str = ""  # the user's own jinja2 template, run in the sandbox; then `chat_format` is "auto"
    offload: str = "none"  # "disk": weights that do not fit into memory are read at every forward
    context_length: int | None = None  # tokens
    threads: int | None = None
    draft_model: str = ""  # a model on the shelf that guesses ahead; "" is none
    kv_cache_bytes: int | None = None
    disk_bytes: int | None = None  # of KV blocks
    preset: str = ""  # of sessions that chose none; "" is Elsewise's own
    titles: str = "words"  # of sessions: words (the first ones of the first message), model (asked after the first answer)
    scheme: str = "system"  # system, light, dark
    contrast: str = "system"  # system, normal, high
    motion: str = "system"  # system, reduced
    text_percent: int = 100  # 80 to 200
    own_colours: str = "half"  # strength of the colours in what the user wrote: half, full, none
    developer: str = "off"  # on: the cache, what was reused and computed, and the engine's figures have places in the window


class DataFacts(Struct, frozen=True):
    """Where everything is."""

    folder: str
    sessions_bytes: int = 0
    backups: Sequence[str] = ()  # names, the latest first


class Backup(Struct, frozen=True):
    """A copy of all sessions; every row of it was read again."""

    path: str
    size: int  # bytes


class ServerCommands(Protocol):
    """The model of the windows for other programs on this computer. Off until it is started; ends with the app."""

    @property
    def address(self) -> str:
        """Where it answers; "" while it is off."""

    async def start(self, port: int) -> str:
        """Starts it; its address.

        Raises:
            Refusal: The port is taken, or the model that runs is on a server itself.
        """

    async def stop(self) -> None:
        """Ends it; requests in flight have a moment."""


class SettingsView(Struct, frozen=True):
    """What is set, and what could be."""

    values: AppSettings = AppSettings()
    needs_reload: bool = False  # the model that runs was loaded with other settings
    choices: Mapping[str, Sequence[str]] = {}  # by row, where there are some
    data: DataFacts | None = None
    notes: Sequence[str] = ()  # what was stored and could not be taken


class SettingsCommands(Protocol):
    """The settings window. Every coroutine may raise `Refusal`; nothing was changed then."""

    @property
    def values(self) -> AppSettings:
        """What is set, as last read."""

    async def view(self) -> SettingsView:
        """What is set."""

    async def change(self, name: str, value: object) -> SettingsView:
        """Changes one row, a field of `AppSettings`; it is stored before this returns."""

    async def back_up(self) -> Backup:
        """Copies all sessions beside themselves and checks the copy; it stays until it is deleted by hand."""

    async def verify_data(self) -> Sequence[str]:
        """Reads every stored row; what is damaged, each with its session and turn."""

    async def hints(self) -> frozenset[str]:
        """What is explained once and was not dismissed yet: "tokens", "models"."""

    async def dismiss_hint(self, name: str) -> bool:
        """It is not shown again, by any window; whether this call was the first to say so."""


class FormatKind(StrEnum):
    """What an answer has to look like."""

    FREE = "free"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


class Guess(StrEnum):
    """Where tokens that are guessed ahead come from."""

    OFF = "off"
    PROMPT_LOOKUP = "prompt_lookup"
    DRAFT = "draft"


class AnswerFormat(Struct, frozen=True):
    """The form of an answer; `source` is the schema, the pattern or the grammar."""

    kind: FormatKind = FormatKind.FREE
    source: str = ""


class AdapterChoice(Struct, frozen=True):
    """One adapter of a session's stack."""

    folder: str
    name: str
    scale: float = 1.0  # 1 is as trained
    on: bool = True


class AdapterLine(Struct, frozen=True):
    """An adapter of the stack, and what is known of it."""

    choice: AdapterChoice
    detail: str = ""  # "lora, rank 8, 3.1 MB"; "" while the engine does not run
    loaded: bool = False


class OptionView(Struct, frozen=True):
    """One setting of generation: what holds, and its source."""

    name: str
    value: object  # None: not set (a fresh seed)
    source: str  # call, session, preset, model, default
    own: object = None  # what the session itself says; None: nothing


class ModelFacts(Struct, frozen=True):
    """The model that is loaded; what a server does not say of its own is "", 0 or None."""

    name: str
    fingerprint: str  # hexadecimal
    architecture: str
    parameters: int
    backend: str
    device: str
    dtype: str
    context_length: int | None  # tokens
    kv_bytes_per_token: int
    draft: str = ""  # the model that guesses ahead, if one was loaded beside it
    takes_roles: bool = True
    warnings: Sequence[str] = ()


class TextFile(Struct, frozen=True):
    """A file as a model reads it."""

    name: str
    text: str


class SessionSetup(Struct, frozen=True):
    """Everything one session is set to, and what of it holds."""

    session_id: int
    system: str = ""  # the system prompt of the path shown
    files: Sequence[TextFile] = ()  # pinned: they stand behind the system prompt, before every turn
    tools: str = ""  # definitions offered on the path shown, as JSON
    options: Sequence[OptionView] = ()
    preset: str = ""  # "" is the default one
    presets: Mapping[str, bool] = {}  # by name; whether it can be deleted
    default_preset: str = ""  # the name of that one, which the settings choose
    answer_format: AnswerFormat = AnswerFormat()
    adapters: Sequence[AdapterLine] = ()
    guess: Guess = Guess.OFF
    model: ModelFacts | None = None  # None while no engine runs
    notes: Sequence[str] = ()  # what was stored and could not be taken


class ToolCard(Struct, frozen=True):
    """A call that a model wrote: data, never executed."""

    name: str
    arguments: str  # JSON, indented
    problem: str = ""  # why it is no call that could be answered
    span: tuple[int, int] = (0, 0)  # the characters of the answer that are the call: where it begins, and where it ends


class SetupCommands(Protocol):
    """What a session is set to. Every change holds from the next answer on; one that runs keeps what it began with.

    Every coroutine may raise `Refusal`; nothing was changed then. Those that give a `SessionSetup` give what holds now.
    """

    async def view(self, session_id: int) -> SessionSetup:
        """What the session is set to."""

    async def set_option(self, session_id: int, name: str, value: object) -> SessionSetup:
        """Sets one option of the session, or (None) leaves it to preset, model and default."""

    async def choose_preset(self, session_id: int, name: str) -> SessionSetup:
        """The session takes a preset; what it says itself is put aside."""

    async def save_preset(self, session_id: int, name: str) -> SessionSetup:
        """Saves what preset and session say as a preset of that name, and chooses it."""

    async def delete_preset(self, session_id: int, name: str) -> SessionSetup:
        """Deletes a preset that was saved; sessions that had it take the default one."""

    async def set_system(self, session_id: int, text: str) -> SessionSetup:
        """Another system prompt: a new beginning beside the old one, which stays as it is (`SessionChanged` shows it)."""

    async def set_tools(self, session_id: int, source: str) -> SessionSetup:
        """Offers other tools (JSON); they stand with the system prompt, so this is a new beginning likewise."""

    async def pin_files(self, session_id: int, files: Sequence[TextFile]) -> SessionSetup:
        """Pins these files and no others as context: a new beginning likewise."""

    async def check_tools(self, source: str) -> tuple[Sequence[str], str]:
        """The names of the tools defined, and what is wrong with the definitions ("": nothing)."""

    async def set_format(self, session_id: int, answer_format: AnswerFormat) -> SessionSetup:
        """The form of the next answers."""

    async def check_format(self, answer_format: AnswerFormat) -> str:
        """What is wrong with a form, in the grammar library's own words ("": nothing). Takes its time, elsewhere."""

    async def add_adapter(self, session_id: int, folder: str) -> SessionSetup:
        """Puts an adapter on top of the session's stack, and brings its weights in."""

    async def set_adapters(self, session_id: int, stack: Sequence[AdapterChoice]) -> SessionSetup:
        """Another order, other scales, some off, some gone."""

    async def set_guess(self, session_id: int, guess: Guess) -> SessionSetup:
        """Where guesses come from, or that there are none."""

    async def get_adapter(self, session_id: int, wanted: str) -> SessionSetup:
        """Puts an adapter on top of the session's stack by its id, ``ORG/NAME[@REVISION]``; asks the hub where it is not here.

        Returns when it is there; `DownloadsChanged` says how far it is meanwhile.
        """
