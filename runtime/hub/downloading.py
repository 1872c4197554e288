"""Looking up a repository, weighing it, fetching it, putting it on the shelf. In the child process only."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import get_session, get_token, hf_hub_url

from runtime.adapters.folder import is_on_shelf
from runtime.errors import DownloadError, ModelLoadError
from runtime.hub.choosing import adapter_files, check_kind, check_suitable, kind_of, small_files, weights_to_take
from runtime.hub.installing import install
from runtime.hub.kept import Kept, kept_bytes
from runtime.hub.listing import Listing, look_up
from runtime.hub.parts import Address, Part, fetch_part
from runtime.hub.plan import DownloadPlan, DownloadProgress, HubFile, HubId, Kind, OnDownload, shelf_name
from runtime.hub.rate import Rate
from runtime.loading.check import INDEX, open_folder, read_json
from runtime.loading.describing import describe
from runtime.loading.paths import ADAPTER_CONFIG, made_models_dir, models_dir, shelf_path
from runtime.version import __version__

_SPARE_BYTES = 256 << 20
_TELL_SECONDS = 0.1  # between two reports of one file
_PAUSE_SECONDS = 0.5  # between two reports while it waits


class Download:
    """One repository.

    Args:
        hub_id: Which.
        say: Hears how far it is.
        wanted: What it must hold; None for either.
        endpoint: The hub's address; None for huggingface_hub's own choice.
        sleep: Waits some seconds.
    """

    def __init__(
        self,
        hub_id: HubId,
        say: OnDownload,
        *,
        wanted: Kind | None = None,
        endpoint: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._hub_id = hub_id
        self._say = say
        self._wanted = wanted
        self._endpoint = endpoint
        self._sleep = sleep
        self._rate = Rate()
        self._total = 0
        self._before = 0  # bytes of the files that are done
        self._said = -_TELL_SECONDS
        self._sums: dict[str, str] = {}  # SHA-256 by name, of what is done

    def plan(self, scratch: Path) -> DownloadPlan:
        """What would be fetched, at the commit of this moment. Configuration and index are read for it, nothing else.

        Args:
            scratch: A folder for those.

        Raises:
            DownloadError: It cannot be looked up, or is nothing that Elsewise runs.
        """
        self._tell("look up")
        listing = look_up(self._hub_id, self._endpoint, self._wait)
        kind = kind_of(listing)
        check_kind(str(self._hub_id), kind, self._wanted)
        if kind == "model":
            small = small_files(listing)
            read = self._read(listing, small, scratch)
            config = read["config.json"]
            check_suitable(str(self._hub_id), config)
            files, backends = (*small, *weights_to_take(listing, read.get(INDEX))), describe(config).backends
        else:
            files, backends = adapter_files(listing), ("hf", "mlx")
            config = self._read(listing, files, scratch)[ADAPTER_CONFIG]
        name = shelf_name(self._hub_id.repository, listing.commit)
        self._listing = listing
        return DownloadPlan(
            repository=self._hub_id.repository,
            revision=self._hub_id.revision,
            commit=listing.commit,
            files=files,
            left=tuple(sorted(listing.files.keys() - {file.name for file in files})),
            kept=kept_bytes(self._hub_id.repository, files),
            free=_free(),
            config=config,
            here=name if _is_here(name, kind) else "",
            backends=backends,
            kind=kind,
        )

    def fetch(self, planned: Callable[[DownloadPlan], None] | None = None) -> str:
        """Fetches what is missing, and puts the model on the shelf.

        Args:
            planned: Hears what will be fetched.

        Returns:
            Its name there.

        Raises:
            DownloadError: With the cause, and what was kept. Nothing is on the shelf then that was not there before.
        """
        made_models_dir()
        with Kept(self._hub_id.repository) as kept:
            try:
                plan = self.plan(kept.folder)
                if planned is not None:
                    planned(plan)
                if plan.here:
                    kept.clear()
                    return plan.here
                kept.keep(plan)
                self._check_room(plan)
                self._total = plan.bytes
                for file in plan.files:
                    self._fetch(self._listing, file, kept.folder)
                    self._before += file.size
                self._tell("install")
                install(plan, kept.folder, self._sums, self._endpoint)
            except DownloadError as fault:
                raise self._explained(fault, kept) from fault
            except ModelLoadError as fault:  # all of it is here, and cannot be put on the shelf
                here, repository = kept.bytes(), self._hub_id.repository
                what = f"{here:,} bytes are kept until: elsewise models remove {repository}"
                raise DownloadError(f"{self._hub_id}: {fault} ({what})", "unsuitable", here) from fault
            except OSError as fault:
                raise self._explained(DownloadError(str(fault), "space"), kept) from fault
            kept.clear()
            return plan.name

    def _read(self, listing: Listing, files: Iterable[HubFile], scratch: Path) -> dict[str, Mapping[str, Any]]:
        """The configuration and the index among some files, fetched."""
        read: dict[str, Mapping[str, Any]] = {}
        for file in files:
            if file.name in ("config.json", INDEX, ADAPTER_CONFIG):
                path = self._fetch(listing, file, scratch)
                try:
                    read[file.name] = read_json(path) or {}
                except ModelLoadError as fault:
                    message = str(fault).replace(str(path), f"{listing.hub_id}/{file.name}")
                    raise DownloadError(message, "unsuitable") from fault
        return read

    def _fetch(self, listing: Listing, file: HubFile, folder: Path) -> Path:
        """A file, whole and compared, in a folder of such."""
        path = folder / f"{file.oid}.part"
        url = hf_hub_url(listing.hub_id.repository, file.name, revision=listing.commit, endpoint=self._endpoint)
        self._tell("check", file)
        with Part(path, file) as part:
            self._rate = Rate()  # what was here before was not fast
            token = get_token()  # HF_TOKEN, or what 'hf auth login' noted; httpx takes it off where a redirect leads elsewhere
            headers = {"User-Agent": f"elsewise/{__version__}", **({"Authorization": f"Bearer {token}"} if token else {})}
            address = Address(get_session(), url, headers)

            def tell() -> None:
                now = time.monotonic()
                self._rate.note(self._before + part.done)
                if now - self._said >= _TELL_SECONDS:
                    self._said = now
                    self._tell("fetch", file, part.done)

            def wait(seconds: float, why: str) -> None:
                self._wait(seconds, why, file, part.done)

            self._rate.note(self._before + part.done)
            fetch_part(part, file, address, tell, wait)
            self._tell("fetch", file, file.size)
            self._sums[file.name] = part.sha256
        return path

    def _wait(self, seconds: float, why: str, file: HubFile | None = None, done: int = 0) -> None:
        while seconds > 0:
            self._tell("wait", file, done, why)
            step = min(seconds, _PAUSE_SECONDS)
            self._sleep(step)
            seconds -= step

    def _tell(self, state: str, file: HubFile | None = None, done: int = 0, note: str = "") -> None:
        name, size = (file.name, file.size) if file else ("", 0)
        whole = self._before + done
        moving = state == "fetch"
        self._say(
            DownloadProgress(
                file=name,
                file_done=done,
                file_total=size,
                done=whole if self._total else 0,
                total=self._total,
                rate=self._rate.per_second if moving else 0.0,
                eta=self._rate.left(self._total - whole) if moving and self._total else None,
                state=state,
                note=note,
            )
        )

    def _check_room(self, plan: DownloadPlan) -> None:
        needed = plan.bytes - plan.kept
        if needed + _SPARE_BYTES > plan.free:
            raise DownloadError(
                f"{needed / 1e9:,.2f} GB are still to be fetched into {models_dir()}, {plan.free / 1e9:,.2f} GB are free; "
                "free some space or set ELSEWISE_MODELS",
                "space",
            )

    def _explained(self, fault: DownloadError, kept: Kept) -> DownloadError:
        """With whose download it was, and what is here of it."""
        where, said, here = str(self._hub_id), str(fault), kept.bytes()
        said = said if said.startswith(self._hub_id.repository) else f"{where}: {said}"
        if fault.reason == "unsuitable":
            kept.clear()
            return DownloadError(said, fault.reason)
        if here:
            said += f" ({here:,} bytes are kept: the same command goes on with them)"
        return DownloadError(said, fault.reason, here)


def _free() -> int:
    folder = models_dir()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _is_here(name: str, kind: Kind) -> bool:
    if kind == "adapter":
        return is_on_shelf(name)
    with contextlib.suppress(ModelLoadError):
        open_folder(shelf_path(name), backend="mlx")
        return True
    return False
