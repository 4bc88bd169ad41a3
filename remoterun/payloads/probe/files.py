"""Small text files of /proc, /sys and /etc, read without ever raising."""

from __future__ import annotations

import os
from itertools import islice
from typing import List, Optional

_PIECE = 1 << 16
_MOST_PIECES = 64


class Files:
    """Read files below a root folder; remember which are there but could not be read."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self.unread: List[str] = []

    def path(self, path: str) -> str:
        """Return where a path of the target is."""
        return path if self.root == "/" else self.root + path

    def text(self, path: str, errors: str = "replace") -> Optional[str]:
        """Return a file's text, None when it is not there or can't be read."""
        try:
            with open(self.path(path), "rb", buffering=0) as stream:
                # Small pieces: the kernel refuses to read a setting of /proc/sys into a buffer of megabytes.
                pieces = iter(lambda: stream.read(_PIECE), b"")
                return b"".join(islice(pieces, _MOST_PIECES)).decode("utf-8", errors)
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            return None
        except OSError as error:
            self.unread.append("%s: %s" % (path, error.strerror))
            return None

    def line(self, path: str) -> Optional[str]:
        """Return a file's text without the white space around it; None when there is none."""
        return (self.text(path) or "").strip() or None

    def names(self, path: str) -> List[str]:
        """Return the names in a folder, sorted; none when it is not there."""
        try:
            return sorted(os.listdir(self.path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unread.append("%s: %s" % (path, error.strerror))
            return []


def number(text: Optional[str]) -> Optional[int]:
    """Read a whole number, None for anything else (``max``, an empty file)."""
    stripped = (text or "").strip()
    # 20 digits hold every 64-bit number.
    return int(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) <= 20 else None


def printable(text: str) -> str:
    """Replace bytes that are no UTF-8, which Python keeps as surrogates in paths."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
