"""Plan, options, launch, metadata, store and judgement of the microbenchmark suite, all without PyTorch."""

import json
import subprocess
import sys
from collections import Counter
from itertools import groupby
from types import SimpleNamespace

import pytest
from on_gpu import machine_name
from suite.groups import measured_families, shape_of
from suite.launch import LaunchError, find_launch, first_host, tasks_of_node
from suite.meta import host_label, run_entry, safe_command, safe_environment, topology_text
from suite.options import FULL_S, OPS, QUICK_S, OptionError, checked, parse, size_bytes
from suite.plan import Item, Site, build, ladder, reference
from suite.store import StoreError, open_store
from train_step import CATALOGUE, scenario_text

from traincast.catalog import load_catalog
from traincast.forecast import forecast
from traincast.scenario import load_scenario


def plan(*arguments, world=8, gpu=True):
    options = parse(["-o", "any.jsonl", *arguments])
    shape = shape_of(world, dict(options.sizes), options.order)
    return build(options, Site(gpu, measured_families(shape), fp8=True))


def test_no_module_of_the_plan_needs_pytorch_or_the_simulator(checkout):
    """A compute node may have neither when a plan is made or judged; the suite never imports traincast."""
    modules = "groups, stats, options, plan, judge, meta, launch, store, progress, rows, startup"
    modules = modules.replace(" ", "").split(",")
    script = f"import sys; sys.path.insert(0, 'calibration'); import suite.{', suite.'.join(modules)}\n"
    script += "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'traincast', 'numpy')])"
    modules.remove("rows")  # it needs the samples, whose module measures
    script = script.replace("suite.rows, ", "")
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    for path in (checkout / "calibration").glob("suite/*.py"):
        assert "import traincast" not in path.read_text(encoding="utf-8")
        assert "from traincast" not in path.read_text(encoding="utf-8")


def test_the_plan_begins_with_what_tells_most_and_has_every_size():
    """4 B to 4 GiB in factors of 2; the coarse picture of all parts comes before any detail."""
    items = plan("--tp", "2", "--pp", "2")
    assert items[0].params[0] == ("pass", "reference")
    assert [tier for tier, _ in groupby(item.tier for item in items)] == [0, 1, 2, 3]
    assert len({item.key for item in items}) == len(items)
    sizes = {i.size_bytes for i in items if i.part == "collectives" and i.op == "all_reduce" and i.family == "tp"}
    assert sizes == {4 * 2**n for n in range(31)}
    parts = {item.part for item in items if item.tier <= 1}
    wanted = {"gemm", "attention", "memory", "optimizer", "launch", "setup", "overlap", "families", "collectives"}
    assert parts == wanted | {"pairs"}
    quick = plan("--quick", "--tp", "2", "--pp", "2")
    assert {item.key for item in quick} == {item.key for item in items if item.tier <= 1}


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_budget_that_runs_out_leaves_the_same_share_of_every_part(share):
    """Half of a tier is half of each part of it, to one item: no part is left out because another came first."""
    tier = [item for item in plan("--tp", "2", "--pp", "2") if item.tier == 1]
    of_all = Counter(item.part for item in tier)
    done = Counter(item.part for item in tier[: round(share * len(tier))])
    assert len(of_all) == 8
    for part, count in of_all.items():
        assert abs(done[part] - share * count) <= 1, part


def test_the_items_of_a_part_keep_their_order():
    """Sizes ascend (a larger one that would not end in time is known by a smaller one); groups are made before a mesh
    starts up."""
    items = plan("--tp", "2", "--pp", "2")
    for tier in (1, 2, 3):
        sizes = [i.size_bytes for i in items if (i.tier, i.op, i.family, i.mode) == (tier, "all_reduce", "tp", "all")]
        assert sizes == sorted(sizes)
    assert [item.op for item in items if item.part == "setup"][-1] == "mesh_startup"


@pytest.mark.parametrize(("arguments", "gpu"), [(("--min-size", "128MiB"), False), (("--max-size", "4"), True)])
def test_a_single_size_is_a_plan_too(arguments, gpu):
    items = plan("--only", "collectives,overlap", *arguments, gpu=gpu)
    assert {item.size_bytes for item in items if item.part in ("collectives", "pairs")} == {size_bytes(arguments[1])}


def test_collectives_run_over_world_and_families_alone_and_at_once():
    items = [item for item in plan("--tp", "2", "--ep", "4") if item.part == "collectives"]
    found = {(item.op, item.family, item.mode) for item in items}
    for op in OPS:
        assert {(op, family, "all") for family in ("world", "tp", "dp", "ep", "edp")} <= found
        assert (op, "dp", "alone") in found
        assert (op, "world", "alone") not in found  # it is the same as all at once
    pairs = {item.family for item in plan("--tp", "2", "--pp", "2") if item.part == "families"}
    assert pairs == {"tp+pp", "tp+dp", "tp+tp-pp", "pp+dp", "pp+tp-pp", "dp+tp-pp"}


def test_products_of_a_layer_have_the_shapes_of_a_transformer():
    """Y[s, n] = X[s, k] W^T: forward, dgrad and wgrad multiply the same three numbers."""
    items = plan("--only", "gemm", "--hidden", "4096", "--tokens", "2048")
    assert items[0] == reference(Site(True, {}))
    for item in items:
        shape = dict(item.params)
        if shape.get("layer") == "fc1":
            assert shape["m"] * shape["n"] * shape["k"] == 2048 * 4096 * (4 * 4096 // shape["tp"])
    assert {dict(item.params)["pass"] for item in items} == {"forward", "dgrad", "wgrad", "reference"}
    assert {item.dtype for item in items} == {"bf16", "fp16", "fp8"}


def test_a_ladder_refines_itself():
    found = ladder(4, 4096)
    assert [size for size, tier in found.items() if tier == 1] == [4, 64, 1024]
    assert [size for size, tier in found.items() if tier == 2] == [16, 256, 4096]
    assert list(found) == [2**n for n in range(2, 13)]


def test_options():
    assert parse(["-o", "x"]).budget_s == FULL_S
    assert parse(["-o", "x", "--quick"]).budget_s == QUICK_S < 180
    assert (size_bytes("4GiB"), size_bytes("64k"), size_bytes("12")) == (4 * 2**30, 64000, 12)
    for wrong in (["--max-size", "much"], ["--only", "magic"], ["--budget", "-1"], ["--hidden", "0"], []):
        with pytest.raises(SystemExit) as caught:
            parse([*(["-o", "x"] if wrong else []), *wrong])
        assert caught.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-size", "2"], "--max-size: 2 bytes is below the smallest message; give 4 bytes or more"),
        (["--min-size", "1KiB", "--max-size", "64"], "give 1024 bytes or more"),
        (["--max-size", "9999GiB"], "more than any message; give 4GiB or less"),
        (["--max-size", "9" * 5000], "is no size; write 4, 64KiB or 4GiB"),
        (["--budget", "0"], "--budget: 0 is no time; give a number of seconds above 0"),
        (["--budget", "inf"], "--budget: inf is no time; "),
        (["--stability", "nan"], "--stability: nan is no share; "),
        (["--only", "gemm,atention"], "--only: there is no 'atention'; did you mean attention?"),
        (["--ops", ""], "--ops: names nothing; give some of all_reduce"),
        (["--hidden", "99999999"], "has a number above 9999999; "),
        (["--tokens", "1e3"], "is no list of whole numbers; "),
        (["--tp", "two"], "--tp: invalid int value: 'two'; "),
        (["--nonsense"], "unrecognized arguments: --nonsense; "),
    ],
)
def test_wrong_options_say_what_to_write(arguments, message):
    """What is wrong and, after a semicolon, what to write: `traincast calibrate run` makes a fix of it."""
    with pytest.raises(OptionError) as caught:
        checked(["-o", "x", *arguments])
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_who_am_i_under_torchrun_slurm_and_alone():
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    torchrun |= {"MASTER_ADDR": "one", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "none"}
    found = find_launch(torchrun)
    assert (found.rank, found.world, found.local_rank, found.local_world, found.launcher) == (5, 8, 1, 4, "torchrun")
    slurm = {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "12", "SLURM_STEP_ID": "0", "SLURM_NODEID": "1"}
    slurm |= {"SLURM_TASKS_PER_NODE": "8,4", "SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "4123"}
    found = find_launch(slurm)
    assert (found.rank, found.local_world, found.address, found.port) == (9, 4, "gpu07", 29623)
    batch = {name: value for name, value in slurm.items() if name != "SLURM_STEP_ID"}
    assert find_launch(batch).world == find_launch({}).world == 1
    with pytest.raises(LaunchError, match="MASTER_ADDR"):
        find_launch({"RANK": "0", "WORLD_SIZE": "2"})


def test_short_forms_of_slurm():
    """Forms of sbatch's documentation: SLURM_TASKS_PER_NODE "2(x3),1", node lists with brackets."""
    assert [tasks_of_node("2(x3),1", node) for node in range(4)] == [2, 2, 2, 1]
    assert [first_host(text) for text in ("a1", "a1,a2", "a[07-12,20],b1", "a[3,5]-ib")] == ["a1", "a1", "a07", "a3-ib"]
    with pytest.raises(LaunchError):
        tasks_of_node("2(x3),1", 4)


def test_metadata_names_no_host_path_or_secret():
    """What stays: variables that change what is measured. What goes: addresses, keys, folders, other variables."""
    environment = {
        "NCCL_ALGO": "Ring",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_TOPO_FILE": "/home/someone/topo.xml",
        "NCCL_COMM_ID": "10.0.0.1:2345",
        "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
        "UCX_TLS": "rc,cuda",
        "NCCL_SOME_KEY": "abc",
        "NCCL_DEBUG_FILE": "node17.cluster.example.org",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "/home/someone",
    }
    assert safe_environment(environment) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_ALGO": "Ring",
        "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_TOPO_FILE": "topo.xml",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "UCX_TLS": "rc,cuda",
    }
    assert safe_command(["run.py", "-o", "/home/me/r.jsonl", "--output=/tmp/x"]) == "run.py -o r.jsonl --output=x"
    entry = json.dumps(run_entry(0, {"gpu": None, "world": 4}, ["run.py", "-o", "/home/me/r"], environment))
    assert "/" not in json.loads(entry)["command"]
    assert "home" not in entry
    assert topology_text("\x1b[4mGPU0\x1b[0m NV12\n") == "GPU0 NV12"


def test_a_label_tells_hosts_of_one_run_apart_and_no_more():
    """The salt is thrown away: without it nobody can try names."""
    one = host_label("node17", b"a")
    assert one == host_label("node17", b"a")
    assert one != host_label("node18", b"a")
    assert one != host_label("node17", b"b")
    assert "17" not in one or one.startswith("host-")


FACTS = {"gpu": "H", "world": 4, "nodes": 1, "mesh": "tp2", "torch": "2", "backend": "nccl"}


def written(path, *entries):
    store = open_store(path, False, FACTS)
    store.write([{"kind": "run", "index": 0, **FACTS}, *entries])


def test_a_run_goes_on_where_it_ended(tmp_path):
    """What was measured stays; what the budget left out is tried again; a line that was cut off goes."""
    path = tmp_path / "r.jsonl"
    out = {"kind": "skipped", "item": "b", "reason": "budget", "why": "no time"}
    never = {"kind": "skipped", "item": "c", "reason": "unsupported", "why": "no"}
    written(path, {"kind": "kernel", "item": "a", "time_us": 1.0}, out, never)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"schema":1,"kind":"ker')
    store = open_store(path, True, FACTS)
    assert store.done == {"a", "c"}
    assert store.index == 1
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", ["gpu", "world", "mesh", "torch"])
def test_a_run_of_another_machine_is_not_gone_on_with(tmp_path, name):
    path = tmp_path / "r.jsonl"
    written(path)
    with pytest.raises(StoreError, match=f"of another run: {name}"):
        open_store(path, True, FACTS | {name: "other"})
    with pytest.raises(StoreError, match="exists; add --resume"):
        open_store(path, False, FACTS)


def test_a_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("# a log\n", encoding="utf-8")
    with pytest.raises(StoreError, match=r"r\.jsonl:1 is no line of JSON"):
        open_store(path, True, FACTS)
    assert path.read_text(encoding="utf-8") == "# a log\n"


def test_keys_stay_the_same_from_run_to_run():
    """--resume lives on them."""
    item = Item(1, "collectives", "all_reduce", "tp", "alone", "fp32", 1024)
    assert item.key == "collectives/all_reduce/tp/alone/fp32/1024"
    assert item.reduced == "collectives/all_reduce/tp/alone/fp32"


def test_a_measured_step_becomes_a_scenario_that_can_be_forecast(tmp_path):
    """What train_step.py writes beside its records; the driver's names of GPUs lead to those of the catalogue."""
    size = SimpleNamespace(layers=12, hidden=2048, heads=16, vocab=51200, sequence=2048, microbatch=4, microbatches=2)
    for gpu in ("NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        path = tmp_path / "step.yaml"
        for dtype in ("bf16", "fp16"):
            path.write_text(scenario_text(size, gpu, 123456.0, dtype), encoding="utf-8")
            assert forecast(load_scenario(path)).step_time_s > 0
    assert set(CATALOGUE.values()) <= set(load_catalog().gpus)
    assert machine_name("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
