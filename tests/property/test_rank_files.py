"""Rank files and rank maps that were damaged: read, or refused with a reason, never a traceback."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import UserError
from traincast.plan.agree import compare
from traincast.plan.rankmaps import read_rank_map
from traincast.scenario.rankfile import read_rank_file

LOG = "".join(
    f"node0:10{d}:20{d} [{d}] NCCL INFO comm 0x55{n}0 rank {p} nranks {len(g)} cudaDev {d} busId {d + 1}000 "
    f"commId 0x{n + 16:x} - Init COMPLETE\n"
    for n, g in enumerate(([0, 1, 2, 3], [0, 1], [2, 3]))
    for p, d in enumerate(g)
)
TEXTS = (
    ("json", "[8, 9, 0, 1]"),
    ("json", json.dumps({"ranks": [{"rank": r, "gpu": r, "tp": r % 2, "dp": r // 2} for r in range(4)]})),
    ("json", json.dumps({"0": {"tp": 0, "dp": 0}, "1": {"tp": 1, "dp": 0}})),
    ("json", json.dumps({"families": {"tp": {"groups": [[0, 1], [2, 3]]}, "dp": [[0, 2], [1, 3]]}})),
    ("csv", "rank,gpu,tp,dp\n0,8,0,0\n1,9,1,0\n2,0,0,1\n3,n0/gpu1,1,1\n"),
    ("csv", "rank,node,slot\n0,n1,0\n1,n1,1\n"),
    ("txt", "# hosts\nn1:2\nn0 slots=2\nn3\n"),
    ("txt", "rank 0=n1 slot=0\nrank 1=+n1 slot=1:3\n"),
    ("log", LOG),
)
BITS = st.sampled_from(["", "-", "9", "rank", ",", "null", "[", "}", '"', "\n", "=", "1e9", "n", "\x7f", "é", " "])


@settings(max_examples=300)
@given(st.sampled_from(TEXTS), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), BITS), min_size=1, max_size=4))
def test_damage_is_refused_or_read(source: tuple[str, str], edits: list[tuple[float, int, str]]) -> None:
    """Cuts and insertions anywhere."""
    suffix, text = source
    for share, cut, bit in edits:
        at = int(share * len(text))
        text = text[:at] + bit + text[at + cut :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"damaged.{suffix}"
        path.write_text(text, encoding="utf-8")
        for read in (
            lambda: read_rank_file(path),
            lambda: compare(read_rank_map("tp2-dp2"), read_rank_map(str(path))),
        ):
            with suppress(UserError):
                read()
