"""Whatever file `calibrate` is given: exit code 2, a message and a fix; no traceback, no half result, no file left."""

import json
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data" / "calibration"
LOG = (DATA / "mpi_tags.log").read_text(encoding="utf-8")
HEADER = "curve_id,gpu,nodes,gpus,net,nccl_version,op,size_bytes,time_us\n"
ROW = "c,A100-SXM4-80GB,1,8,NVLink,2.8,all_reduce,1024,10\n"


def record(**fields: object) -> str:
    """One record of a run on H100, with some fields changed."""
    run = {"schema": 1, "kind": "run", "index": 0, "gpu": "NVIDIA H100 80GB HBM3", "nccl": "2.18.1"}
    row = {"schema": 1, "kind": "collective", "run": 0, "op": "all_reduce", "ranks": 8, "nodes": 1}
    row |= {"size_bytes": 1024, "time_us": 10.0}
    return f"{json.dumps(run)}\n{json.dumps(row | fields)}\n"


def kernel(**fields: object) -> str:
    """One kernel, with some fields changed."""
    usual = {"kind": "kernel", "op": "gemm", "dtype": "bf16", "params": {"m": 64, "n": 64, "k": 64}}
    return record(**(usual | fields))


UNREADABLE = {
    "empty.log": b"",
    "blank.log": b"\n\n  \n",
    "bytes.log": bytes(range(256)) * 50,
    "zeros.log": bytes(1000),
    "packed.gz": b"\x1f\x8b\x08" + bytes(50),
    "prose.md": b"# What we measured\n\nIt was fast.\n",
    "marked_16_bit.csv": b"\xff\xfe" + b"x" * 101,
    "utf16_without_mark.log": LOG.encode("utf-16-le"),
    "cut_in_its_first_line.jsonl": record()[:40].encode(),
    "cut_in_the_middle.jsonl": (record().splitlines()[0] + '\n{"schema":1,"ki\n' + record()).encode(),
    "other_schema.jsonl": b'{"schema":[1],"kind":"run"}\n',
    "other_kind.jsonl": b'{"schema":1,"kind":["run"]}\n',
    "deep.json": b'{"a":' * 3000,
    "deep.jsonl": b'{"schema":1,"params":' + b"[" * 20000 + b"\n",
    "digits.jsonl": record(time_us="T").replace('"T"', "9" * 5000).encode(),
    "huge_time.jsonl": record(time_us=10**400).encode(),
    "huge_size.jsonl": record(size_bytes=10**400).encode(),
    "huge_ranks.jsonl": record(ranks=10**18).encode(),
    "nan.jsonl": record(time_us=float("nan")).encode(),
    "infinite.jsonl": record(time_us=float("inf")).encode(),
    "nan_inside.jsonl": kernel(params={"m": float("nan")}).encode(),
    "no_ranks.jsonl": record(ranks=0).encode(),
    "no_nodes.jsonl": record(nodes=-1).encode(),
    "wrong_types.jsonl": record(flags="x").encode(),
    "wrong_run.jsonl": b'{"schema":1,"kind":"run","gpu":7}\n',
    "many_wrong.jsonl": (b'{"schema":1,"kind":"x"}\n') * 50,
}
UNUSABLE = {
    "one_gpu.jsonl": record(ranks=1, flags=["one_rank"]).encode(),
    "no_time.jsonl": record(time_us=-5.0).encode(),
    "long_time.jsonl": record(time_us=1e300).encode(),
    "no_op.jsonl": record(op=None).encode(),
    "over_gloo.jsonl": record().replace('"nccl"', '"backend": "gloo", "nccl"').encode(),
    "kernel_time.jsonl": kernel(time_us=-1.0).encode(),
    "kernel_rate.jsonl": kernel(op="gelu", bandwidth_bytes_per_s=-3.0, time_us=1.0).encode(),
    "kernel_shape.jsonl": kernel(time_us=1.0, params={"m": -1, "n": 0, "k": 1e300}).encode(),
    "no_rows.csv": HEADER.encode(),
    "huge.csv": (HEADER + ROW.replace("8,", "9" * 20 + ",").replace("1024,10", "1e400,1e400")).encode(),
    "latin.csv": (HEADER + ROW).encode() + b"\xe9\xff\n",
    "long_cell.csv": (HEADER + "c" * 200000 + ROW).encode(),
}
COMMANDS = {
    "import": ("import", "FILE", "-o", "OUT.jsonl"),
    "fit": ("fit", "FILE", "-o", "OUT.yaml"),
    "show": ("show", "FILE", "-o", "OUT.png"),
    "check": ("check", "FILE", "h100-node"),
}


def refused(run, tmp_path, monkeypatch, command, name, data):
    """What a command says of a file; the file is the only one before and after."""
    monkeypatch.chdir(tmp_path)
    if data is None:
        Path(name).mkdir()
    else:
        Path(name).write_bytes(data)
    outcome = run("calibrate", *(name if word == "FILE" else word for word in COMMANDS[command]))
    assert (outcome.code, outcome.out) == (2, "")
    assert "(fix: " in outcome.err
    assert "unexpected" not in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    return outcome.err


@pytest.mark.parametrize("name", [*UNREADABLE, "folder.log"])
@pytest.mark.parametrize("command", COMMANDS)
def test_files_that_are_no_results(run, tmp_path, monkeypatch, command, name):
    said = refused(run, tmp_path, monkeypatch, command, name, UNREADABLE.get(name))
    assert name in said
    assert len(said) < 2500


@pytest.mark.parametrize("name", UNUSABLE)
@pytest.mark.parametrize("command", ["fit", "show", "check"])
def test_results_without_a_single_usable_time_say_why(run, tmp_path, monkeypatch, command, name):
    said = refused(run, tmp_path, monkeypatch, command, name, UNUSABLE[name])
    words = ("no measurement that a profile could learn from", "no record of this file can be used", "CSV", "UTF-8")
    assert any(one in said for one in (*words, "the collective is not told"))


@pytest.mark.parametrize("command", ["fit", "show", "check"])
def test_a_gpu_that_nobody_knows_is_named(run, tmp_path, monkeypatch, command):
    data = record().replace("NVIDIA H100 80GB HBM3", "NVIDIA Z9999").encode()
    said = refused(run, tmp_path, monkeypatch, command, "unknown.jsonl", data)
    assert "'NVIDIA Z9999' is not one GPU of the catalogue" in said
    assert "--gpu NAME" in said


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("crlf.log", LOG.replace("\n", "\r\n").encode()),
        ("utf16.log", LOG.encode("utf-16")),
        ("latin.log", LOG.encode() + b"\xe9\xff\n"),
        ("crlf.jsonl", record().replace("\n", "\r\n").encode()),
        ("utf16.jsonl", record().encode("utf-16")),
        ("cut_at_its_end.jsonl", (record() + '{"schema":1,"ki').encode()),
        ("crlf.csv", (HEADER + ROW).replace("\n", "\r\n").encode()),
        ("utf16.csv", (HEADER + ROW).encode("utf-16")),
        ("marked.csv", (HEADER + ROW).encode("utf-8-sig")),
    ],
)
def test_other_line_ends_and_encodings_are_read(run, tmp_path, name, data):
    """What editors and spreadsheets of other systems write."""
    path = tmp_path / name
    path.write_bytes(data)
    outcome = run("calibrate", "show", path, "--format", "json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["cases"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"name: [", "not a readable profile"),
        (b"", "a profile"),
        (b"- a\n", "a profile"),
        (bytes(range(256)), "not a readable profile"),
        ("name: x".encode("utf-16"), "not a readable profile"),
        (b"name: x\ninherits: ./p.yaml\n", "inherits itself"),
        (b"name: x\ngpu: H100-80GB-SXM\nfabric: f\n", "constants are missing"),
        (b"name: x\ninherits: h100-80gb-sxm\ngpu: H100-80GB-SXM\nfabric: f\nconstants: {gemm.forward: 3}\n", "p.yaml"),
        (None, "no profile 'p.yaml'"),
    ],
)
def test_profiles_that_are_none(run, tmp_path, monkeypatch, text, what):
    monkeypatch.chdir(tmp_path)
    Path("r.log").write_text(LOG, encoding="utf-8")
    if text is None:
        Path("p.yaml").mkdir()
    else:
        Path("p.yaml").write_bytes(text)
    for words in (
        ("show", "p.yaml"),
        ("check", "r.log", "p.yaml"),
        ("fit", "r.log", "--base", "p.yaml", "-o", "x.yaml"),
    ):
        outcome = run("calibrate", *words)
        assert (outcome.code, outcome.out) == (2, "")
        assert what in outcome.err
        assert "(fix: " in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.yaml", "r.log"]
