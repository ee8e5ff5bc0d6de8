"""Files of profiles: what is wrong is named with its place and a fix; bases are found from the file's own folder."""

from pathlib import Path

import pytest

from traincast.errors import DataError
from traincast.profile import load_profile

HEAD = "name: mine\ninherits: h100-80gb-sxm\ngpu: H100-80GB-SXM\nfabric: mine\n"


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (f"{HEAD}constants: {{gemm.forward: 3}}\n", "5:27", "constants.gemm.forward is 3, not a mapping of names"),
        (f"{HEAD}constants: 3\n", "5:12", "constants is 3, not a mapping of names"),
        (f"{HEAD}constants:\n  gemm.forwrd: {{value: 1}}\n", "6:16", "unknown constant 'gemm.forwrd'"),
        (f"{HEAD}constants:\n  gemm.forward: {{value: a}}\n", "6:17", "constants.gemm.forward has no 'kind'"),
        (f"{HEAD}constants:\n  network.hop: {{value: 3, kind: k, source: s}}\n", "6:24", "'3' has no unit"),
        (f"{HEAD}constants:\n  gemm.forward: {{value: .nan, kind: k, source: s}}\n", "6:25", "is nan, not a number"),
        (f"{HEAD}traits: {{nvls: maybe}}\n", "5:16", "trait nvls cannot be 'maybe'"),
        (f"{HEAD}traits: {{nvs: true}}\n", "5:15", "unknown trait 'nvs'"),
        (f"{HEAD}intervals: {{step: 4}}\n", "5:19", "intervals.step is 4"),
        (f"{HEAD}intervals: {{step: {{bands: []}}}}\n", "5:19", "the last band of an interval has no bound"),
        (f"{HEAD}fitted_rows: 3\n", "5:14", "fitted_rows is 3, not a list"),
        (f"{HEAD}fitted_curves: [[1]]\n", "5:17", "fitted_curves.0 is [1], not text"),
        (f"{HEAD}collectives: {{gpus: x}}\n", "5:21", "collectives.gpus is 'x', not a list"),
        (f"{HEAD}correlations: [{{of: a, with: b}}]\n", "5:16", "correlations.0 has no 'r'"),
        ("name: mine\ninherits: h100-80gb-sxm\n", "1:1", "the file has no 'gpu'"),
        ("name: mine\ngpu: x\nfabric: y\n", "1:1", "constants are missing: attention.diagonal"),
        ("name: mine\ninherits: ./mine.yaml\n", "2:11", "this profile inherits itself"),
        ("name: mine\ninherits: nobody.yaml\n", "2:11", "no profile 'nobody.yaml'"),
        ("name: [\n", "2:1", "not a readable profile: "),
        ("name: a\nname: b\n", "2:1", "not a readable profile: found duplicate key"),
        ("- a\n", "1:1", "a profile cannot be ['a'], not a mapping of names"),
        ("", "1:1", "a profile cannot be empty"),
    ],
)
def test_what_is_wrong_has_its_place_and_a_fix(tmp_path: Path, text: str, where: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_profile(str(path))
    assert message in caught.value.message
    assert caught.value.where == f"{path}:{where}"
    assert caught.value.fix


def test_a_base_is_found_from_the_folder_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`inherits: ../base.yaml` means the same wherever the command is started."""
    (tmp_path / "base.yaml").write_text(HEAD.replace("fabric: mine", "fabric: ours"), encoding="utf-8")
    folder = tmp_path / "deeper"
    folder.mkdir()
    constant = 'constants:\n  network.hop: {value: 3, unit: us, kind: measured, source: "a log", error: 0.5}\n'
    (folder / "mine.yaml").write_text(f"{HEAD.replace('h100-80gb-sxm', '../base.yaml')}{constant}", encoding="utf-8")
    monkeypatch.chdir(tmp_path.parent)
    profile = load_profile(str(folder / "mine.yaml"))
    assert profile["gemm.forward"] == load_profile("h100-80gb-sxm")["gemm.forward"]
    hop = profile.constants["network.hop"]
    assert (hop.value, hop.error) == (pytest.approx(3e-6), pytest.approx(0.5e-6))


def test_a_circle_of_files_is_named(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.yaml").write_text(HEAD.replace("h100-80gb-sxm", f"./{other}.yaml"), encoding="utf-8")
    with pytest.raises(DataError, match="inherits itself"):
        load_profile(str(tmp_path / "a.yaml"))


def test_curves_that_told_a_constant_come_with_it(tmp_path: Path) -> None:
    """A profile is told by its own curves and by those of the constants that it inherits and uses; one that it states
    itself leaves its base's curves behind."""
    told = "fitted_curves: [one]\nconstants:\n"
    told += "  network.hop: {value: 3, unit: us, kind: measured, source: s}\n"
    told += "  network.ring_hop: {value: 1, unit: us, kind: measured, source: s, curves: [two, three]}\n"
    told += "  memory.efficiency: {value: 0.9, kind: measured, source: s}\n"
    (tmp_path / "base.yaml").write_text(HEAD + told, encoding="utf-8")
    base, shipped = load_profile(str(tmp_path / "base.yaml")), load_profile("h100-80gb-sxm")
    assert base.own_curves == {"one"}
    assert base.fitted_curves == shipped.fitted_curves | {"one", "two", "three"}
    assert base.constants["memory.efficiency"].curves == frozenset()
    child = HEAD.replace("h100-80gb-sxm", "./base.yaml")
    child += "constants:\n  network.hop: {value: 0, unit: us, kind: assumed, source: s}\n"
    (tmp_path / "child.yaml").write_text(child, encoding="utf-8")
    assert load_profile(str(tmp_path / "child.yaml")).fitted_curves == shipped.fitted_curves | {"two", "three"}
