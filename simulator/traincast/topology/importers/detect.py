"""Which form a text has: by what only that form prints, never by the file's name."""

import re
from typing import Final

from traincast.errors import TopologyError
from traincast.topology.importers import iblinkinfo, ibnetdiscover, lspci, matrix, nccllog, ncclxml, slurm
from traincast.topology.importers.text import lines_of

IBSTAT_FORM: Final = "ibstat"
_MOST_LINES: Final = 200_000
_KNOWN: Final = (
    "nvidia-smi topo -m, lspci, NCCL topology XML, ibnetdiscover, iblinkinfo, Slurm topology.conf or topology.yaml, "
    "a log of NCCL_DEBUG=INFO"
)
_MATRIX: Final = re.compile(
    r"\s*GPU\d+(\s+(GPU\d+|NIC\d+|X|NV\d+|[a-z]\w*_\w+|CPU|OK|PIX|PXB|PHB|NODE|SYS|[A-Z]{2,4})\b)+"
)
_LONE_GPU: Final = re.compile(r"\s*GPU\d+\s*")
_IBSTAT: Final = re.compile(r"(VM_hostname\s+\S+|CA '[^']+'|\s+Port GUID: 0x[0-9a-f]+)\s*")
_RECORD: Final = re.compile(
    r'(Switch|Ca)\s+\d+\s+"|\[\d+\].*"[SHR]-[0-9a-f]+"\[|(vendid|sysimgguid|switchguid|caguid)=0x'
)
_SLURM_YAML: Final = re.compile(r"\s*(-\s+)?(topology|cluster_default|tree|block|block_sizes|switches):(\s|$)")
_TIMES: Final = re.compile(r"busbw|\(GB/s\)|\b(float|bfloat16|half|double|int\w*)\s+(sum|none|prod|max|min)\s+(-?\d|$)")
_CONFIG_MAP: Final = re.compile(r"kind:\s*ConfigMap\b")


def form_of(text: str, name: str = "input") -> str:
    """The name of a text's form. Raises TopologyError where it is none that can be read."""
    body = text.lstrip("\ufeff \t\r\n")
    if body.startswith("<"):
        return ncclxml.FORM
    lines = lines_of(text)[:_MOST_LINES]
    counts = {form: sum(1 for line in lines if test(line)) for form, test in _TESTS}
    if any(_CONFIG_MAP.match(line) for line in lines):
        return slurm.YAML_FORM
    # a log may hold a matrix, and comments quote other commands: the more lines the likelier
    best = max(counts, key=lambda form: counts[form])
    if counts[best]:
        return best
    if any(_TIMES.search(line) for line in lines):
        raise TopologyError(
            f"a table of nccl-tests without ranks: no topology, expected one of {_KNOWN}",
            where=f"{name}:1",
            fix="read its times with 'calibrate import'",
        )
    first = next((number for number, line in enumerate(lines, 1) if line.strip()), 1)
    raise TopologyError(f"no form that is known, expected one of {_KNOWN}", where=f"{name}:{first}", fix="give one")


_TESTS: Final = (
    (nccllog.FORM, lambda line: nccllog.MARK.search(line) or nccllog.RANK_LINE.search(line)),
    (matrix.FORM, lambda line: _MATRIX.match(line) or _LONE_GPU.fullmatch(line)),
    (ibnetdiscover.FORM, _RECORD.match),
    (iblinkinfo.FORM, iblinkinfo.ARROW.search),
    (IBSTAT_FORM, _IBSTAT.fullmatch),
    (slurm.CONF_FORM, slurm.CONF_LINE.match),
    (slurm.YAML_FORM, _SLURM_YAML.match),
    (lspci.FORM, lambda line: lspci.DEVICE_LINE.match(line) or lspci.TREE_LINE.match(line)),
)
