"""`traincast calibrate fit`, `show`, `check`, and `validate --collectives`."""

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from traincast.cli.main import main

HEADER = (
    "curve_id,source,gpu,nodes,gpus,net,nccl_version,op,algo,proto,dtype,"
    "size_bytes,time_us,algbw_gbps,busbw_gbps,inplace"
)
SIZES = [2**k for k in range(10, 33, 2)]


def rows(name: str, nodes: int, ranks: int, *, floor_us: float, gb_per_s: float, **other: str) -> list[str]:
    """A plain curve: a floor and a rate; another `gpu`, `net` or `nccl` than usual."""
    net = other.get("net", "8x200G IB HDR") if nodes > 1 else "NVLink3 NVSwitch"
    gpu, nccl = other.get("gpu", "A100-SXM4-80GB"), other.get("nccl", "2.8.4")
    head = f"{name},made up,{gpu},{nodes},{ranks},{net},{nccl},all_reduce,auto,auto,float"
    return [f"{head},{size},{floor_us + size / (1e3 * gb_per_s):.4f},,,0" for size in SIZES]


def written(path: Path, *curves: list[str]) -> Path:
    """A table of curves."""
    path.write_text("\n".join([HEADER, *(row for curve in curves for row in curve)]) + "\n", encoding="utf-8")
    return path


ONE = rows("one", 1, 8, floor_us=25, gb_per_s=130)
TWO = rows("two", 2, 16, floor_us=50, gb_per_s=60)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with results and the profile fitted on them."""
    folder = tmp_path_factory.mktemp("fitted")
    written(folder / "curves.csv", ONE, TWO)
    assert main(["calibrate", "fit", str(folder / "curves.csv"), "-o", str(folder / "mine.yaml")]) == 0
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "curves.csv"
    lines = [HEADER, *rows("one", 1, 8, floor_us=25, gb_per_s=130), *rows("two", 2, 16, floor_us=50, gb_per_s=60)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_fit_check_and_show(run, table, tmp_path):
    profile = tmp_path / "mine.yaml"
    outcome = run("calibrate", "fit", table, "-o", profile)
    assert outcome.code == 0
    assert "network.wire_efficiency" in outcome.out
    text = profile.read_text(encoding="utf-8")
    assert text.startswith("# Fitted by traincast on curves.csv.")
    assert 'inherits: "a100-80gb-sxm"' in text
    outcome = run("calibrate", "check", table, profile, "--within", "60", "--format", "json")
    assert outcome.code == 0
    assert {one["verdict"] for one in json.loads(outcome.out)["changes"]} == {"as before"}
    slow = tmp_path / "slow.csv"
    lines = [HEADER, *rows("two", 2, 16, floor_us=50, gb_per_s=30)]
    slow.write_text("\n".join(lines) + "\n", encoding="utf-8")
    outcome = run("calibrate", "check", slow, profile, "--format", "json")
    assert outcome.code == 1
    found = {one["sizes"]: one["verdict"] for one in json.loads(outcome.out)["changes"]}
    assert found["above 32.0 MiB"] == "slower"
    picture = tmp_path / "fit.png"
    assert run("calibrate", "show", table, "--profile", profile, "-o", picture).code == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    outcome = run("calibrate", "show", table, "--profile", profile, "--format", "csv")
    shown = list(csv.DictReader(io.StringIO(outcome.out)))
    assert len(shown) == 2 * len(SIZES)
    assert shown[0]["group"] == "one"
    outcome = run("predict", "examples/gpt_10b_1f1b", "--set", f"profile={profile}", "--format", "json")
    assert json.loads(outcome.out)["profile"] == "mine"


def test_a_profile_stands_for_the_logs_that_told_it(run):
    outcome = run("calibrate", "show", "a100-azure-ndv4", "--format", "json")
    assert outcome.code == 0
    assert {one["group"] for one in json.loads(outcome.out)["cases"]} == {"a100_8g_echo", "a100_2n_echo"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "TABLE", "-o", "x.json"), "end it in .yaml"),
        (("fit", "TABLE", "-o", "x.yaml", "--gpu", "H20"), "H20"),
        (("fit", "TABLE", "-o", "/nowhere/x.yaml"), "cannot write /nowhere/x.yaml"),
        (("check", "TABLE", "no-such-profile"), "no profile 'no-such-profile'"),
        (("check", "TABLE", "a100-node", "--within", "-1"), "--within"),
        (("show", "no-such-profile"), "no profile 'no-such-profile'"),
    ],
)
def test_mistakes_end_with_2_and_a_fix(run, table, tmp_path, arguments, message):
    outcome = run("calibrate", *(table if text == "TABLE" else text for text in arguments))
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_collectives_are_validated_point_by_point(run, table):
    outcome = run("validate", "--collectives", table, "--format", "json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert len(found["rows"]) == 2 * len(SIZES)
    first = found["rows"][0]
    wanted = {"curve_id", "size_bytes", "in_place", "measured_us", "predicted_us", "error_pct", "status", "reason"}
    assert wanted <= set(first)
    assert first["status"] == "scored"
    assert first["error_pct"] == pytest.approx(100 * (first["predicted_us"] / first["measured_us"] - 1))
    assert [one["profile"] for one in found["hardware"]] == ["a100-node", "a100-azure-ndv4"]
    rows_of = list(csv.DictReader(io.StringIO(run("validate", "--collectives", table, "--format", "csv").out)))
    assert len(rows_of) == 2 * len(SIZES)
    assert run("validate", "--collectives", table, "--max-mape", "0.1").code == 1


def test_unknown_hardware_is_skipped_with_its_reason(run, tmp_path):
    path = tmp_path / "unknown.csv"
    line = "x,y,H20,1,8,NVLink4,2.20.5,all_reduce,auto,auto,float,1048576,50,,,0"
    odd = "z,y,A100-SXM4-80GB,1,8,NVLink3,2.20.5,hypercube,auto,auto,float,1048576,50,,,0"
    path.write_text(f"{HEADER}\n{line}\n{odd}\n", encoding="utf-8")
    found = json.loads(run("validate", "--collectives", path, "--format", "json").out)
    assert [one["status"] for one in found["rows"]] == ["skipped", "skipped"]
    assert [one["predicted_us"] for one in found["rows"]] == [None, None]
    assert "H20" in found["rows"][0]["reason"]
    assert "hypercube" in found["rows"][1]["reason"]


def test_a_curve_that_told_a_constant_is_not_scored(run, tmp_path):
    path = tmp_path / "known.csv"
    line = "a100_8g_echo,y,A100-SXM4-40GB,1,8,NVLink3 (Azure NDv4),,all_reduce,auto,auto,float,1048576,72.53,,,0"
    path.write_text(f"{HEADER}\n{line}\n", encoding="utf-8")
    (row,) = json.loads(run("validate", "--collectives", path, "--format", "json").out)["rows"]
    assert row["status"] == "fitted"
    assert "a100-azure-ndv4 was fitted on this curve" in row["reason"]


def test_collectives_have_no_families_and_need_their_columns(run, tmp_path):
    assert "no families" in run("validate", "--collectives", "--family", "sc21").err
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    outcome = run("validate", "--collectives", path)
    assert outcome.code == 2
    assert "x.csv:1: lacks the columns" in outcome.err


def test_a_profile_of_ones_own_is_shown_with_its_results_where_they_are(run, fitted, tmp_path, monkeypatch):
    """The profile names its files; they are looked for beside it and here, else it is said what to pass."""
    outcome = run("calibrate", "show", fitted / "mine.yaml", "--format", "json")
    assert {one["group"] for one in json.loads(outcome.out)["cases"]} == {"one", "two"}
    assert "curves.csv, which it was fitted on" in outcome.err
    monkeypatch.chdir(tmp_path)
    shutil.copy(fitted / "mine.yaml", "mine.yaml")
    alone = run("calibrate", "show", "mine.yaml")
    assert alone.code == 0
    assert alone.out.startswith("Profile mine\n")
    assert "fitted on curves.csv, not found beside the profile or here" in alone.err
    assert "traincast calibrate show mine.yaml curves.csv" in alone.err
    none = run("calibrate", "show", "mine.yaml", "-o", "a.png")
    assert (none.code, "traincast calibrate show mine.yaml curves.csv" in none.err) == (2, True)
    assert not Path("a.png").exists()
    assert run("calibrate", "show", "mine.yaml", fitted / "curves.csv", "-o", "a.png").code == 0
    assert Path("a.png").read_bytes()[:4] == b"\x89PNG"
    both = run("calibrate", "show", "mine.yaml", fitted / "curves.csv").out
    other = run("calibrate", "show", fitted / "curves.csv", "--profile", "mine.yaml").out
    assert both.endswith(other)
    assert "two profiles" in run("calibrate", "show", "mine.yaml", "--profile", "a100-node").err


def test_a_shipped_profile_that_no_curve_told_says_what_to_add(run, tmp_path):
    outcome = run("calibrate", "show", "a100-80gb-sxm")
    assert (outcome.code, outcome.out.startswith("Profile a100-80gb-sxm")) == (0, True)
    assert "traincast calibrate show a100-80gb-sxm RESULTS..." in outcome.err
    drawn = run("calibrate", "show", "a100-80gb-sxm", "-o", tmp_path / "a.png")
    assert (drawn.code, "was fitted on no curve that comes along" in drawn.err) == (2, True)


def test_what_was_stated_for_a_fit_holds_when_it_is_shown(run, tmp_path):
    """The GPU is told once: the profile keeps it, and the files' own text of it is not asked again."""
    written(tmp_path / "nameless.csv", rows("one", 1, 8, floor_us=25, gb_per_s=130, gpu=""))
    profile = tmp_path / "123.yaml"
    outcome = run("calibrate", "fit", tmp_path / "nameless.csv", "-o", profile, "--gpu", "A100-80GB-SXM")
    assert outcome.code == 0
    assert 'name: "123"' in profile.read_text(encoding="utf-8")
    found = json.loads(run("calibrate", "show", profile, "--format", "json").out)
    assert (found["profile"], len(found["cases"])) == ("123", len(SIZES))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"gpu": "H100-SXM5-80GB"}, "A100-80GB-SXM (12 points of 1 curve), H100-80GB-SXM (12 points of 1 curve)"),
        ({"net": "8x100G RoCE"}, "8x200G IB HDR: 12 points of 1 curve; 8x100G RoCE: 12 points of 1 curve"),
        ({"gpu": "H20"}, "'H20' is not one GPU of the catalogue"),
    ],
)
def test_one_gpu_and_one_fabric_a_profile(run, tmp_path, other, words):
    mixed = written(tmp_path / "mixed.csv", TWO, rows("other", 2, 16, floor_us=50, gb_per_s=60, **other))
    outcome = run("calibrate", "fit", mixed, "-o", tmp_path / "x.yaml")
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert "(fix: " in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["mixed.csv"]


def test_a_fit_says_what_told_it_and_which_versions_of_nccl_ran(run, tmp_path):
    """One network in two words is one; two minor versions of NCCL are worth a word."""
    same = rows("other", 2, 16, floor_us=50, gb_per_s=60, net="InfiniBand HDR", nccl="2.18.1")
    outcome = run("calibrate", "fit", written(tmp_path / "c.csv", ONE, TWO, same), "-o", tmp_path / "x.yaml")
    assert outcome.code == 0
    assert "constants told by 36 points of 3 curves" in outcome.err
    assert "2.8.4 (2), 2.18.1 (1); the profile states 2.8.4" in outcome.err


def test_a_fit_that_nothing_comes_near_says_so(run, tmp_path):
    """Hardly a fiftieth of the rate of such a machine: it is not what it was said to be."""
    path = written(tmp_path / "c.csv", rows("one", 1, 8, floor_us=25, gb_per_s=3))
    outcome = run("calibrate", "fit", path, "-o", tmp_path / "x.yaml")
    assert (outcome.code, "the model does not describe these results: " in outcome.err) == (1, True)
    written(path, rows("one", 1, 8, floor_us=25, gb_per_s=6))  # half of it is matched, the mean is not
    outcome = run("calibrate", "fit", path, "-o", tmp_path / "x.yaml")
    assert (outcome.code, "no constants come near these results: " in outcome.err) == (0, True)
    written(path, rows("one", 1, 8, floor_us=90000, gb_per_s=0.1))
    nothing = run("calibrate", "fit", path, "-o", tmp_path / "z.yaml")
    assert (nothing.code, "no constants come near these results: " in nothing.err) == (2, True)
    assert not (tmp_path / "z.yaml").exists()
    assert "come near" not in run("calibrate", "fit", written(path, ONE, TWO), "-o", tmp_path / "y.yaml").err


def test_a_profile_that_would_inherit_itself_is_refused(run, fitted, tmp_path):
    shutil.copy(fitted / "mine.yaml", tmp_path / "mine.yaml")
    before = (tmp_path / "mine.yaml").read_bytes()
    mine = tmp_path / "mine.yaml"
    outcome = run("calibrate", "fit", fitted / "curves.csv", "--base", mine, "-o", mine)
    assert (outcome.code, "is one of the files that are read" in outcome.err) == (2, True)
    assert mine.read_bytes() == before


def test_a_check_says_how_it_ended_and_what_is_furthest(run, fitted, tmp_path):
    curves, mine = fitted / "curves.csv", fitted / "mine.yaml"
    outcome = run("calibrate", "check", curves, mine, "--within", "60")
    assert outcome.code == 0
    last = outcome.out.splitlines()[-1]
    assert last.startswith("nothing changed      6        0     24  all_reduce, inside a node, up to 32.0 MiB")
    found = json.loads(run("calibrate", "check", curves, mine, "--within", "60", "--format", "json").out)
    assert (found["verdict"], found["bands"], found["changed_bands"]) == ("nothing changed", 6, 0)
    ratios = [one["median_ratio"] for one in found["changes"]]
    assert found["furthest"]["median_ratio"] == max(ratios, key=lambda ratio: max(ratio, 1 / ratio))
    slow = written(tmp_path / "slow.csv", rows("two", 2, 16, floor_us=50, gb_per_s=30))
    outcome = run("calibrate", "check", slow, mine)
    assert outcome.code == 1
    assert outcome.out.splitlines()[-1].startswith("changed      3        1     12  all_reduce, across nodes, above")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"gpu": "H100-SXM5-80GB"}, "these results are of H100-80GB-SXM, profile mine is of A100-80GB-SXM"),
        ({"net": "8x100G RoCE"}, "two ran over '8x100G RoCE', profile mine is of '8x200G IB HDR'"),
    ],
)
def test_other_hardware_is_no_change(run, fitted, tmp_path, other, words):
    """`check` refuses to compare it, `show` compares and says so."""
    new = written(tmp_path / "new.csv", rows("two", 2, 16, floor_us=50, gb_per_s=60, **other))
    outcome = run("calibrate", "check", new, fitted / "mine.yaml")
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    stated = ("--gpu", "A100-80GB-SXM", "--net", "8x200G IB HDR")
    assert run("calibrate", "check", new, fitted / "mine.yaml", *stated, "--within", "60").code == 0
    shown = run("calibrate", "show", fitted / "mine.yaml", new)
    assert (shown.code, words in shown.err) == (0, True)


def test_results_in_the_place_of_a_profile(run, fitted, tmp_path):
    curves, mine = fitted / "curves.csv", fitted / "mine.yaml"
    assert f"fix: the profile comes last: {curves} {mine}" in run("calibrate", "check", mine, curves).err
    assert f"traincast calibrate fit {curves} -o curves.yaml" in run("calibrate", "check", curves, curves).err
    outcome = run("calibrate", "fit", mine, "-o", tmp_path / "x.yaml")
    assert (outcome.code, "is a profile, not results" in outcome.err) == (2, True)
    nameless = written(tmp_path / "nameless.csv", rows("one", 1, 8, floor_us=25, gb_per_s=130, gpu=""))
    outcome = run("calibrate", "check", nameless, mine, "--within", "60")
    assert outcome.code == 0
    assert "1 curve names no GPU: taken as A100-80GB-SXM, that of the profile" in outcome.err


@pytest.mark.parametrize("command", ["import", "fit", "show", "check"])
def test_notes_come_after_the_result_where_both_go_to_one_place(fitted, tmp_path, monkeypatch, command):
    """As in a terminal or `> log 2>&1`."""
    table = written(tmp_path / "c.csv", ONE, TWO, [ONE[0].replace("one", "odd").replace(",1024,", ",0,")])
    log = Path(__file__).parent.parent / "data" / "calibration" / "wrong_rows.log"
    words = {
        "import": (log, "--format", "csv"),
        "fit": (table, "-o", tmp_path / "x.yaml"),
        "show": (fitted / "mine.yaml", table),
        "check": (table, fitted / "mine.yaml"),
    }[command]
    both = io.StringIO()
    monkeypatch.setattr(sys, "stdout", both)
    monkeypatch.setattr(sys, "stderr", both)
    main(["calibrate", command, *map(str, words)])
    text = both.getvalue()
    note = "wrong_rows.log:14: 2098 wrong" if command == "import" else "odd: no size that can be: size_bytes is '0'"
    result = {"import": "2097152", "fit": "network.wire", "show": "By log", "check": "Verdict"}[command]
    assert 0 <= text.index(result) < text.index(note)


def test_a_base_of_another_generation_is_refused(run, tmp_path):
    """What a fit does not tell is the base's: a V100's rates and caps are none of an A100."""
    table = written(tmp_path / "c.csv", ONE)
    outcome = run("calibrate", "fit", table, "-o", tmp_path / "x.yaml", "--base", "v100-sxm")
    assert (outcome.code, outcome.out) == (2, "")
    assert "results are of A100-80GB-SXM (ampere), base profile v100-sxm is of V100-32GB-SXM (volta)" in outcome.err
    assert "leave --base out" in outcome.err
    assert not (tmp_path / "x.yaml").exists()
    other = run("calibrate", "fit", table, "-o", tmp_path / "y.yaml", "--base", "a100-node")
    assert other.code == 0


def test_check_refuses_a_profile_on_a_base_of_another_generation(run, tmp_path):
    mine = 'name: mine\ninherits: v100-sxm\ngpu: A100-80GB-SXM\nfabric: f\ntraits: {nccl: "2.8", generation: volta}\n'
    (tmp_path / "mine.yaml").write_text(mine, encoding="utf-8")
    table = written(tmp_path / "c.csv", ONE)
    for words in ((), ("--gpu", "A100-80GB-SXM")):
        outcome = run("calibrate", "check", table, tmp_path / "mine.yaml", *words)
        assert (outcome.code, outcome.out) == (2, "")
        assert "profile mine is of A100-80GB-SXM (ampere) on a base of volta" in outcome.err
    assert run("calibrate", "check", table, "v100-sxm").code == 2


def test_a_profile_finds_its_base_from_anywhere(run, fitted, tmp_path, monkeypatch):
    """`--base ./mine.yaml` is seen from where the command runs, `inherits` from the folder of the new profile."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(fitted / "mine.yaml", "mine.yaml")
    table = written(tmp_path / "c.csv", rows("again", 1, 8, floor_us=26, gb_per_s=131))
    Path("deeper").mkdir()
    for output, inherits in (("new.yaml", "./mine.yaml"), ("deeper/new.yaml", "../mine.yaml")):
        assert run("calibrate", "fit", table, "-o", output, "--base", "./mine.yaml").code == 0
        assert f'inherits: "{inherits}"' in Path(output).read_text(encoding="utf-8")
        monkeypatch.chdir(fitted)
        shown = run("calibrate", "show", tmp_path / output, table, "--format", "json")
        assert (shown.code, json.loads(shown.out)["profile"]) == (0, "new")
        monkeypatch.chdir(tmp_path)


def test_a_fit_tells_its_errors_and_what_it_could_not_tell_apart(run, tmp_path):
    """Standard errors and strong correlations: on screen, as JSON, in the profile, and when it is shown. Two and four
    nodes hardly tell a factor on latencies from what a hop adds."""
    table = written(tmp_path / "c.csv", TWO, rows("four", 4, 32, floor_us=90, gb_per_s=60))
    profile = tmp_path / "mine.yaml"
    outcome = run("calibrate", "fit", table, "-o", profile, "--format", "json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    told = {one["name"]: one for one in found["constants"] if one["from"] == "measured"}
    assert all(one["standard_error"] > 0 for one in told.values())
    assert {one["log"] for one in found["logs"]} == {"two", "four"}
    assert ("network.inter_latency", "network.hop") in {(pair["of"], pair["with"]) for pair in found["correlations"]}
    for pair in found["correlations"]:
        assert 0.8 <= abs(pair["r"]) <= 1.0
        assert {pair["of"], pair["with"]} <= set(told)
    text = profile.read_text(encoding="utf-8")
    first = found["correlations"][0]
    assert f"- {{of: {first['of']}, with: {first['with']}, r: {first['r']:.2f}}}" in text
    assert ", error: " in text
    shown = run("calibrate", "show", profile).out
    assert "hangs together with" in shown
    assert "standard error" in shown
    assert "hangs together with" in run("calibrate", "fit", table, "-o", profile).out
    columns = run("calibrate", "fit", table, "-o", profile, "--format", "csv").out.splitlines()[0]
    assert columns == "constant,value,unit,standard error,from,cases,logs"
