"""What the text about a network says: adapters a node, their rate and kind, the site, racks."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_ADAPTERS: Final = re.compile(r"(\d{1,3})\s*x\s*(\d{2,4})\s*G", re.IGNORECASE)
_COUNT: Final = re.compile(r"(\d{1,3})\s*x\s*(?:CX|ConnectX|NIC|HCA)|\((\d{1,3})\s*NICs?\b", re.IGNORECASE)
_RATE: Final = re.compile(r"(?<![\d.])(\d{2,4})\s*G(?:b(?:it)?(?:/s|ps)?|\b)", re.IGNORECASE)
_RACKS: Final = re.compile(r"(\d{1,3})\s*racks?\b", re.IGNORECASE)
_GROUPS: Final = re.compile(r"(\d{1,4})\s*groups?\s*concurrently", re.IGNORECASE)
_GENERATIONS: Final = {"edr": 100.0, "hdr": 200.0, "ndr": 400.0, "xdr": 800.0}

_KINDS: Final = (
    ("efa", r"\bEFA\b"),
    ("tcpxo", r"\bTCPXO\b|fastrak"),
    ("tcpx", r"\bTCPX\b"),
    ("roce", r"\bRoCE"),
    ("ib", r"\bIB\b|InfiniBand|\b[EHNX]DR\b"),
    ("tcp", r"\bTCP\b|socket"),
    ("rdma", r"\bRDMA\b"),
)
_SITES: Final = (
    ("azure", r"\bazure\b|\bND[a-z]*v\d\b|\bND\s?[AH]\d00"),
    ("aws", r"\baws\b|\bp[45]\w{0,3}\b|\bEFA\b"),
    ("gcp", r"\bgcp\b|\ba3[- ]?(?:mega|high|ultra)\b|\bTCPXO?\b"),
    ("oci", r"\boci\b|oracle"),
    ("coreweave", r"coreweave"),
    ("abci", r"\babci\b"),
)
_INSIDE: Final = re.compile(r"NVLink|NVSwitch|NVL\d|PCIe|bridge", re.IGNORECASE)


@dataclass(frozen=True)
class Net:
    """A network as its text has it; None and empty: not stated.

    `kind`: ib, roce, efa, tcpx, tcpxo, tcp or rdma. `site`: a known provider. `concurrent`: groups that run at once.
    `mesh`: NVLink without a switch.
    """

    nics: int | None = None
    gbit_per_s: float | None = None
    kind: str = ""
    site: str = ""
    racks: int | None = None
    concurrent: int = 1
    mesh: bool = False
    inside: bool = False

    @property
    def nic_kind(self) -> str:
        """Kind of adapter as the catalogue has it; empty: not told."""
        return {"ib": "ib", "": "", "rdma": ""}.get(self.kind, "ethernet")

    def tags(self, nodes: int) -> tuple[str, ...]:
        """What a profile may say that it is for, from the most to the least specific."""
        site = (self.site,) if self.site else ()
        if nodes <= 1:
            return (*site, "node")
        sized = self.kind and self.nics and self.gbit_per_s
        exact = (f"{self.kind}-{self.nics}x{self.gbit_per_s:g}",) if sized else ()
        return (*site, *exact, *((self.kind,) if self.kind else ()), "fabric")


@lru_cache(maxsize=512)
def net_of(text: str) -> Net:
    """Reads the text about a network; whatever it does not say stays open."""
    adapters, count, rate = _ADAPTERS.search(text), _COUNT.search(text), _RATE.search(text)
    nics = int(adapters.group(1)) if adapters else None
    gbit = float(adapters.group(2)) if adapters else float(rate.group(1)) if rate else None
    if nics is None and count is not None:
        nics = int(count.group(1) or count.group(2))
    if gbit is None:
        lower = text.lower()
        gbit = next((value for name, value in _GENERATIONS.items() if re.search(rf"\b{name}\b", lower)), None)
    racks, groups = _RACKS.search(text), _GROUPS.search(text)
    return Net(
        nics=nics if nics is None or 0 < nics <= 64 else None,
        gbit_per_s=gbit,
        kind=next((name for name, pattern in _KINDS if re.search(pattern, text, re.IGNORECASE)), ""),
        site=next((name for name, pattern in _SITES if re.search(pattern, text, re.IGNORECASE)), ""),
        racks=int(racks.group(1)) if racks else None,
        concurrent=int(groups.group(1)) if groups else 1,
        mesh=bool(re.search(r"NVLink\d?\s+mesh", text, re.IGNORECASE)),
        inside=bool(_INSIDE.search(text)),
    )
