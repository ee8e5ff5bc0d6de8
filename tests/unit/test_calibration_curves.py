"""Curves read from CSV, also from files that are broken."""

import random
from pathlib import Path

import pytest

from traincast.calibration.curves import read_curves
from traincast.errors import DataError
from traincast.validate.collectives import read_collectives, validate_collectives

HEADER = "curve_id,gpu,nodes,gpus,net,nccl_version,op,algo,proto,size_bytes,time_us,algbw_gbps,inplace"
ROW = "c,A100-SXM4-40GB,1,8,NVLink3 NVSwitch,2.10,all_reduce,auto,auto,{},{},{},0"
LISTS = "curve_id,gpu,nodes,gpus,net,nccl_version,op,algo,proto,inplace,sizes_bytes,times_us"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


@pytest.mark.parametrize(
    ("size", "time", "rate", "problem"),
    [
        ("1048576", "30", "34.95", None),
        ("1048576", "30", "39.0", "contradicts itself"),  # the importers' rule: size / time against the printed rate
        ("1048576", "0", "", "no time"),
        ("1048576", "nan", "", "no time"),
        ("1e300", "30", "", "no size"),
        ("-8", "30", "", "no size"),
    ],
)
def test_rows_that_cannot_be_are_kept_as_problems(
    table: Path, size: str, time: str, rate: str, problem: str | None
) -> None:
    table.write_text(f"{HEADER}\n{ROW.format(size, time, rate)}\n")
    (point,) = read_curves(table)[0].points
    assert point.problem is None if problem is None else problem in str(point.problem)


def test_a_spike_is_slower_than_1_3_times_the_next_size(table: Path) -> None:
    rows = [ROW.format(size, time, "") for size, time in ((8, 20), (16, 40), (32, 30), (64, 31))]
    table.write_text("\n".join((HEADER, *rows)))
    assert [point.problem is None for point in read_curves(table)[0].points] == [True, False, True, True]


@pytest.mark.parametrize("cells", ["1 2,3", ",", "1 2"])
def test_lists_of_unlike_length_name_the_line(table: Path, cells: str) -> None:
    table.write_text(f"{LISTS}\nc,A100-SXM4-40GB,1,8,NVLink3,2.10,all_reduce,auto,auto,0,{cells}\n")
    with pytest.raises(DataError, match=r"table\.csv:2"):
        read_curves(table)


def _mangled(line: str, rng: random.Random) -> str:
    at, cells = rng.randrange(len(line) + 1), line.split(",")
    cells[rng.randrange(len(cells))] = rng.choice(["", "nan", "-3", "0", "1e999", "x", "9" * 21, "inf", "1e300"])
    inserted = line[:at] + rng.choice(['"', ",", "\0", "\u00e9", "nan", "-", " "]) + line[at:]
    return rng.choice([line[:at], inserted, line[:at] + line[at + 5 :], ",".join(cells)])


@pytest.mark.parametrize("seed", range(40))
def test_broken_tables_give_scores_or_a_users_error(table: Path, seed: int) -> None:
    rng = random.Random(seed)
    lines = [HEADER, *(ROW.format(2**n, 20 + n, "") for n in range(10, 14))]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        lines[at] = _mangled(lines[at], rng)
    table.write_text("\n".join(lines) + "\n")
    try:
        report = validate_collectives(read_collectives([table]))
    except DataError as error:
        errors, message = [], str(error)
    else:
        errors, message = [row.error_pct for row in report.rows if row.error_pct is not None], "table.csv"
    assert "table.csv" in message
    assert all(abs(error) < 1e18 for error in errors)
