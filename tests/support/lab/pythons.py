"""The Pythons that guests can use, and virtual environments made of a handful of files."""

from __future__ import annotations

import functools
import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.lab.machine import LabError, run


def pyenv_folder() -> Path:
    """Return where pyenv keeps its versions for root."""
    return Path(pwd.getpwuid(0).pw_dir, ".pyenv", "versions")


@functools.cache
def pythons() -> Mapping[str, str]:
    """Map versions (``3.8``) to interpreters of this machine that guests see at the same path, oldest first."""
    candidates = [
        Path(sys.executable).resolve(),
        *_matching(pyenv_folder(), "*/bin/python?.*"),
        *_matching(Path("/usr/local/bin"), "python?.*"),
        *_matching(Path("/usr/bin"), "python?.*"),
    ]
    root = Path("/").stat().st_dev
    found = {}
    for path in candidates:
        version = re.fullmatch(r"python(\d+\.\d+)", path.name)
        # Only what lies on the root file system is below a guest's root.
        if version and os.access(path, os.X_OK) and path.resolve().stat().st_dev == root:
            found[version[1]] = str(path)
    return dict(sorted(found.items(), key=lambda item: _key(item[0])))


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Return what is in a folder, sorted; nothing when it is closed to us, as root's home is to others."""
    try:
        return sorted(folder.glob(pattern))
    except PermissionError:
        return []


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def interpreter(version: str | None) -> str:
    """Return the path of a version's interpreter; None is the machine's own Python 3.

    Raises:
        LabError: naming the versions there are.
    """
    if version is None:
        return str(Path("/usr/bin/python3").resolve())
    try:
        return pythons()[version]
    except KeyError:
        raise LabError(f"no Python {version} on this machine: there is {', '.join(pythons())}") from None


def write_venv(
    root: Path, path: str, *, python: str | None, modules: Mapping[str, str], site: Sequence[str | Path]
) -> str:
    """Write a virtual environment at `path` below `root`; return the interpreter's path inside.

    `modules` become files of site-packages by name, `site` folders are added to sys.path.
    """
    program = interpreter(python)
    version = Path(program).name.removeprefix("python")
    folder = root / path.lstrip("/")
    packages = folder / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("python", "python3", f"python{version}"):
        (folder / "bin" / name).symlink_to(program)
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(program).parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    )
    for name, source in modules.items():
        (packages / f"{name}.py").write_text(source)
    if site:
        (packages / "lab.pth").write_text("".join(f"{entry}\n" for entry in site))
    return f"{path}/bin/python"


def remove_pythons(root: Path, *, keep: str = "") -> None:
    """Take every Python but the one at the path `keep` off the PATH folders of a root file system."""
    for folder in ("usr/bin", "usr/local/bin"):
        for entry in (root / folder).glob("python*"):
            if entry != root / keep.lstrip("/"):
                entry.unlink()


def replace_python(root: Path, version: str) -> None:
    """Make `python3` (`python2` for 2.7) and `python` on a root file system's PATH the given version, and no other."""
    program = interpreter(version)
    remove_pythons(root, keep=program)
    for name in ("python", f"python{version[0]}"):
        (root / "usr/bin" / name).symlink_to(program)


def copy_busybox(root: Path) -> None:
    """Lay out a root file system that holds BusyBox and nothing else."""
    for folder in ("bin", "dev", "etc", "proc", "root", "run", "sbin", "sys", "tmp", "usr/bin", "usr/sbin", "var"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "root").chmod(0o700)
    program = shutil.which("busybox", path="/usr/bin:/bin")
    if program is None:
        raise LabError("busybox is not installed")
    shutil.copy2(program, root / "bin/busybox")
    for name in _applets(program):
        (root / "bin" / name).symlink_to("busybox")
    (root / "sbin/init").symlink_to("../bin/busybox")
    (root / "etc/inittab").write_text("null::respawn:/bin/sleep 2147483647\n")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")


@functools.cache
def _applets(program: str) -> tuple[str, ...]:
    return tuple(name for name in run([program, "--list"]).stdout.split() if name not in {"busybox", "init"})
