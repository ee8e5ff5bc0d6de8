"""`traincast mesh`: three forms, what is cut short says so, refusals exit with 2."""

import csv
import io
import json

import pytest
import typer
from typer.testing import CliRunner

from traincast.cli import mesh as command
from traincast.errors import ShapeError, TraincastError, UsageError

app = typer.Typer()
app.command("mesh")(command.mesh)

SIXTEEN = ["--tp", "2", "--pp", "4", "--dp", "2"]


def run(*words):
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_table_of_the_16_rank_case():
    text = run(*SIXTEEN)
    assert "Mesh 826ae75f1807: 16 ranks, order tp-cp-ep-dp-pp" in text
    assert "[0,4,8,12] [1,5,9,13] [2,6,10,14] [3,7,11,15]" in text
    assert "[0,2] [1,3] [4,6] [5,7] [8,10] [9,11] [12,14] [13,15]" in text
    hops = [line.split() for line in text.splitlines() if line.startswith(("0 -> 1", "1 -> 2", "2 -> 3"))]
    assert [line[3:7] for line in hops] == [
        ["0", "->", "4", "node"],
        ["4", "->", "8", "network"],
        ["8", "->", "12", "node"],
    ]


def test_what_is_left_out_is_counted():
    words = ["--tp", "8", "--pp", "64", "--dp", "6"]
    text = run(*words)
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "60 more" in text
    assert "3056 left out, --all shows them" in text
    assert "4016" in text
    assert "4528" in text
    assert rows["tp-pp"]
    everything = run(*words, "--all")
    assert "left out," not in everything
    assert "60 more" not in everything
    assert "[47,95," in everything.replace(" ", "")


def test_json_holds_every_rank():
    payload = json.loads(run(*SIXTEEN, "--layers", "24", "--format", "json"))
    assert payload["signature"] == "826ae75f1807"
    assert payload["families"]["pp"]["groups"][1] == [1, 5, 9, 13]
    assert len(payload["ranks"]) == 16
    five = payload["ranks"][5]
    assert five["coordinates"] == {"tp": 1, "cp": 0, "dp": 0, "pp": 1}
    assert five["node"] == 0
    assert payload["ranks"][9]["node"] == 1
    for family, number in five["groups"].items():
        if number is not None:
            assert 5 in payload["families"][family]["groups"][number]
    assert five["groups"]["embedding"] is None
    assert five["holds"]["layers"] == list(range(6, 12))
    assert five["holds"]["weights"]["mlp up"] == "part 1 of 2"
    assert five["holds"]["weights"]["norms"] == "whole"
    assert payload["communicators"]["four_families"]["groups"] == 8 + 8 + 4 + 16
    assert payload["communicators"]["four_families"]["singletons_wasted"] == 16
    assert payload["communicators"]["full"]["groups"] == 36 + 8 + 2 + 4
    assert [hop["tier"] for hop in payload["placement"]["stage_hops"]] == ["node", "network", "node"]


def test_json_of_an_expert_mesh():
    payload = json.loads(
        run("--tp", "2", "--world", "8", "--ep", "2", "--etp", "2", "--experts", "8", "--format", "json")
    )
    assert payload["sizes"] == {"tp": 2, "cp": 1, "ep": 2, "dp": 4, "pp": 1, "etp": 2, "edp": 2}
    assert payload["families"]["tp-ep"]["groups"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert payload["ranks"][6]["coordinates"]["edp"] == 1
    assert payload["ranks"][2]["holds"]["weights"]["experts"] == "part 1 of 2"


def test_csv_has_a_row_for_each_rank():
    rows = list(csv.DictReader(io.StringIO(run(*SIXTEEN, "--layers", "24", "--vpp", "2", "--format", "csv"))))
    assert len(rows) == 16
    assert rows[4]["pp"] == "1"
    assert rows[4]["layers"] == "3-5, 15-17"
    assert rows[4]["embedding group"] == ""


def test_file_and_form_by_suffix(tmp_path):
    path = tmp_path / "mesh.json"
    assert run(*SIXTEEN, "-o", str(path)) == ""
    assert json.loads(path.read_text())["world"] == 16


def test_sharding_and_placement():
    text = run("--tp", "2", "--dp", "4", "--fsdp", "dp", "--hsdp", "2x2", "--placement", "4-7,0-3")
    assert "HSDP over dp" in text
    assert "[0,4] [1,5] [2,6] [3,7]" in text
    payload = json.loads(run("--dp", "4", "--placement", "2,3,0,1", "--gpus-per-node", "2", "--format", "json"))
    assert [rank["node"] for rank in payload["ranks"]] == [1, 1, 0, 0]


def test_uneven_layers_when_asked_for(capfd):
    payload = json.loads(run("--pp", "4", "--layers", "30", "--uneven", "--format", "json"))
    assert [len(rank["holds"]["layers"]) for rank in payload["ranks"]] == [7, 8, 8, 7]
    assert any("30 layers" in line for line in payload["warnings"])
    payload = json.loads(run("--pp", "2", "--layers", "30", "--stage-layers", "16,14", "--format", "json"))
    assert [len(rank["holds"]["layers"]) for rank in payload["ranks"]] == [16, 14]


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (["--world", "8", "--tp", "8", "--pp", "2"], ShapeError, "world 8"),
        (["--dp", "23", "--global-batch", "32"], ShapeError, "dp 23"),
        (["--pp", "4", "--layers", "30"], ShapeError, "8, 8, 7, 7"),
        (["--tp", "2", "--dp", "2", "--fsdp", "mesh"], ShapeError, "name them: dp"),
        (["--dp", "4", "--hsdp", "two"], UsageError, "--hsdp"),
        (["--dp", "4", "--placement", "0,x"], UsageError, "--placement"),
        (["--dp", "2", "--placement", "1-0"], UsageError, "--placement"),
    ],
)
def test_refusals_exit_with_2(words, kind, text):
    with pytest.raises(TraincastError, match=text) as caught:
        run(*words)
    assert isinstance(caught.value, kind)
    assert caught.value.exit_code == 2
    assert caught.value.fix
