"""Settings of the app and of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Protocol, get_type_hints

from msgspec import Struct

from ui.port.refusals import QT_TRANSLATE_NOOP


class Scheme(StrEnum):
    """The colour scheme."""

    SYSTEM = "system"
    LIGHT = "light"
    DARK = "dark"


class Contrast(StrEnum):
    """The contrast of text."""

    SYSTEM = "system"
    NORMAL = "normal"
    HIGH = "high"


class OwnColours(StrEnum):
    """The strength of token colours in the user's own text."""

    HALF = "half"
    FULL = "full"
    NONE = "none"


class Motion(StrEnum):
    """Whether changes fade."""

    SYSTEM = "system"
    REDUCED = "reduced"


class SettingRule(Struct, frozen=True):
    """The values of a setting, and its effect.

    Attributes:
        values: The choices, where these depend on neither computer nor models.
        refusal: Words for another value, with the values or the bounds as first arguments; "": `LoadOptions` checks it.
        least, most: The bounds of a whole number; 0: there is none.
        named: The value is a name.
        reload: A change takes effect when the model is loaded again, else at once.
        option: It is an option of `LoadOptions`.
        soft: It is an option that a model may ignore.
        resets: The setting that goes back to its default when this one is changed.
    """

    values: Sequence[str] = ()
    refusal: str = ""
    least: int = 0
    most: int = 0
    named: bool = False
    reload: bool = False
    option: bool = False
    soft: bool = False
    resets: str = ""


_LEAST_KV = 1 << 20  # bytes


# fmt: off
class AppSettings(Struct, frozen=True):
    """One row per field: its rule and its default. None and "auto" leave the choice to the engine."""

    backend: Annotated[str, SettingRule(named=True, reload=True)] = "auto"
    device: Annotated[str, SettingRule(("auto", "cpu", "cuda", "mps"), option=True, reload=True)] = "auto"
    dtype: Annotated[str, SettingRule(("auto", "float32", "float16", "bfloat16"), option=True, reload=True)] = "auto"
    # of linear layers, on a processor (hf)
    weights: Annotated[str, SettingRule(
        ("auto", "float16", "bfloat16", "int8", "int4"), option=True, soft=True, reload=True)] = "auto"
    # how messages become text: the model's own, "none" for text without roles, or a family's
    chat_format: Annotated[str, SettingRule(option=True, reload=True, resets="chat_template_file")] = "auto"
    # the user's own jinja2 template, run in the sandbox
    chat_template_file: Annotated[str, SettingRule(option=True, reload=True, resets="chat_format")] = ""
    # "disk": weights that do not fit into memory are read for every forward
    offload: Annotated[str, SettingRule(("none", "disk"), option=True, soft=True, reload=True)] = "none"
    context_length: Annotated[int | None, SettingRule(option=True, soft=True, reload=True)] = None  # tokens
    threads: Annotated[int | None, SettingRule(option=True, reload=True)] = None
    # a model on the shelf for speculation; "" is none
    draft_model: Annotated[str, SettingRule(named=True, option=True, reload=True)] = ""
    kv_cache_bytes: Annotated[int | None, SettingRule(least=_LEAST_KV, option=True, refusal=QT_TRANSLATE_NOOP(
        "Workbench", "the KV budget must be a whole number of bytes, at least {0:,}, not {2!r:.60}"))] = None
    disk_bytes: Annotated[int | None, SettingRule(least=_LEAST_KV, reload=True, refusal=QT_TRANSLATE_NOOP(
        "Workbench", "the disk budget must be a whole number of bytes, at least {0:,}, not {2!r:.60}"))] = None  # of KV blocks
    preset: Annotated[str, SettingRule(named=True)] = ""  # of sessions without one; "" is Elsewise's own
    # of sessions: words (the first ones of the first message), model (asked after the first answer)
    titles: Annotated[str, SettingRule(("words", "model"), QT_TRANSLATE_NOOP(
        "Workbench", "the titles must be one of {0}, not {1!r:.60}"))] = "words"
    scheme: Annotated[str, SettingRule(tuple(Scheme), QT_TRANSLATE_NOOP(
        "Workbench", "the colours must be one of {0}, not {1!r:.60}"))] = "system"
    contrast: Annotated[str, SettingRule(tuple(Contrast), QT_TRANSLATE_NOOP(
        "Workbench", "the contrast must be one of {0}, not {1!r:.60}"))] = "system"
    motion: Annotated[str, SettingRule(tuple(Motion), QT_TRANSLATE_NOOP(
        "Workbench", "the motion must be one of {0}, not {1!r:.60}"))] = "system"
    text_percent: Annotated[int, SettingRule(least=80, most=200, refusal=QT_TRANSLATE_NOOP(
        "Workbench", "the text size must be between {0} and {1} %, not {2!r:.60}"))] = 100
    # strength of the colours in the user's own text
    own_colours: Annotated[str, SettingRule(tuple(OwnColours), QT_TRANSLATE_NOOP(
        "Workbench", "the colours of your own text must be one of {0}, not {1!r:.60}"))] = "half"
    # on: the window shows the cache, tokens reused and computed, and the engine's figures
    developer: Annotated[str, SettingRule(("off", "on"), QT_TRANSLATE_NOOP(
        "Workbench", "the developer view must be one of {0}, not {1!r:.60}"))] = "off"
# fmt: on


SETTING_RULES: Mapping[str, SettingRule] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(AppSettings, include_extras=True).items()
}


class DataFacts(Struct, frozen=True):
    """The folder of the data, and its backups."""

    folder: str
    sessions_bytes: int = 0
    backups: Sequence[str] = ()  # names, the latest first


class Backup(Struct, frozen=True):
    """A copy of all sessions, verified row by row."""

    path: str
    size: int  # bytes


class ServerCommands(Protocol):
    """The server that gives the loaded model to other programs on this computer. Off until started; ends with the app."""

    @property
    def address(self) -> str:
        """The server's address; "" while it is off."""

    async def start(self, port: int) -> str:
        """Starts the server; returns its address.

        Raises:
            Refusal: The port is taken, or the model that runs is on a server itself.
        """

    async def stop(self) -> None:
        """Stops the server, after a short time for running requests."""


class SettingsView(Struct, frozen=True):
    """The settings in force, and the choices."""

    values: AppSettings = AppSettings()
    needs_reload: bool = False  # the running model was loaded with other settings
    choices: Mapping[str, Sequence[str]] = {}  # by row
    data: DataFacts | None = None
    notes: Sequence[str] = ()  # stored values that could not be used, in words


class SettingsCommands(Protocol):
    """The settings of the app. Every coroutine may raise `Refusal`; then nothing was changed."""

    @property
    def values(self) -> AppSettings:
        """The settings, as last read."""

    async def view(self) -> SettingsView:
        """Reads the settings."""

    async def change(self, name: str, value: object) -> SettingsView:
        """Changes one row, a field of `AppSettings`; it is stored before this returns."""

    async def back_up(self) -> Backup:
        """Copies all sessions and verifies the copy, which stays until the user deletes it."""

    async def verify_data(self) -> Sequence[str]:
        """Reads every stored row; returns the damage, with session and turn."""

    async def hints(self) -> frozenset[str]:
        """The hints that were not dismissed yet: "tokens", "models"."""

    async def dismiss_hint(self, name: str) -> bool:
        """Dismisses a hint in all windows; returns whether this call was the first to do so."""


class FormatKind(StrEnum):
    """The format of an answer."""

    FREE = "free"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


class Guess(StrEnum):
    """The source of drafted tokens."""

    OFF = "off"
    PROMPT_LOOKUP = "prompt_lookup"
    DRAFT = "draft"


class AnswerFormat(Struct, frozen=True):
    """The format of an answer; `source` is the schema, the pattern or the grammar."""

    kind: FormatKind = FormatKind.FREE
    source: str = ""


class AdapterChoice(Struct, frozen=True):
    """One adapter of a session's stack."""

    folder: str
    name: str
    scale: float = 1.0  # 1 is as trained
    on: bool = True


class AdapterLine(Struct, frozen=True):
    """An adapter of the stack, with its facts."""

    choice: AdapterChoice
    detail: str = ""  # "lora, rank 8, 3.1 MB"; "" while the engine does not run
    loaded: bool = False


class OptionView(Struct, frozen=True):
    """One generation option: the value in force, and its source."""

    name: str
    value: object  # None: not set (a fresh seed)
    source: str  # call, session, preset, model, default
    own: object = None  # the session's own value; None: it has none


class ModelFacts(Struct, frozen=True):
    """The loaded model; facts that a server does not report are "", 0 or None."""

    name: str
    fingerprint: str  # hexadecimal
    architecture: str
    parameters: int
    backend: str
    device: str
    dtype: str
    context_length: int | None  # tokens
    kv_bytes_per_token: int
    draft: str = ""  # the draft model, if one is loaded
    takes_roles: bool = True
    warnings: Sequence[str] = ()


class TextFile(Struct, frozen=True):
    """A file as a model reads it."""

    name: str
    text: str


class SessionSetup(Struct, frozen=True):
    """The settings of one session."""

    session_id: int
    system: str = ""  # the system prompt of the path shown
    files: Sequence[TextFile] = ()  # pinned: sent after the system prompt, before all turns
    tools: str = ""  # definitions offered on the path shown, as JSON
    options: Sequence[OptionView] = ()
    preset: str = ""  # "" is the default one
    presets: Mapping[str, bool] = {}  # by name, whether it can be deleted
    default_preset: str = ""  # the name of the app's preset
    answer_format: AnswerFormat = AnswerFormat()
    adapters: Sequence[AdapterLine] = ()
    guess: Guess = Guess.OFF
    model: ModelFacts | None = None  # None while no engine runs
    notes: Sequence[str] = ()  # stored values that could not be used, in words


class ToolCard(Struct, frozen=True):
    """A call that a model wrote: data, never executed."""

    name: str
    arguments: str  # JSON, indented
    problem: str = ""  # why the call is invalid
    span: tuple[int, int] = (0, 0)  # begin and end of the call in the answer, in characters


class SetupCommands(Protocol):
    """The settings of a session. A change takes effect from the next answer on, not for a running one.

    Every coroutine may raise `Refusal`; then nothing was changed. A returned `SessionSetup` has the settings now in force.
    """

    async def view(self, session_id: int) -> SessionSetup:
        """The settings of a session."""

    async def set_option(self, session_id: int, name: str, value: object) -> SessionSetup:
        """Sets one option of the session; None removes it."""

    async def choose_preset(self, session_id: int, name: str) -> SessionSetup:
        """Chooses a preset for the session, and removes its own options."""

    async def save_preset(self, session_id: int, name: str) -> SessionSetup:
        """Saves the options of preset and session as a preset of that name, and chooses it."""

    async def delete_preset(self, session_id: int, name: str) -> SessionSetup:
        """Deletes a saved preset; its sessions then use the default one."""

    async def set_system(self, session_id: int, text: str) -> SessionSetup:
        """Starts a branch with another system prompt, shown by `SessionChanged`."""

    async def set_tools(self, session_id: int, source: str) -> SessionSetup:
        """Starts a branch with other tools (JSON), which are part of the system prompt."""

    async def pin_files(self, session_id: int, files: Sequence[TextFile]) -> SessionSetup:
        """Starts a branch with these pinned files and no others."""

    async def check_tools(self, source: str) -> tuple[Sequence[str], str]:
        """The names of the defined tools, and what is wrong with the definitions, or ""."""

    async def set_format(self, session_id: int, answer_format: AnswerFormat) -> SessionSetup:
        """Sets the format of the next answers."""

    async def check_format(self, answer_format: AnswerFormat) -> str:
        """What is wrong with a format, in the grammar library's own words, or "". Computed outside the window's thread."""

    async def add_adapter(self, session_id: int, folder: str) -> SessionSetup:
        """Adds an adapter on top of the session's stack, and loads its weights."""

    async def set_adapters(self, session_id: int, stack: Sequence[AdapterChoice]) -> SessionSetup:
        """Replaces the session's stack of adapters."""

    async def set_guess(self, session_id: int, guess: Guess) -> SessionSetup:
        """Sets the source of drafted tokens."""

    async def get_adapter(self, session_id: int, wanted: str) -> SessionSetup:
        """Adds an adapter by its id, ``ORG/NAME[@REVISION]``, on top of the session's stack; downloads it if necessary.

        Returns once it is added; `DownloadsChanged` reports the download.
        """
