"""Files that are put in place whole or not at all, whatever else writes or reads them at the same time."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


LOCK = ".lock"
"""Name of the file that a command holds in its folder. The system frees it when the process ends, however it ends."""


@contextlib.contextmanager
def held(folder: Path, refusal: Exception) -> Iterator[None]:
    """Hold a folder for this process.

    Args:
        folder: it exists.
        refusal: raised where another process holds it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise refusal from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink()  # while it is held: who comes later has a file of its own
        lock.release()


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; the file written there takes the place of `path`, or is removed on an error.

    Processes that share a folder may write the same file: each has a name of its own, and the last one stays. Only a
    process that is killed in between leaves what it had written, hidden and read by nobody. (The name is not
    :mod:`tempfile`'s, whose files their owner alone may read.)

    Args:
        path: the file; its folder is made.

    Raises:
        OSError: the folder cannot be made, or the file not be put in place; it names `path`, where it names no file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # as that of a full disk
            error.filename = os.fspath(path)
        raise


def write_text(path: Path, text: str) -> Path:
    """Write a text in UTF-8, its line ends as they are, and return the path. Bytes of a name that are none become "?".

    Raises:
        OSError: it cannot be written there.
    """
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace", newline="")
    return path


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file: the same bytes for the same content, to be read by whom other files are read.

    Args:
        path: the file; its folder is made.
        tensors: by name, contiguous, of any device, none of which share memory.
        metadata: stored beside them.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with whole(path) as partial:
        partial.touch()
        mode = partial.stat().st_mode  # which safetensors makes the owner's alone
        try:
            save_file(dict(tensors), partial, metadata=dict(metadata))
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from None  # which number it was, it says in words alone
        partial.chmod(mode)
        with partial.open("r+b") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            header["__metadata__"] = dict(sorted(metadata.items()))  # they come in an order of chance
            file.seek(8)
            ordered = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
            assert len(ordered) <= size, "the same in another order is no longer"
            file.write(ordered.ljust(size))


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is no file that holds one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
