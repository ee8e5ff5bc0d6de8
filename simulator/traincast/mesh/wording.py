"""Fixes in the words of who asked: keys of a scenario, options of a command, axes of a sweep.

The checks write a fix as settings and values, such as "tp 4 or 8, or 24 or 32 heads", since they do not know where the
settings came from. Whoever does has them written as they are to be typed.
"""

import re
from collections.abc import Callable
from typing import Final

NUMBERS: Final = (
    *("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "world", "global batch", "microbatch", "sequence"),
    *("heads", "kv_heads", "ffn_hidden", "layers", "cp_ulysses", "zero_stage", "fsdp_shard"),
)
"""Settings whose values are whole numbers."""

CHOICES: Final = ("sequence_parallel", "schedule", "cp_kind", "attention", "recompute", "p2p", "offload_states")
"""Settings whose values are names."""

NAMES: Final = (*NUMBERS, *CHOICES)

_LIST: Final = r"\d+(?: or \d+)*(?: or (?:more|less)| to \d+)?"
_NUMBER: Final = rf"(?:{'|'.join(sorted(NUMBERS, key=len, reverse=True))})"
_CHOICE: Final = rf"(?:{'|'.join(CHOICES)})"
_SETTING: Final = re.compile(
    rf"(?<![\w.-])(?P<beside>with )?(?:"
    rf"no (?P<none>{_NUMBER}|{_CHOICE})(?![\w-])"
    rf"|(?P<number>{_NUMBER}) (?P<values>{_LIST})"
    rf"|(?P<first>\d+(?: or \d+)*) (?P<last>heads|kv_heads)(?![\w-])"
    rf"|(?P<choice>{_CHOICE}) (?P<chosen>[a-z0-9][\w-]*(?: or [a-z0-9][\w-]*)*))"
)

Write = Callable[[str, str], str]
"""(setting, values; empty: it is to be left out) -> how that is typed."""


def worded(fix: str, write: Write) -> str:
    """The fix with each setting and its values as `write` has them; other words stay."""

    def typed(found: re.Match[str]) -> str:
        name = found["none"] or found["number"] or found["last"] or found["choice"]
        text = write(name, found["values"] or found["first"] or found["chosen"] or "")
        return f"and {text.removeprefix('set ')}" if found["beside"] else text

    return _SETTING.sub(typed, fix)


def as_option(name: str, values: str) -> str:
    """`tp 4 or 8` as `--tp 4 or 8`, as the mesh command has it."""
    option = f"--{name.replace(' ', '-').replace('_', '-')}"
    return f"{option} {values}" if values else f"no {option}"
