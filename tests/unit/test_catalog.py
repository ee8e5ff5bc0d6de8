"""catalog.py and topologies/catalog.

Sources of the anchors are named beside them; the laws are those of the hardware (fp8 at twice the 16-bit rate
since Hopper, dense and never sparse) and of the design (every number with kind, source, location, date).
"""

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from traincast import catalog as module
from traincast.catalog import COLUMNS, KINDS, Catalog, data_dir, load_catalog
from traincast.errors import CatalogError

HEADER = ",".join(COLUMNS)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture(autouse=True)
def _no_extra_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(module.EXTRA_VARIABLE, raising=False)


def nics(*rows: str) -> str:
    return "\n".join((HEADER, *rows)) + "\n"


# what the files hold

# names that measured rows use; scenarios/published depends on them
CANONICAL = """V100-32GB-SXM V100-16GB-SXM A100-40GB-SXM A100-80GB-SXM A100-40GB-PCIe A100-80GB-PCIe
A800-80GB-SXM H100-80GB-SXM H100-80GB-PCIe H100-96GB-SXM-500W H800-80GB-SXM H200-141GB-SXM B200-180GB-SXM
B300-SXM GB200 GB300"""


def test_the_gpus_of_the_published_rows_are_there(catalog: Catalog) -> None:
    assert set(CANONICAL.split()) <= set(catalog.gpus)


def test_every_row_says_where_its_number_comes_from(catalog: Catalog) -> None:
    """DESIGN, habit 3: value, unit, kind, source, location, date."""
    for row in catalog.rows:
        assert row.kind in KINDS, row
        assert row.source, row
        assert row.location, row
        assert re.fullmatch(r"\d{4}(-\d{2}){0,2}", row.date), row
        assert row.unit, row
        assert row.value or row.property == "nvswitch", row


# dense peaks, TFLOP/s: V100, A100 and H100 architecture whitepapers; HGX B200/B300 and NVL72 product tables,
# whose tensor figures are printed sparse (fp4: sparse | dense)
DENSE_PEAKS = {
    "V100-32GB-SXM": {"fp16": 125},
    "A100-80GB-SXM": {"tf32": 156, "fp16": 312, "bf16": 312},
    "A100-40GB-PCIe": {"tf32": 156, "fp16": 312, "bf16": 312},
    "A800-80GB-SXM": {"fp16": 312, "bf16": 312},
    "H100-80GB-SXM": {"tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9},
    "H100-80GB-PCIe": {"fp16": 756, "bf16": 756, "fp8": 1513},
    "H800-80GB-SXM": {"bf16": 989.4, "fp8": 1978.9},
    "H200-141GB-SXM": {"bf16": 989.4, "fp8": 1978.9},
    "B200-180GB-SXM": {"bf16": 2250, "fp8": 4500, "mxfp8": 4500, "fp4": 9000},
    "B300-SXM": {"bf16": 2250, "fp8": 4500, "mxfp8": 4500, "fp4": 13500},
    "GB200": {"bf16": 2500, "fp8": 5000, "mxfp8": 5000, "fp4": 10000},
    "GB300": {"bf16": 2500, "fp8": 5000, "mxfp8": 5000, "fp4": 15000},
}


@pytest.mark.parametrize("name", DENSE_PEAKS)
def test_peaks_are_the_dense_ones(catalog: Catalog, name: str) -> None:
    peaks = catalog.gpu(name).peaks_flops_per_s
    assert {p: peaks[p] / 1e12 for p in DENSE_PEAKS[name]} == DENSE_PEAKS[name]


def test_ratios_between_precisions_are_those_of_dense_tensor_cores(catalog: Catalog) -> None:
    """bf16 = fp16; tf32 half of it; fp8 twice; fp4 2 or (Blackwell Ultra) 3 times fp8. Sparse breaks it."""
    for gpu in catalog.gpus.values():
        peaks = gpu.peaks_flops_per_s
        if "bf16" in peaks:
            assert peaks["bf16"] == peaks["fp16"], gpu.name
            assert peaks["tf32"] == pytest.approx(peaks["bf16"] / 2, rel=1e-3), gpu.name
        if "fp8" in peaks:
            assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=1e-3), gpu.name
        if "fp4" in peaks:
            assert peaks["fp4"] == pytest.approx((3 if "B300" in gpu.name else 2) * peaks["fp8"]), gpu.name


# dense 16-bit FLOP per clock and SM: V100, A100, H100 whitepapers (tensor cores x FMA x 2); B200's table
FLOP_PER_CLOCK_AND_SM = {"V": 1024, "A": 2048, "H": 4096, "B": 8192, "G": 8192}


def test_a_peak_is_sms_times_clock_times_what_an_sm_does(catalog: Catalog) -> None:
    for gpu in catalog.gpus.values():
        expected = gpu.sm_count * gpu.sm_clock_hz * FLOP_PER_CLOCK_AND_SM[gpu.name[0]]
        assert gpu.peak("fp16") == pytest.approx(expected, rel=3e-3), gpu.name


def test_memory_is_what_the_name_says_less_what_the_driver_keeps(catalog: Catalog) -> None:
    """The name counts GiB or GB; the device reports 0.99 to 1.00 GiB for each (nvidia-smi)."""
    for gpu in catalog.gpus.values():
        found = re.search(r"(\d+)GB", gpu.name)
        if found:
            assert 0.98 * int(found[1]) <= gpu.memory_bytes / 2**30 <= int(found[1]), gpu.name


def test_nvlink_is_per_direction_and_a_whole_number_of_links(catalog: Catalog) -> None:
    """Links a GPU: V100 6, A100 12, H100 18, B200 18; the export parts 8 (facts of NVLink generations)."""
    rate = {"V": "nvlink2", "A": "nvlink3", "H": "nvlink4", "B": "nvlink5", "G": "nvlink5"}
    links = {"V": 6, "A": 12, "H": 18, "B": 18, "G": 18}
    for gpu in catalog.gpus.values():
        if "PCIe" in gpu.name:
            assert gpu.nvlink_bytes_per_s == 0.0
            continue
        count = 8 if "800" in gpu.name else links[gpu.name[0]]
        assert gpu.nvlink_bytes_per_s == count * catalog.link(rate[gpu.name[0]]).bandwidth_bytes_per_s, gpu.name


def test_usual_nodes_refer_to_parts_of_the_catalogue(catalog: Catalog) -> None:
    for gpu in catalog.gpus.values():
        assert catalog.nic(gpu.nic).name == gpu.nic
        assert not gpu.nvswitch or catalog.switch(gpu.nvswitch).kind == "nvlink"
        assert gpu.nics_per_node >= 1
        assert gpu.nvlink_domain == 1 or gpu.nvlink_domain % gpu.gpus_per_node == 0


def test_a_dgx_a100_is_eight_gpus_on_eight_hdr_adapters(catalog: Catalog) -> None:
    """SC21 section 5: 8 A100 and eight 200 Gbit/s HDR adapters for the application a node."""
    gpu = catalog.gpu("A100-80GB-SXM")
    assert (gpu.gpus_per_node, gpu.nics_per_node, gpu.nic) == (8, 8, "HDR200-IB")
    assert catalog.nic(gpu.nic).bandwidth_bytes_per_s == 25e9
    assert catalog.switch("QM8790").radix == 40


# lookups


def test_lookups_ignore_case_and_an_unknown_name_brings_the_nearest(catalog: Catalog) -> None:
    assert catalog.gpu("a100-80gb-sxm").name == "A100-80GB-SXM"
    with pytest.raises(CatalogError, match="no GPU 'A100-80GB'") as caught:
        catalog.gpu("A100-80GB")
    assert "A100-80GB-SXM" in (caught.value.fix or "")
    for lookup in (catalog.nic, catalog.switch, catalog.link):
        with pytest.raises(CatalogError, match="in the catalogue"):
            lookup("no such part at all")


def test_a_missing_precision_names_those_there_are(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="has no fp8 peak") as caught:
        catalog.gpu("A100-80GB-SXM").peak("fp8")
    assert "bf16" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("kind", "rate", "name"),
    [
        ("ib", 200, "HDR200-IB"),
        ("infiniband", 400, "NDR400-IB"),
        ("roce", 200, "ETH200"),
        ("ethernet", 100, "ETH100"),
        ("opa", 100, "OPA100"),
        ("", 100, "EDR100-IB"),
    ],
)
def test_nic_for(catalog: Catalog, kind: str, rate: float, name: str) -> None:
    assert catalog.nic_for(kind, rate).name == name


@pytest.mark.parametrize(("kind", "rate", "fix"), [("ib", 123, "100, 200, 400"), ("token ring", 100, "ethernet")])
def test_nic_for_says_what_there_is(catalog: Catalog, kind: str, rate: float, fix: str) -> None:
    with pytest.raises(CatalogError) as caught:
        catalog.nic_for(kind, rate)
    assert fix in (caught.value.fix or "")


def test_the_catalogue_is_read_once_and_crosses_process_borders(catalog: Catalog) -> None:
    assert load_catalog() is catalog
    assert pickle.loads(pickle.dumps(catalog)) == catalog
    assert len({hash(gpu) for gpu in catalog.gpus.values()}) == len(catalog.gpus)


# folders of the user's own


def test_a_part_of_ones_own_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "nics.csv").write_text(
        nics(
            "NDR400-IB,kind,ib,name,spec,own test,bench,2026",
            "NDR400-IB,bandwidth_per_direction,390,Gbit/s,measured,own test,bench,2026-01-31",
            "Slingshot-11,kind,ethernet,name,spec,vendor,page 1,2022",
            "Slingshot-11,bandwidth_per_direction,200,Gbit/s,spec,vendor,page 1,2022",
        )
    )
    own = load_catalog(tmp_path)
    assert own.nic("NDR400-IB").bandwidth_bytes_per_s == 390e9 / 8
    assert own.nic("slingshot-11").bandwidth_bytes_per_s == 25e9
    assert own.nic("HDR200-IB").bandwidth_bytes_per_s == 25e9
    assert load_catalog().nic("NDR400-IB").bandwidth_bytes_per_s == 50e9


def test_the_environment_names_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nics.csv").write_text(
        nics("X,kind,ib,name,spec,s,l,2026", "X,bandwidth_per_direction,8,Gbit/s,spec,s,l,2026")
    )
    monkeypatch.setenv(module.EXTRA_VARIABLE, str(tmp_path))
    assert load_catalog().nic("X").bandwidth_bytes_per_s == 1e9


def test_all_mistakes_of_a_folder_are_reported_at_once_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "nics.csv"
    file.write_text(
        nics(
            "X,kind,ib,name,guess,s,l,2026",
            "X,bandwith_per_direction,200,Gbit/s,spec,s,l,2026",
            "X,bandwidth_per_direction,200,Gbit/s,spec,,l,2026",
            "X,kind,ib",
            "X,kind,ib,name,spec,s,l,yesterday",
        )
    )
    with pytest.raises(CatalogError) as caught:
        load_catalog(tmp_path)
    text = str(caught.value)
    for line, what in [
        (2, "kind 'guess'"),
        (3, "did you mean bandwidth_per_direction"),
        (4, "no source"),
        (5, "3 cells"),
        (6, "not a date"),
    ]:
        assert re.search(rf"{re.escape(str(file))}:{line}: .*{re.escape(what)}", text), (line, what, text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: "part,value\n", "the header is"),
        (lambda: nics("X,kind,ib,name,spec,s,l,2026"), "X lacks bandwidth_per_direction"),
        (
            lambda: nics("X,bandwidth_per_direction,200,,spec,s,l,2026", "X,kind,ib,name,spec,s,l,2026"),
            "has no unit",
        ),
        (
            lambda: nics("X,bandwidth_per_direction,200,GB,spec,s,l,2026", "X,kind,ib,name,spec,s,l,2026"),
            "is a size",
        ),
        (lambda: nics(*["X,kind,ib,name,spec,s,l,2026"] * 2), "stands twice"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: Callable[[], str], message: str) -> None:
    (tmp_path / "nics.csv").write_text(content())
    with pytest.raises(CatalogError, match=re.escape(message)):
        load_catalog(tmp_path)


def test_a_gpu_whose_nic_is_unknown_is_refused(tmp_path: Path) -> None:
    own = (data_dir() / "topologies" / "catalog" / "gpus.csv").read_text().replace("HDR200-IB", "HDR200-BI")
    (tmp_path / "gpus.csv").write_text(own)
    with pytest.raises(CatalogError, match=r"no nic 'HDR200-BI' in nics\.csv") as caught:
        load_catalog(tmp_path)
    assert "HDR200-IB" in str(caught.value)


def test_a_folder_without_a_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no catalogue here"):
        load_catalog(tmp_path)
