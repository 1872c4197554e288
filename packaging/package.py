"""Builds what `make package` promises: dist/elsewise_VERSION_amd64.deb and .tar.gz on Linux, dist/Elsewise.app on macOS.

Run in the environment of `make setup`, with PyInstaller beside (packaging/requirements-package.txt).
"""

from __future__ import annotations

import compileall
import importlib.metadata
import os
import py_compile
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD, DIST = ROOT / "build", ROOT / "dist"
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]
os.environ["QT_QPA_PLATFORM"] = "offscreen"  # icons are drawn without a screen

import click
import collect

from app.cli.group import cli
from resources.licences import licence_of
from runtime import __version__

ICON = ROOT / "packaging" / "elsewise.svg"
ICON_SIZES = (16, 32, 48, 64, 128, 256, 512)
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
SUMMARY = "runs language models locally and shows what else they might have said"
DESCRIPTION = """\
 Every token is coloured by how surprising it was to the model; its alternatives
 are a click away, and each starts a branch. A window, a command line, a server.
 Contains its own Python, Qt and torch (for processors)."""

DESKTOP = """\
[Desktop Entry]
Type=Application
Name=Elsewise
GenericName=Language models
Comment=Run language models locally and see what else they might have said
Exec=elsewise window %F
MimeType=application/vnd.elsewise.session;application/x-gguf;
Icon=elsewise
Terminal=false
Categories=Science;ArtificialIntelligence;
Keywords=LLM;GGUF;chat;tokens;
StartupNotify=true
StartupWMClass=elsewise
"""

MIME = """\
<?xml version="1.0" encoding="UTF-8"?>
<mime-info xmlns="http://www.freedesktop.org/standards/shared-mime-info">
  <mime-type type="application/vnd.elsewise.session">
    <comment>Elsewise session</comment>
    <sub-class-of type="application/vnd.sqlite3"/>
    <glob pattern="*.elsewise"/>
  </mime-type>
  <mime-type type="application/x-gguf">
    <comment>GGUF language model</comment>
    <magic><match type="string" value="GGUF" offset="0"/></magic>
    <glob pattern="*.gguf"/>
  </mime-type>
</mime-info>
"""


def collect_licences(target: Path) -> None:
    """The notices that the About box shows, of what is shipped, and the licences' own texts beside them."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    lines = []
    for name, distribution in sorted(collect.required(collect.extras()).items()):
        lines.append(f"{name} {distribution.version}: {licence_of(distribution)}")
        for number, text in enumerate(collect.licence_texts(distribution)):
            shutil.copyfile(text, target / f"{name}.{number}.{text.name}")
    python = Path(sys.base_prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "LICENSE.txt"
    if python.is_file():
        shutil.copyfile(python, target / "python.LICENSE.txt")
    for text in (ROOT / "resources" / "licences").iterdir():  # Qt's, which its wheels leave out
        shutil.copyfile(text, target / text.name)
    head = (ROOT / "resources" / "licences.txt").read_text("utf-8")
    (target / "LICENCES.txt").write_text(head + "\n".join(lines) + "\n", "utf-8")


def system_licences(shipped: Path, target: Path) -> None:
    """The same of the system's libraries that PyInstaller took: the copyright file of each Debian package, and a line for it."""
    packages: dict[str, list[str]] = {}
    for library in sorted(path.name for path in shipped.glob("*.so*") if not path.is_symlink()):  # links lead to those of wheels
        told = subprocess.run(["dpkg", "-S", f"*/{library}"], capture_output=True, text=True, check=False).stdout
        package = next((line.partition(":")[0] for line in told.splitlines() if line.endswith(f"/{library}")), "")
        if package:
            packages.setdefault(package, []).append(library)
        elif not library.startswith("libpython"):
            sys.exit(f"{library}: no package of this system is known to hold it, so that its licence is not known")
    lines = ["", "Libraries of the system (Debian), with their packages' copyright files beside this one:"]
    for package, libraries in packages.items():
        shutil.copyfile(Path("/usr/share/doc") / package / "copyright", target / f"{package}.copyright")
        version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=True).stdout
        lines.append(f"{package} {version}: {', '.join(libraries)}")
    with (target / "LICENCES.txt").open("a", encoding="utf-8") as notices:
        notices.write("\n".join(lines) + "\n")


def draw_icons(folder: Path) -> dict[int, Path]:
    """The icon as PNG in each size."""
    from PySide6.QtCore import Qt
    from PySide6.QtGui import QGuiApplication, QImage, QPainter
    from PySide6.QtSvg import QSvgRenderer

    application = QGuiApplication.instance() or QGuiApplication([])
    assert application is not None
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for size in ICON_SIZES:
        image = QImage(size, size, QImage.Format.Format_ARGB32)
        image.fill(Qt.GlobalColor.transparent)
        painter = QPainter(image)
        QSvgRenderer(str(ICON)).render(painter)
        painter.end()
        drawn[size] = folder / f"{size}.png"
        if not image.save(str(drawn[size])):
            sys.exit(f"{drawn[size]} cannot be written")
    return drawn


def man_page() -> str:
    """The man page, of what click knows of each command."""

    def plain(text: str) -> str:
        return text.replace("\b", "").strip().replace("\\", "\\\\").replace("-", "\\-").replace("\n.", "\n\\&.").replace("\n'", "\n\\&'")

    def of(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
        with click.Context(command, info_name=name, parent=parent) as context:
            usage = " ".join(command.collect_usage_pieces(context))
            yield f".SS {plain(context.command_path)} {plain(usage)}\n{plain(command.help or '')}"
            for parameter in command.get_params(context):
                record = parameter.get_help_record(context)
                if record is not None:
                    yield f".TP\n.B {plain(record[0])}\n{plain(record[1])}"
            if isinstance(command, click.Group):
                for each in command.list_commands(context):
                    inner = command.get_command(context, each)
                    if inner is not None:
                        yield from of(inner, each, context)

    head = f'.TH ELSEWISE 1 "" "Elsewise {__version__}" "User Commands"\n.ad l\n.SH NAME\nelsewise \\- {SUMMARY}\n.SH COMMANDS'
    return "\n".join([head, *of(cli, "elsewise", None), ""])


def check_torch() -> None:
    """Refuses a torch with CUDA: its libraries are gigabytes, and the package is for processors."""
    version = importlib.metadata.version("torch")
    if not version.endswith("+cpu") and any(each.startswith("nvidia-") for each in collect.required(collect.extras())):
        sys.exit(f"torch {version} brings CUDA: make the environment with torch's build for processors (docs/cuda.md)")


def compile_sources(shipped: Path, found: Path) -> None:
    """Byte code beside the sources that are shipped as files, since an installed folder is not writable.

    `found` is where imports look: in a macOS bundle PyInstaller keeps data in Resources, and links it file by file into folders
    of Frameworks that hold code too. Their byte code is linked likewise, as Frameworks may not hold data.
    """
    unchanged = py_compile.PycInvalidationMode.UNCHECKED_HASH
    # Templates among them are no valid Python: what cannot be compiled here is not needed compiled there.
    compileall.compile_dir(str(shipped), quiet=2, workers=0, invalidation_mode=unchanged, stripdir=str(shipped))
    for compiled in list(shipped.rglob("__pycache__")):
        beside = found / compiled.relative_to(shipped)
        if beside.parent.is_dir() and not beside.exists():
            beside.symlink_to(os.path.relpath(compiled.resolve(), beside.parent.resolve()))


def build_folder() -> Path:
    """Runs PyInstaller, and completes what it made."""
    collect_licences(BUILD / "licences")
    arguments = ["--noconfirm", "--log-level", "WARN", "--workpath", str(BUILD / "pyinstaller"), "--distpath", str(DIST)]
    spec = str(ROOT / "packaging" / "elsewise.spec")
    subprocess.run([sys.executable, "-P", "-m", "PyInstaller", *arguments, spec], cwd=ROOT, check=True)
    folder = DIST / "elsewise"
    shipped = folder / "_internal"
    if sys.platform == "linux":
        system_licences(shipped, BUILD / "licences")
        shutil.copytree(BUILD / "licences", shipped / "licences", dirs_exist_ok=True)
    compile_sources(shipped, shipped)
    if sys.platform == "darwin":  # made of the same files, not of the folder
        contents = DIST / "Elsewise.app" / "Contents"
        compile_sources(contents / "Resources", contents / "Frameworks")
    if foreign := [name for name in sorted(collect.not_shipped(collect.extras())) if (shipped / name).exists()]:
        sys.exit(f"the bundle has what Elsewise does not require: {', '.join(foreign)}")
    if len(list(folder.rglob("libmlx.*"))) != 1:
        sys.exit("the bundle has not exactly one libmlx: its metallib would not be found")
    return folder


def print_sizes() -> None:
    """Bytes by distribution, the ten largest first."""
    sizes = {
        f"{name} {each.version}": sum(here.stat().st_size for _, here in collect.files(each))
        for name, each in collect.required(collect.extras()).items()
        if name not in collect.ANALYSED
    }
    whole = sum(path.stat().st_size for path in (DIST / "elsewise").rglob("*") if path.is_file())
    print(f"{whole / 1e6:8.1f} MB  the folder")
    for size, name in sorted(((size, name) for name, size in sizes.items()), reverse=True)[:10]:
        print(f"{size / 1e6:8.1f} MB  {name}")
    qt = sum(path.stat().st_size for path in (DIST / "elsewise" / "_internal" / "PySide6").rglob("*") if path.is_file())
    print(f"{qt / 1e6:8.1f} MB  PySide6 (the parts that are used)")


def write(path: Path, text: str) -> None:
    """A file of the package, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def needed_packages() -> str:
    """Depends of the package: the C library of this machine or newer, and what Qt is linked to (as the Makefile has it)."""
    libc = os.confstr("CS_GNU_LIBC_VERSION") or "glibc 2.36"
    qt = os.environ["QT_PACKAGES"].split()
    return ", ".join([f"libc6 (>= {libc.split()[1]})", *(" | ".join(reversed(each.split("|"))) for each in qt)])


def build_deb(folder: Path, name: str) -> Path:
    """The Debian package: the folder under /usr/lib, and what a desktop needs to show it."""
    tree = BUILD / "deb"
    shutil.rmtree(tree, ignore_errors=True)
    share = tree / "usr" / "share"
    shutil.copytree(folder, tree / "usr" / "lib" / "elsewise", symlinks=True, copy_function=os.link)
    (tree / "usr" / "bin").mkdir(parents=True)
    (tree / "usr" / "bin" / "elsewise").symlink_to("../lib/elsewise/elsewise")
    write(share / "applications" / "elsewise.desktop", DESKTOP)
    write(share / "mime" / "packages" / "elsewise.xml", MIME)
    for size, icon in draw_icons(BUILD / "icons").items():
        target = share / "icons" / "hicolor" / f"{size}x{size}" / "apps" / "elsewise.png"
        target.parent.mkdir(parents=True)
        shutil.copyfile(icon, target)
    scalable = share / "icons" / "hicolor" / "scalable" / "apps"
    scalable.mkdir(parents=True)
    shutil.copyfile(ICON, scalable / "elsewise.svg")
    write(share / "doc" / "elsewise" / "copyright", (BUILD / "licences" / "LICENCES.txt").read_text("utf-8"))
    write(share / "man" / "man1" / "elsewise.1", man_page())
    subprocess.run(["gzip", "-9n", str(share / "man" / "man1" / "elsewise.1")], check=True)
    installed = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink()) // 1024
    fields = {
        "Package": "elsewise",
        "Version": __version__,
        "Architecture": ARCHITECTURE[os.uname().machine],
        "Maintainer": "Elsewise <elsewise@localhost>",
        "Installed-Size": str(installed),
        "Depends": needed_packages(),
        "Recommends": "libopenblas0-pthread",
        "Section": "science",
        "Priority": "optional",
        "Description": f"{SUMMARY}\n{DESCRIPTION}",
    }
    write(tree / "DEBIAN" / "control", "".join(f"{key}: {value}\n" for key, value in fields.items()))
    subprocess.run(["chmod", "-R", "u=rwX,go=rX", str(tree)], check=True)
    deb = DIST / f"{name}.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", "-Zzstd", str(tree), str(deb)], check=True, stdout=subprocess.DEVNULL)
    return deb


def build_tar(folder: Path, name: str) -> Path:
    """The same folder for any place: unpack it, start `elsewise/elsewise`."""
    path = DIST / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=3) as archive:
        archive.add(folder, "elsewise")
    return path


def build_icns() -> None:
    """The icon of the macOS bundle, by the system's own iconutil."""
    folder = BUILD / "elsewise.iconset"
    drawn = draw_icons(BUILD / "icons")
    folder.mkdir(parents=True, exist_ok=True)
    for size in (16, 32, 128, 256):
        shutil.copyfile(drawn[size], folder / f"icon_{size}x{size}.png")
        shutil.copyfile(drawn[2 * size], folder / f"icon_{size}x{size}@2x.png")
    subprocess.run(["iconutil", "--convert", "icns", "--output", str(BUILD / "elsewise.icns"), str(folder)], check=True)


def main() -> None:
    """Builds for this system."""
    if sys.platform == "darwin":
        build_icns()
        build_folder()
        print_sizes()
        print("dist/Elsewise.app; sign it and make the disk image: sh packaging/macos.sh")
        return
    check_torch()
    folder = build_folder()
    name = f"elsewise_{__version__}_{ARCHITECTURE[os.uname().machine]}"
    print_sizes()
    for path in (build_deb(folder, name), build_tar(folder, name)):
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {shlex.quote(str(path.relative_to(ROOT)))}")


if __name__ == "__main__":
    main()
