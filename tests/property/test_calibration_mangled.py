"""Logs that something tore up: whatever stands in them, the importers answer with records and problems."""

import random
from collections.abc import Callable
from pathlib import Path

from traincast.calibration import Imported, import_text
from traincast.calibration.collect import FileImport, as_dict
from traincast.errors import TraincastError
from traincast.report.tables import render

DATA = Path(__file__).parent.parent / "data" / "calibration"
MUTATIONS = 2000
NUMBERS = ("nan", "-nan", "inf", "1e999", "1e-400", "-1", "0", "N/A", "9" * 40, "9" * 5000, "0x10", "\u0665", "\u00b2")
MARKS = ("#", "|", ",", "{", "}", "[", '"', "\x00", "\r", "\ud800", "[" * 3000, " " * 3000, "...", "XXXXX")
WORDS = ("float", "sum", "Rank", "host:1:2 [0] NCCL INFO x", "m,n,k,TFLOPS", "| payload | busbw |", "Running x_y.")
JUNK = (*NUMBERS, *MARKS, *WORDS, '{"size":1,"time":"x"}', '{"schema":1}')


def cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def drop_line(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def swap_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "\n".join(lines)


def repeat_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    start = rng.randrange(len(lines))
    return "\n".join(lines[:start] + lines[max(0, start - rng.randrange(1, 9)) :])


def glue_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    return "\n".join([*lines[:at], "".join(lines[at : at + 2]), *lines[at + 2 :]])


def junk_word(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    words[rng.randrange(len(words))] = rng.choice(JUNK)
    return " ".join(words)


def junk_inside(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(JUNK) + text[at:]


def other_digits(text: str, rng: random.Random) -> str:
    marked = list(text)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(marked))
        if marked[at].isdigit():
            marked[at] = rng.choice("0123456789.-e")
    return "".join(marked)


MANGLERS: tuple[Callable[[str, random.Random], str], ...] = (
    cut,
    drop_line,
    swap_lines,
    repeat_lines,
    glue_lines,
    junk_word,
    junk_inside,
    other_digits,
)


def check(found: Imported, text: str) -> None:
    """Problems and records have lines that exist, and something is said about every file."""
    last = text.count("\n") + 1
    assert all(1 <= one.line <= last and one.what for one in found.problems)
    assert all(record.line <= last for record in found.records)
    assert all((record.size_bytes or 1) > 0 for record in found.records)
    assert found.records or found.problems


def test_two_thousand_mangled_logs():
    """No exception but one that is meant for the user."""
    rng = random.Random(20250304)
    files = [path.read_text(encoding="utf-8") for path in sorted(DATA.iterdir())]
    refused = 0
    for number in range(MUTATIONS):
        text = files[number % len(files)]
        for _ in range(rng.randrange(1, 4)):
            text = rng.choice(MANGLERS)(text, rng) or "\n"
        try:
            found = import_text(text, "mangled.log")
        except TraincastError:
            refused += 1
            continue
        check(found, text)
        if number % 20 == 0:
            assert render(as_dict([FileImport("a.log", found)]), [], "json")
    assert refused < MUTATIONS // 20
