"""What all importers share: bytes to lines, problems with their place, and the error of a damaged file."""

import re
from dataclasses import dataclass
from typing import Final

from traincast.errors import TopologyError

MOST_BYTES: Final = 64_000_000
# colours and underlines of terminals, and the window titles that some shells print
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9])")


@dataclass(frozen=True)
class Problem:
    """Something in a file that was left out, mended or looks wrong; line 0 is the whole file."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}" if self.line else f"{self.file}: {self.what}"


def decode(data: bytes, name: str) -> tuple[str, tuple[Problem, ...]]:
    """The text of a file, and a problem for each line with bytes that are no text.

    UTF-8, with or without a byte order mark, and UTF-16 as PowerShell redirects it. Raises TopologyError for an
    empty file and for one that is too large.
    """
    if len(data) > MOST_BYTES:
        raise TopologyError("too large for a topology file", where=name, fix=f"give at most {MOST_BYTES} bytes")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = data.decode(encoding, errors="replace")
    if not text.strip():
        raise TopologyError("the file is empty", where=f"{name}:1", fix="save the command's output again")
    problems = [
        Problem(name, number, "holds bytes that are no text")
        for number, line in enumerate(lines_of(text), 1)
        if "�" in line or "\x00" in line
    ]
    return text, tuple(problems)


def lines_of(text: str) -> list[str]:
    """The lines of a text without terminal escapes; line n is at place n - 1, as editors count."""
    return [plain_line(line) for line in text.replace("\r\n", "\n").split("\n")]


def plain_line(line: str) -> str:
    """One line without terminal escapes and trailing carriage returns."""
    return _ESCAPES.sub("", line).rstrip("\r") if "\x1b" in line or "\r" in line else line


def damaged(
    name: str, line: int, what: str, expected: str, fix: str = "save the command's output again"
) -> TopologyError:
    """The error of a file that cannot be read on: where, what stands there, what was expected."""
    return TopologyError(f"{what}, expected {expected}", where=f"{name}:{max(1, line)}", fix=fix)


def shown(text: str, most: int = 60) -> str:
    """A piece of a file for a message, on one line."""
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= most else f"{flat[: most - 3]}...")
