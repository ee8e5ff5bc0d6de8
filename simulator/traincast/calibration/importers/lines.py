"""Lines of a log without what launchers, loggers and Markdown put around them."""

import re
from dataclasses import dataclass
from typing import Final

from traincast.errors import DataError

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")
# Open MPI's --tag-output, which may land in the middle of a line too: [1,0]<stdout>:
_TAG: Final = re.compile(r"\[[^\[\]<>\s]{0,80}\d\]<std(?:out|err|diag)>:? ?")
# host:pid:tid [device] ... NCCL INFO: whatever follows it is no part of a table
_NCCL: Final = re.compile(r"[A-Za-z][\w.-]{0,80}:\d{1,9}:\d{1,9} \[\d{1,4}\] .*")
_BOXES: Final = re.compile("[\u2500-\u257f]+")
_LABELS: Final = (
    re.compile(r"\s*\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s+(?=\S)"),  # kubectl, journal
    re.compile(r"\s*\[(?:default|rank)?\d+\]:?\s*"),  # torchrun, MPICH
    re.compile(r"\s*\d+:\s"),  # srun -l
    re.compile(r"\s*[A-Za-z][\w.-]*:\s+(?=[#\d])"),  # pdsh
    re.compile(r"\s*\w+\(\)?,\s+[\w./]+:\d+,\s?"),  # function and source line of an instrumented build
    re.compile(r"\s*(?:>\s?)+"),  # a quotation in Markdown
)
_MAX_LABELS: Final = 4


@dataclass(frozen=True)
class Line:
    """One line: its number from 1, the text as it stands, the text without labels and NCCL messages.

    `cut` says that an NCCL message stood in it, `message` is that message.
    """

    number: int
    raw: str
    text: str
    cut: bool = False
    message: str = ""

    @property
    def bare(self) -> str:
        """The text without a leading `#`."""
        return self.text.lstrip().lstrip("#").strip()


def read_lines(text: str) -> tuple[Line, ...]:
    """All lines of a log, cleaned; numbering is that of an editor (only \\n ends a line)."""
    return tuple(_clean(number, raw) for number, raw in enumerate(text.split("\n"), start=1))


def decode(data: bytes, name: str) -> str:
    """The text of a file: UTF-8 or marked UTF-16, odd bytes replaced. Raises DataError for what is no text."""
    if data[:2] in (b"\x1f\x8b", b"PK") or data[:6] == b"\xfd7zXZ\x00" or data[:4] == b"\x28\xb5\x2f\xfd":
        raise DataError("the file is compressed", fix="unpack it first", where=name)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace").lstrip("\ufeff")
    text = data.decode("utf-8", errors="replace").lstrip("\ufeff")
    if text.count("\x00") > len(text) // 100:
        raise DataError("the file is no text", fix="give a log, a JSON or a CSV file", where=name)
    return text.replace("\x00", "")


def _clean(number: int, raw: str) -> Line:
    text = raw.rstrip("\r")
    if "\r" in text:  # a progress line, overwritten in place: what was written last is what stood there
        text = text.rsplit("\r", 1)[-1]
    text = _BOXES.sub(" ", _TAG.sub("", _ANSI.sub("", text)))
    found = _NCCL.search(text)
    message = found.group(0) if found else ""
    if found:
        text = text[: found.start()]
    return Line(number, raw, _unlabelled(text).rstrip(), cut=found is not None, message=message)


def _unlabelled(text: str) -> str:
    """The text without the labels in front; a line that is nothing else stays."""
    for _ in range(_MAX_LABELS):
        for label in _LABELS:
            found = label.match(text)
            if found and found.end() < len(text):
                text = text[found.end() :]
                break
        else:
            break
    stripped = text.strip()
    if stripped.startswith("|") and stripped.endswith("|"):
        return stripped.strip("|").replace("|", " ")
    return text
