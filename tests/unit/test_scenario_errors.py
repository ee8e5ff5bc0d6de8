"""What a scenario can get wrong is refused with exit code 2: place, finding and fix, all findings at once."""

from pathlib import Path

import pytest

from traincast.errors import CatalogError, ScenarioError, ShapeError, TopologyError, UserError
from traincast.scenario import load_scenario

SMALL = """\
model: {hidden: 4096, layers: 32, heads: 32, vocab: 32000}
cluster: {gpu: H100-80GB-SXM, nodes: 1, nic: 400 Gbit/s ib}
parallelism: {tp: 2}
training:
  global_batch: 32
  microbatch: 1
  sequence: 2048
"""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a scenario, loads it, and gives the error."""
    monkeypatch.chdir(tmp_path)

    def load(text: str | bytes = SMALL, *overrides: tuple[str, str]) -> UserError:
        path = Path("s.yaml")
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(UserError) as caught:
            load_scenario("s.yaml", overrides)
        assert caught.value.exit_code == 2
        return caught.value

    return load


def test_unknown_key_names_the_nearest(refused):
    error = refused(SMALL.replace("microbatch", "microbtach"))
    assert isinstance(error, ScenarioError)
    assert str(error).splitlines() == [
        "2 errors",
        "s.yaml:4:1: training.microbatch is missing (fix: add microbatch:)",
        "s.yaml:6:3: unknown key 'training.microbtach' (fix: did you mean microbatch?)",
    ]


def test_a_key_of_another_section_is_sent_there(refused):
    error = refused(SMALL + "  tp: 4\n")
    assert str(error) == "s.yaml:8:3: unknown key 'training.tp' (fix: it belongs below parallelism)"


def test_duplicate_keys(refused):
    error = refused(SMALL + "  microbatch: 2\n")
    assert str(error) == "s.yaml:8:3: key 'microbatch' is there twice (first at 6:3) (fix: keep one of them)"


def test_a_bare_number_where_a_unit_belongs(refused):
    error = refused(SMALL + "  bucket: 160000000\n")
    assert error.where == "s.yaml:8:3"
    assert "'160000000' has no unit" in error.message
    assert "80 GiB" in (error.fix or "")
    assert "has no unit" in refused(SMALL.replace("400 Gbit/s ib", "400")).message
    assert "has no unit" in refused(SMALL + "published: {step_time: 102.6, source: x}\n").message


def test_a_size_is_no_time(refused):
    error = refused(SMALL + "published: {step_time: 3 GB, source: x}\n")
    assert "is a size, not a time" in error.message


def test_missing_file_names_the_nearest():
    with pytest.raises(ScenarioError) as caught:
        load_scenario("sc21/t1_1008")
    assert "sc21/t1_1008b" in (caught.value.fix or "")
    with pytest.raises(ScenarioError, match="no scenario 't1_1008b'") as caught:
        load_scenario("t1_1008b")
    assert "sc21/t1_1008b" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("junk", "finding"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "byte 0x89 at offset 0"),
        (b"\x7fELF\x02\x01\x01\x00", "control character 0x02"),
        (b"model: \xff\xfe", "byte 0xff at offset 7"),
        (b"PK\x03\x04", "control character 0x03"),
    ],
)
def test_binary_junk(refused, junk: bytes, finding: str):
    error = refused(junk)
    assert isinstance(error, ScenarioError)
    assert "is not a text file" in error.message
    assert finding in error.message
    assert (error.where or "").startswith("s.yaml:1:")


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "just words\n", "3\n"])
def test_no_mapping(refused, text: str):
    assert "holds no mapping of keys" in refused(text).message


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("model: [1,\ntraining: 2", "s.yaml:2:12"),
        ("model: x\n\ttraining: y\n", "s.yaml:2:1"),
        ("model: *nowhere\n", "s.yaml:1:8"),
        ("model: !!python/object:os.system x\n", "s.yaml:1:8"),
        ("a: 1\n---\nb: 2\n", "s.yaml:2:1"),
    ],
)
def test_no_yaml(refused, text: str, where: str):
    error = refused(text)
    assert "is not YAML" in error.message
    assert error.where == where
    assert "\n" not in str(error)


def test_deep_and_large_files_are_refused(refused):
    assert "nested deeper" in refused("a: " + "[" * 5000).message
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 12)
    )
    assert "more than" in refused(bomb).message
    assert "larger than 1 MiB" in refused(b"#" * (1 << 21)).message


def test_a_gpu_that_the_catalogue_lacks(refused):
    error = refused(SMALL.replace("H100-80GB-SXM", "H100-80G-SXM"))
    assert isinstance(error, CatalogError)
    assert error.where == "s.yaml:2:11"
    assert "H100-80GB-SXM" in (error.fix or "")


def test_a_nic_that_the_catalogue_lacks(refused):
    error = refused(SMALL.replace("400 Gbit/s ib", "410 Gbit/s ib"))
    assert isinstance(error, CatalogError)
    assert error.where == "s.yaml:2:41"
    assert "400" in (error.fix or "")


def test_a_cluster_and_a_model_that_nobody_knows(refused):
    error = refused(SMALL.replace("{gpu: H100-80GB-SXM, nodes: 1, nic: 400 Gbit/s ib}", "selen"))
    assert isinstance(error, TopologyError)
    assert error.where == "s.yaml:2:1"
    assert "selene" in (error.fix or "")
    error = refused("model: llama3-8\n" + SMALL.split("\n", 1)[1])
    assert str(error).startswith("s.yaml:1:1: no model 'llama3-8' (fix: did you mean llama3-8b")


def test_layers_that_do_not_divide(refused):
    # Megatron-LM issue 1304: 30 layers on 4 stages silently built 28
    error = refused(SMALL.replace("layers: 32", "layers: 30"), ("parallelism.pp", "4"))
    assert isinstance(error, ShapeError)
    assert error.where == "--set parallelism.pp=4"
    assert "30 layers do not divide over pp 4" in error.message
    assert "training.stage_layers: [8, 8, 7, 7]" in (error.fix or "")


def test_a_world_that_is_too_small(refused):
    for dp in ((), (("parallelism.dp", "1"),)):
        error = refused(SMALL, ("parallelism.tp", "8"), ("parallelism.pp", "2"), *dp)
        assert isinstance(error, ShapeError)
        assert "world 8 is not a multiple of tp 8 * cp 1 * pp 2 = 16" in error.message
        assert error.where == "--set parallelism.tp=8"


def test_a_batch_that_replicas_do_not_divide(refused):
    error = refused(SMALL.replace("nodes: 1", "nodes: 6"), ("parallelism.dp", "23"))
    assert isinstance(error, ShapeError)
    assert error.where == "--set parallelism.dp=23"
    assert "global batch 32 is not a multiple of microbatch 1 * dp 23 = 23" in error.message
    # 32 x tp 2 are 64 of 48 GPUs
    assert error.fix == "--set training.global_batch=23 or 46, or --set parallelism.dp=16"


def test_heads_that_do_not_divide(refused):
    error = refused(SMALL.replace("tp: 2", "tp: 6, dp: 1"))
    lines = str(error).splitlines()
    assert any(line.startswith("s.yaml:3:15: 32 heads do not divide over tp 6") for line in lines)


def test_interleaving_needs_whole_rounds_of_microbatches(refused):
    error = refused(SMALL, ("parallelism.pp", "4"), ("parallelism.vpp", "2"), ("training.global_batch", "6"))
    assert isinstance(error, ShapeError)
    assert "interleaving (vpp 2): 6 microbatches are not a multiple of pp 4" in error.message
    assert error.where == "--set parallelism.vpp=2"


@pytest.mark.parametrize(
    ("overrides", "finding"),
    [
        ({"parallelism.pp": "2", "training.schedule": "none"}, "schedule none has 1 stage, but pp is 2"),
        ({"parallelism.pp": "2", "training.schedule": "interleaved"}, "schedule interleaved, but vpp is 1"),
        (
            {"parallelism.pp": "2", "parallelism.vpp": "2", "training.schedule": "1f1b"},
            "schedule 1f1b has 1 chunk a stage, but vpp is 2",
        ),
        (
            {"parallelism.pp": "2", "parallelism.vpp": "1", "training.schedule": "zb-v"},
            "schedule zb-v has 2 chunks a stage, but vpp is 1",
        ),
        ({"training.schedule": "dualpipev"}, "schedule dualpipev needs a pipeline, but pp is 1"),
    ],
)
def test_a_schedule_that_the_chunks_do_not_allow(refused, overrides: dict[str, str], finding: str):
    error = refused(SMALL, *overrides.items())
    assert isinstance(error, ShapeError)
    assert finding in error.message


def test_widths_that_clash(refused):
    error = refused(SMALL.replace("hidden: 4096", "hidden: 4100"))
    assert error.where == "s.yaml:1:35"
    assert "hidden 4100 is not a multiple of 32 heads" in error.message
    error = refused(SMALL.replace("vocab: 32000", "vocab: 32000, gated_mlp: true"))
    assert "add ffn_hidden:" in (error.fix or "")


def test_a_rate_needs_its_convention(refused):
    error = refused(SMALL + "published: {tflops_per_gpu: 163, source: x}\n")
    assert error.where == "s.yaml:8:13"
    assert error.fix == "add convention: model, model_causal or hardware"


def test_all_findings_come_at_once_in_the_order_of_the_file(refused):
    error = refused(
        "model: nobody\ncluster:\nparallelism: {tp: 0, order: 7}\n"
        "training: {global_batch: '32', microbatch: true, precision: bf61, overlap_dp: 1, zero_stage: 4}\n"
        "prof: x\n"
    )
    lines = str(error).splitlines()
    assert lines[0] == "10 errors"
    assert [line.split(": ")[0] for line in lines[1:]] == [
        "s.yaml:1:1",
        "s.yaml:2:1",
        "s.yaml:3:15",
        "s.yaml:3:22",
        "s.yaml:4:12",
        "s.yaml:4:32",
        "s.yaml:4:50",
        "s.yaml:4:67",
        "s.yaml:4:82",
        "s.yaml:5:1",
    ]
    assert all("(fix: " in line for line in lines[1:])


def test_a_mistake_in_a_model_file_is_placed_there(refused, tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("hidden: 64\nlayers: 2\nheads: 2\nvocabulary: 100\n")
    error = refused("model: mine.yaml\n" + SMALL.split("\n", 1)[1])
    lines = str(error).splitlines()
    assert lines[1:] == [
        "mine.yaml:1:1: vocab is missing (fix: add vocab:)",
        "mine.yaml:4:1: unknown key 'vocabulary' (fix: did you mean vocab?)",
    ]


def test_overrides_name_their_option(refused):
    error = refused(SMALL, ("training.microbatch", "0"), ("training.bucket", "160000000"), ("zzz", "1"))
    assert [line.split(": ")[0] for line in str(error).splitlines()[1:]] == [
        "--set training.microbatch=0",
        "--set training.bucket=160000000",
        "--set zzz=1",
    ]
    assert refused(SMALL, ("training.microbatch", "[1")).where == "--set training.microbatch=[1"
    assert "is no mapping" in refused(SMALL, ("training.microbatch.x", "1")).message
    assert refused(SMALL, ("training", "3")).where == "--set training=3"


def test_schedules_that_run_ahead_refuse_blocking_messages(refused):
    """They would deadlock: a key of the file, so the user's to mend."""
    error = refused(SMALL, ("parallelism.pp", "2"), ("training.schedule", "zb-h2"), ("training.p2p", "blocking"))
    assert isinstance(error, ShapeError)
    assert error.where == "--set training.p2p=blocking"
    assert "leave training.p2p out" in (error.fix or "")


BOTH_ENDS = """\
model: {hidden: 1024, layers: 24, heads: 16, vocab: 51200}
cluster: {gpu: A100-80GB-SXM, nodes: 3}
parallelism: {tp: 2, pp: 4, dp: 3}
training:
  global_batch: 48
  microbatch: 1
  sequence: 1024
  schedule: dualpipe
"""


@pytest.mark.parametrize(
    ("change", "where", "finding", "fix"),
    [
        (
            ("pp: 4, dp: 3", "pp: 3, dp: 4"),
            "s.yaml:3:22",
            "an even number of them, but pp is 3",
            "set parallelism.pp: 2 or 4",
        ),
        (
            ("batch: 48", "batch: 21"),
            "s.yaml:5:3",
            "2 * pp 4 = 8, but a step has 7",
            "set training.global_batch: 24 or more",
        ),
        (
            ("batch: 48", "batch: 27"),
            "s.yaml:5:3",
            "even number, but a step has 9",
            "set training.global_batch: 24 or 30",
        ),
        (("dp: 3}", "dp: 3, vpp: 1}"), "s.yaml:8:3", "2 chunks a stage, but vpp is 1", "set parallelism.vpp: 2"),
        (
            ("layers: 24", "layers: 26"),
            "s.yaml:3:22",
            "26 layers do not divide over pp 4",
            "set parallelism.pp: 2, or set training.stage_layers: [7, 7, 6, 6]",
        ),
        (("pp: 4, dp: 3", "dp: 12"), "s.yaml:8:3", "needs a pipeline, but pp is 1", "set parallelism.pp: 2 or more"),
    ],
)
def test_limits_of_dualpipe_are_told_at_the_key(refused, change: tuple[str, str], where: str, finding: str, fix: str):
    """DeepSeek-V3's schedule: stages in pairs, two microbatches a stage from both ends together, two chunks a stage."""
    assert change[0] in BOTH_ENDS
    error = refused(BOTH_ENDS.replace(*change))
    assert isinstance(error, ShapeError)
    assert error.where == where
    assert finding in error.message
    assert fix in (error.fix or "")


@pytest.mark.parametrize(("schedule", "depths"), [("zb-v", "3 or 5"), ("dualpipev", "3 or 5"), ("dualpipe", "2 or 6")])
def test_depths_of_a_fix_keep_the_chunks_of_the_schedule(refused, schedule: str, depths: str):
    """Folds cut the layers in two parts a stage, so 30 want pp 3 or 5; DualPipe's copies in one, on an even number."""
    text = BOTH_ENDS.replace("dualpipe", schedule).replace("layers: 24", "layers: 30").replace("nodes: 3", "nodes: 5")
    error = refused(text)
    assert (error.fix or "").startswith(f"set parallelism.pp: {depths}, or set training.stage_layers: [")


def test_what_an_option_broke_an_option_mends(refused):
    error = refused(BOTH_ENDS, ("training.schedule", "none"))
    assert error.where == "--set training.schedule=none"
    assert error.fix == "--set training.schedule=1f1b, or --set parallelism.pp=1"
