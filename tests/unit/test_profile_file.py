"""Files of profiles: what is wrong is named with its place and a fix; bases are found from the file's own folder."""

from pathlib import Path

import pytest

from traincast.calibration.kernel_fit import PRIORS as KERNELS
from traincast.calibration.network_fit import PRIORS as NETWORK
from traincast.errors import DataError
from traincast.profile import CONSTANTS, Traits, load_profile, profiles_dir, shipped_profiles
from traincast.profilerules import KINDS, RANGES, range_of

HEAD = "name: mine\ninherits: h100-80gb-sxm\ngpu: H100-80GB-SXM\nfabric: mine\n"


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (f"{HEAD}constants: {{gemm.forward: 3}}\n", "5:27", "constants.gemm.forward is 3, not a mapping of names"),
        (f"{HEAD}constants: 3\n", "5:12", "constants is 3, not a mapping of names"),
        (f"{HEAD}constants:\n  gemm.forwrd: {{value: 1}}\n", "6:16", "unknown constant 'gemm.forwrd'"),
        (f"{HEAD}constants:\n  gemm.forward: {{value: a}}\n", "6:17", "constants.gemm.forward has no 'kind'"),
        (f"{HEAD}constants:\n  network.hop: {{value: 3, kind: derived, source: s}}\n", "6:24", "'3' has no unit"),
        (
            f"{HEAD}constants:\n  gemm.forward: {{value: .nan, kind: derived, source: s}}\n",
            "6:25",
            "is nan, not a number",
        ),
        (f"{HEAD}trait: {{nvls: true}}\n", "5:8", "unknown key 'trait'"),
        (f"{HEAD}collectives: {{gpu: [x]}}\n", "5:20", "unknown key of collectives 'gpu'"),
        (
            f"{HEAD}constants:\n  gemm.fp8: {{vale: 1, value: 1, kind: derived, source: s}}\n",
            "6:20",
            "unknown key of a",
        ),
        (f"{HEAD}traits: {{nvls: maybe}}\n", "5:16", "trait nvls cannot be 'maybe'"),
        (f"{HEAD}traits: {{nvs: true}}\n", "5:15", "unknown trait 'nvs'"),
        (f"{HEAD}intervals: {{step: 4}}\n", "5:19", "intervals.step is 4"),
        (f"{HEAD}intervals: {{step: {{bands: []}}}}\n", "5:19", "the last band of an interval has no bound"),
        (f"{HEAD}fitted_rows: 3\n", "5:14", "fitted_rows is 3, not a list"),
        (f"{HEAD}fitted_curves: [[1]]\n", "5:17", "fitted_curves.0 is [1], not text"),
        (f"{HEAD}collectives: {{gpus: x}}\n", "5:21", "collectives.gpus is 'x', not a list"),
        (f"{HEAD}correlations: [{{of: a, with: b}}]\n", "5:16", "correlations.0 has no 'r'"),
        ("name: mine\ninherits: h100-80gb-sxm\nfabric: f\n", "1:1", "the file has no 'gpu'"),
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


def stated(**constants: str) -> str:
    """A profile with constants, named with `__` for the dot."""
    lines = [f"  {name.replace('__', '.')}: {{source: s, {what}}}\n" for name, what in constants.items()]
    return f"{HEAD}constants:\n{''.join(lines)}"


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """A file is mended in one pass: unknown keys, traits, and every constant that cannot be."""
    path = tmp_path / "mine.yaml"
    constants = stated(
        memory__efficiency="value: 0, kind: measured",
        gemm__fp8="value: -3, kind: measured",
        gemm__forward="value: 90, kind: guess",
        network__hup="value: 1, kind: derived",
        gemm__ramp_k="value: -1, kind: derived",
        kernel__fixed="value: -1, unit: us, kind: derived",
    )
    path.write_text(f"{constants}nots: 3\ntraits: {{nvs: true}}\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_profile(str(path))
    said = str(caught.value).splitlines()
    assert said[0] == "9 errors"
    assert sorted(int(line.removeprefix(f"{path}:").split(":")[0]) for line in said[1:]) == [
        6,
        7,
        8,
        8,
        9,
        10,
        11,
        12,
        13,
    ]
    assert all("(fix: " in line for line in said[1:])


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("memory__efficiency", 0.9, True),
        ("memory__efficiency", 1.04, True),  # of a bandwidth that a data sheet rounds down
        ("memory__efficiency", 0, False),  # nothing would ever end
        ("memory__efficiency", 90, False),  # per cent
        ("gemm__wave_weight", 0, True),
        ("gemm__wave_weight", 1.1, False),  # a part of a wave
        ("overlap__slowdown", 0, True),
        ("overlap__slowdown", 1.2, True),  # more than twice as long
        ("overlap__slowdown", -0.1, False),
        ("network__intra_efficiency", 1.28, True),  # on NCCL's own figure, which is no peak
        ("network__intra_efficiency", 0, False),
        ("network__intra_mixing", 2.3, True),
        ("gemm__ramp_k", -1, False),
    ],
)
def test_a_constant_is_what_it_can_mean(tmp_path: Path, name: str, value: float, legal: bool) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(stated(**{name: f"value: {value}, kind: derived"}), encoding="utf-8")
    if legal:
        assert load_profile(str(path))[name.replace("__", ".")] == value
        return
    with pytest.raises(DataError, match=f"cannot be {value}"):
        load_profile(str(path))


def test_every_ratio_has_a_range_and_every_fit_stays_within() -> None:
    """A profile that `calibrate fit` writes is one that is read again; so is every shipped one."""
    assert set(RANGES) == {name for name, (dimension, _) in CONSTANTS.items() if dimension == "ratio"}
    for name, prior in {**NETWORK, **KERNELS}.items():
        assert range_of(name).holds(prior.low)
        assert range_of(name).holds(prior.high)
    for profile in shipped_profiles():
        assert all(range_of(name).holds(one.value) for name, one in profile.constants.items())
        assert {one.kind for one in profile.constants.values()} <= set(KINDS)


def test_traits_are_inherited_where_none_is_stated(tmp_path: Path) -> None:
    """A file that states any states all; all shipped ones do, so that none changes with its parent."""
    parent = load_profile("h100-80gb-sxm").traits
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD, encoding="utf-8")
    assert load_profile(str(path)).traits == parent != Traits()
    some = tmp_path / "some.yaml"
    some.write_text(f"{HEAD}traits: {{nvls: false}}\n", encoding="utf-8")
    assert load_profile(str(some)).traits == Traits(nvls=False)
    shipped = sorted(profiles_dir().glob("*.yaml"))
    assert shipped
    assert all("\ntraits:" in one.read_text(encoding="utf-8") for one in shipped)


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
