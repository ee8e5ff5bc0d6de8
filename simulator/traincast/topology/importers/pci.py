"""Names and PCI numbers of devices -> parts of the catalogue.

Device numbers are those of the PCI ID repository (pci-ids.ucw.cz); rates of adapters are their makers' (NVIDIA's
ConnectX product briefs; AWS's Elastic Fabric Adapter pages).
"""

import re
from collections.abc import Iterable
from typing import Final

from traincast.catalog import Catalog, Nic

_GPU_NUMBERS: Final = {
    "1db1": "V100-16GB-SXM",
    "1db5": "V100-32GB-SXM",
    "20b0": "A100-40GB-SXM",
    "20b2": "A100-80GB-SXM",
    "20b5": "A100-80GB-PCIe",
    "20f1": "A100-40GB-PCIe",
    "20f3": "A800-80GB-SXM",
    "2324": "H800-80GB-SXM",
    "2330": "H100-80GB-SXM",
    "2331": "H100-80GB-PCIe",
    "2335": "H200-141GB-SXM",
    "2901": "B200-180GB-SXM",
    "2941": "GB200",
    "3182": "B300-SXM",
    "31c2": "GB300",
}
# compute capability -> the part that most nodes with it have
_BY_SM: Final = {70: "V100-32GB-SXM", 80: "A100-80GB-SXM", 90: "H100-80GB-SXM", 100: "B200-180GB-SXM"}
# NVLinks of a GPU that reach a switch or all peers -> likewise (nvlink_links of the catalogue's parts)
_BY_LINKS: Final = {6: "V100-32GB-SXM", 8: "A800-80GB-SXM", 12: "A100-80GB-SXM", 18: "H100-80GB-SXM"}
_LINKS_OF: Final = {6: "a V100 has", 8: "A800 and H800 have", 12: "an A100 has", 18: "H100, H200 and B200 have"}
# the rate of its PCIe in GT/s -> likewise
_BY_PCIE: Final = {8: "V100-32GB-SXM", 16: "A100-80GB-SXM", 32: "H100-80GB-SXM", 64: "B300-SXM"}
# raw rate of a node's NICs in Gbit/s -> likewise
_BY_NIC: Final = {100: "V100-32GB-SXM", 200: "A100-80GB-SXM", 400: "H100-80GB-SXM", 800: "B300-SXM"}
# vendor and device number of an adapter -> the highest rate of a port in Gbit/s
_ADAPTER_NUMBERS: Final = {
    ("15b3", "1017"): 100.0,
    ("15b3", "1019"): 100.0,
    ("15b3", "101b"): 200.0,
    ("15b3", "101d"): 100.0,
    ("15b3", "1021"): 400.0,
    ("15b3", "1023"): 800.0,
    ("1d0f", "efa0"): 100.0,
    ("1d0f", "efa1"): 100.0,
    ("1d0f", "efa2"): 200.0,
}
MOST_LINKS: Final = 18
"""No GPU has more NVLinks than these."""
NO_BRIDGE: Final = (6, 18)
"""Links between two GPUs that no bridge of PCIe cards has, so they are all links of a GPU on a board: bridges have 2
or 4 links, and a card up to three of 4 (NVIDIA A100 80GB PCIe product brief)."""
WITHOUT_NVLINK: Final = "A100-80GB-PCIe"
ANY_GPU: Final = "H100-80GB-SXM"

_MODEL: Final = re.compile(r"\b(GB300|GB200|B300|B200|H200|H800|H100|A800|A100|V100)\b|(?<![A-Z0-9])(V100)(?=[A-Z-])")
_MEMORY: Final = re.compile(r"(\d{2,3})\s?GI?B")
_ADAPTERS: Final = (
    (re.compile(r"ConnectX-?8|MT4131", re.I), "ib", 800.0),
    (re.compile(r"ConnectX-?7|MT2910|MT4129", re.I), "ib", 400.0),
    (re.compile(r"ConnectX-?6(?! ?(Dx|Lx))|MT28908|MT4123", re.I), "ib", 200.0),
    (re.compile(r"ConnectX-?6 ?Dx|MT2892", re.I), "ethernet", 100.0),
    (re.compile(r"ConnectX-?5|MT27800|MT4119", re.I), "ib", 100.0),
    (re.compile(r"Elastic Fabric Adapter|\bEFA\b", re.I), "ethernet", 100.0),
    (re.compile(r"Omni-?Path|HFI Silicon", re.I), "opa", 100.0),
    (re.compile(r"BlueField-?3|MT43244", re.I), "ib", 400.0),
    (re.compile(r"BlueField-?2|MT42822", re.I), "ethernet", 100.0),
)


def gpu_by_number(device: str) -> str:
    """The catalogue name of a PCI device number such as ``0x20b2``; empty where it is not known."""
    return _GPU_NUMBERS.get(device.lower().removeprefix("0x"), "")


def adapter_by_number(vendor: str, device: str) -> float:
    """The highest rate in Gbit/s of an adapter's port by its PCI numbers; 0.0 where they are not known."""
    return _ADAPTER_NUMBERS.get((vendor.lower().removeprefix("0x"), device.lower().removeprefix("0x")), 0.0)


def gpu_by_text(text: str, catalog: Catalog) -> str:
    """The catalogue name of a GPU as drivers and lspci print it (``NVIDIA A100-SXM4-80GB``); empty for none.

    Where memory or form factor are not stated, that of the SXM board with the most memory is taken.
    """
    upper = text.upper()
    found = _MODEL.search(upper)
    if found is None:
        return ""
    model = found.group(1) or found.group(2)
    memory = _MEMORY.search(upper)
    pcie = "PCIE" in upper or "NVL" in upper

    def score(name: str) -> tuple[bool, bool, bool]:
        stated = f"-{memory.group(1)}GB" in name.upper() if memory else False
        return stated, ("PCIE" in name.upper()) == pcie, "500W" not in name.upper()

    alike = [name for name in catalog.gpus if re.match(rf"{model}(-|$)", name.upper())]
    return max(sorted(alike, reverse=True), key=score, default="")


def gpu_by_evidence(
    catalog: Catalog, *, sm: int = 0, links: int = 0, gt_per_s: float = 0.0, gbit_per_s: float = 0.0
) -> tuple[str, str]:
    """A likely GPU where no file names it, and what speaks for it."""
    for table, value, why in (
        (_BY_SM, sm, f"compute capability {sm}"),
        (_BY_LINKS, links, f"{links} NVLinks a GPU, as {_LINKS_OF.get(links, '')}"),
        (_BY_PCIE, round(gt_per_s), f"PCIe links of {gt_per_s:g} GT/s"),
        (_BY_NIC, round(gbit_per_s), f"NICs of {gbit_per_s:g} Gbit/s"),
    ):
        name = table.get(value, "") if value else ""
        if name in catalog.gpus:
            return name, f"usual with {why}"
    return ANY_GPU, "nothing in the files tells it"


def adapter_by_text(text: str) -> tuple[str, float] | None:
    """Kind and the highest rate in Gbit/s of a network adapter's family; None for one not made for clusters."""
    return next(((kind, rate) for pattern, kind, rate in _ADAPTERS if pattern.search(text)), None)


def nearest_nic(catalog: Catalog, kind: str, bytes_per_s: float) -> Nic:
    """The NIC of a kind whose rate is nearest; any kind where the catalogue has none of that one."""
    nics = [nic for nic in catalog.nics.values() if nic.kind == kind] or list(catalog.nics.values())
    return min(nics, key=lambda nic: (abs(nic.bandwidth_bytes_per_s - bytes_per_s), nic.name))


def most_common(values: Iterable[str]) -> str:
    """The most frequent of some texts, the first of equals; empty for none."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return max(counts, key=lambda value: counts[value], default="")
