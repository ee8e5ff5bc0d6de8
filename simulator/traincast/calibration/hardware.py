"""Which catalogue GPU a log means, from the name that it prints."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from traincast.catalog import load_catalog

_RULES: Final = (
    (r"\bA800\b(?!.*PCI)", "A800-80GB-SXM"),
    (r"\bA100\b.*PCI.*40\s*GB", "A100-40GB-PCIe"),
    (r"\bA100\b.*PCI", "A100-80GB-PCIe"),
    (r"\bA100\b.*40\s*GB", "A100-40GB-SXM"),
    (r"\bA100\b|\bsm_?80\b", "A100-80GB-SXM"),
    (r"\bH800\b(?!.*PCI)", "H800-80GB-SXM"),
    (r"\bH200\b(?!.*NVL\b)", "H200-141GB-SXM"),
    (r"\bH100\b.*(?:PCI|\bNVL\b)|\bH100 pairs\b", "H100-80GB-PCIe"),
    (r"\bH100\b|\bsm_?90\b", "H100-80GB-SXM"),
    (r"\bGB300\b|\bsm_?103\b", "GB300"),
    (r"\bGB200\b", "GB200"),
    (r"\bB300\b", "B300-SXM"),
    (r"\bB200\b|\bsm_?100\b", "B200-180GB-SXM"),
    (r"\bV100\b.*32\s*GB", "V100-32GB-SXM"),
    (r"\bV100\b", "V100-16GB-SXM"),
    (r"\bL40S\b", "L40S"),
    (r"\bRTX\s*PRO\s*6000\b", "RTX-PRO-6000-Server"),
)
"""Patterns in the order in which they are tried, and catalogue names."""

_FAMILIES: Final = re.compile(
    r"\b(?:A100|A800|H100|H800|H200|H20|GH200|GB200|GB300|B200|B300|V100|L40S)\b", re.IGNORECASE
)
_BRIDGED: Final = re.compile(r"\bpairs\b|bridge", re.IGNORECASE)


@dataclass(frozen=True)
class NamedGpu:
    """A catalogue GPU; `bridged`: PCIe cards joined in pairs by NVLink bridges. `note`: what had to be assumed."""

    name: str
    bridged: bool = False
    note: str | None = None


@lru_cache(maxsize=512)
def gpu_of(text: str, further: str = "") -> NamedGpu | None:
    """The catalogue GPU that `text` names; None where it names none, several, or one that is not in the catalogue.

    `further` (the text about the network) may say that cards are bridged.
    """
    catalog = load_catalog()
    exact = next((name for name in catalog.gpus if name.lower() == text.strip().lower()), None)
    bridged = bool(_BRIDGED.search(text) or _BRIDGED.search(further))
    if exact is not None:
        return NamedGpu(exact, bridged and catalog.gpu(exact).nvlink_bytes_per_s == 0.0)
    if len({name.upper() for name in _FAMILIES.findall(text)}) > 1:
        return None
    name = next((found for pattern, found in _RULES if re.search(pattern, text, re.IGNORECASE)), None)
    if name is None or name not in catalog.gpus:
        return None
    if bridged and catalog.gpu(name).nvlink_bytes_per_s > 0.0:
        name = {"A100-80GB-SXM": "A100-80GB-PCIe", "A100-40GB-SXM": "A100-40GB-PCIe"}.get(name, name)
    bridged = bridged and catalog.gpu(name).nvlink_bytes_per_s == 0.0
    return NamedGpu(name, bridged, f"GPU {text.strip()!r} is taken as {name}")
