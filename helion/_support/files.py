"""Files that appear whole or not at all, and folders that no other user can write to."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import pathlib
import secrets
import stat
import tempfile

from .. import knobs
from . import logs

_READ = stat.S_IRGRP | stat.S_IROTH
_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def write_whole(path: pathlib.Path, data: str | bytes, *, shared: bool = False) -> None:
    """Write ``data`` to ``path`` atomically: others see the old content or the new, and nothing between.

    The data is written under an unpredictable name, and then renamed; a link at ``path`` is replaced, not followed. The
    mode follows the umask; with ``shared``, all users with read access to the folder get it for the file.

    Raises:
        OSError: the file cannot be written. A missing folder is named, not the temporary file.
    """
    if not path.parent.is_dir():
        reason = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
        raise OSError(reason, os.strerror(reason), str(path.parent))
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    file = os.open(temporary, _NEW, 0o666)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
            if shared:
                mode = stat.S_IMODE(os.fstat(file).st_mode)
                os.fchmod(file, mode | (path.parent.stat().st_mode & _READ))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def holds(path: pathlib.Path, data: str) -> bool:
    """Return whether ``path`` is a file with exactly this content."""
    try:
        return path.is_file() and path.read_bytes() == data.encode()
    except OSError:
        return False


def make_folder(path: pathlib.Path, base: pathlib.Path) -> None:
    """Make ``path`` below ``base``, which exists; new folders get the permissions of ``base``."""
    missing = []
    while path != base and not path.is_dir():
        missing.append(path)
        path = path.parent
    mode = stat.S_IMODE(base.stat().st_mode)
    for folder in reversed(missing):
        try:
            folder.mkdir()
        except FileExistsError:  # another process was quicker
            continue
        with contextlib.suppress(OSError):
            folder.chmod(mode)


def is_private(path: pathlib.Path) -> bool:
    """Return whether ``path`` is a folder of this user, not a link to one, that no other user may enter."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700


def is_trusted(path: pathlib.Path) -> bool:
    """Return whether only this user and root can have created ``path``.

    They must own it and every folder above it, and no other user may write there. Sticky folders such as /tmp are
    allowed, because others cannot replace entries in them.
    """
    try:
        for each in (path.absolute(), *path.absolute().parents):
            found = each.lstat()
            kept = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
            if found.st_uid not in (0, os.getuid()) or (found.st_mode & _WRITE and not kept) or each.is_symlink():
                return False
    except OSError:
        return False
    return True


@functools.cache
def private_folder() -> pathlib.Path:
    """Return ``helion-<uid>`` in the temporary folder if it is private; else a new folder for this process.

    Raises OSError where nothing can be written.
    """
    folder = pathlib.Path(tempfile.gettempdir()) / f"helion-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if is_private(folder):
        return folder
    made = pathlib.Path(tempfile.mkdtemp(prefix=f"helion-{os.getuid()}-"))
    logs.say_once(f"helion: {folder} is not a folder of this user alone (mode 0700) and is not used; using {made}")
    return made


def wanted_cache_dir() -> pathlib.Path:
    """Return the configured cache folder: ``HELION_CACHE_DIR``, else ``helion`` in the user's cache directory.

    The latter is ``XDG_CACHE_HOME`` if that is an absolute path. Raises RuntimeError if there is no home.
    """
    configured = knobs.CACHE_DIR.read()
    if configured:
        return pathlib.Path(configured)
    users = knobs.CACHE_HOME.read()
    if users and pathlib.Path(users).is_absolute():
        return pathlib.Path(users) / "helion"
    return pathlib.Path.home() / ".cache" / "helion"


def read_only_cache_dir() -> pathlib.Path | None:
    """Return the configured cache folder if it can be read but not written."""
    try:
        base = wanted_cache_dir()
    except RuntimeError:
        return None
    readable = os.path.isdir(base) and os.access(base, os.R_OK | os.X_OK)
    return base if readable and not os.access(base, os.W_OK) else None


def cache_dir() -> pathlib.Path:
    """Return ``wanted_cache_dir()``, or a temporary folder of this user if it is not writable, with a notice."""
    configured = knobs.CACHE_DIR.read()
    try:
        base = wanted_cache_dir()
        if not base.is_dir():
            base.mkdir(parents=True, exist_ok=True, mode=0o777 if configured else 0o700)
        if os.access(base, os.W_OK | os.X_OK):
            return base
        reason = "it is not writable"
    except (OSError, RuntimeError) as error:  # pathlib raises RuntimeError where there is no home
        reason = str(error)
    fallback = private_folder()
    users = knobs.CACHE_HOME.read()
    what = f"HELION_CACHE_DIR={configured!r}" if configured else f"{users}/helion" if users else "~/.cache/helion"
    logs.say_once(f"helion: {what} cannot be used ({reason}); using {fallback}")
    return fallback


# --- code ----------------------------------------------------------------------------------------------------------------


def code_folder() -> pathlib.Path:
    """Return the folder of compiled code: the cache, or a private folder if others may write to the cache."""
    base = cache_dir()
    return base if is_trusted(base) else private_folder()


def keep_code(path: pathlib.Path, code: bytes) -> None:
    """Write compiled ``code`` to ``path``, below ``code_folder()``, where no other user can write, and its digest.

    Raises OSError.
    """
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    write_whole(digest_file(path), _digest(code))
    write_whole(path, code)
    path.chmod(0o700)


def is_kept_code(path: pathlib.Path) -> bool:
    """Return whether this user wrote ``path`` and it is unchanged: its digest is stored next to its folder."""
    return is_trusted(path) and path.is_file() and holds(digest_file(path), _digest(path.read_bytes()))


def digest_file(path: pathlib.Path) -> pathlib.Path:
    """Return the path of the digest of compiled code."""
    return path.parent.with_name(f"{path.parent.name}-{path.name}.sha256")


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()
