"""What the files say about one node, in one form for all of them, before the catalogue fills the gaps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from traincast.topology.importers.text import Problem


@dataclass(frozen=True)
class GpuFact:
    """A GPU: catalogue name where known, what it hangs on (a PCIe switch or CPU), its bus (0: not stated)."""

    label: str
    host: str
    model: str = ""
    gt_per_s: float = 0.0
    lanes: int = 0


@dataclass(frozen=True)
class NicFact:
    """A network port. `device` is the system's name for it; rate and kind where known; `far`: near no GPU."""

    label: str
    host: str
    device: str = ""
    port_bytes_per_s: float = 0.0
    kind: str = ""
    gt_per_s: float = 0.0
    lanes: int = 0
    far: bool = False


@dataclass(frozen=True)
class NvlinkFacts:
    """NVLinks: `peers` joins GPUs (places) directly by so many links, `to_switch` is links of each GPU to NVSwitch.

    `chips` counts NVSwitches, 0 where that is not stated.
    """

    peers: tuple[tuple[int, int, int], ...] = ()
    to_switch: tuple[int, ...] = ()
    chips: int = 0


@dataclass(frozen=True)
class NodeFacts:
    """One node. `tree` has each PCIe switch with its CPU, `joined` are switches with a direct link between them.

    `tree_known`, `nics_known` and `nvlink` (None) tell what the file is silent about; `host` is empty where it does
    not name it.
    """

    source: str
    form: str
    gpus: tuple[GpuFact, ...]
    nics: tuple[NicFact, ...]
    cpus: tuple[str, ...] = ()
    tree: tuple[tuple[str, str], ...] = ()
    joined: tuple[tuple[str, str], ...] = ()
    tree_known: bool = True
    nics_known: bool = True
    nvlink: NvlinkFacts | None = None
    sm: int = 0
    host: str = ""
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def merge_nodes(first: NodeFacts, second: NodeFacts) -> NodeFacts:
    """Two descriptions of the same node as one: `first` leads, `second` fills what it is silent about."""
    problems = [*first.problems, *second.problems]
    same = len(first.gpus) == len(second.gpus)
    if not same:
        what = f"{len(second.gpus)} GPUs, but {first.source} has {len(first.gpus)}: only GPU names and NVLinks that fit"
        problems.append(Problem(second.source, 0, f"{what} are taken"))
    if first.nics_known and second.nics_known and len(first.nics) != len(second.nics):
        what = f"{len(second.nics)} network ports, but {first.source} has {len(first.nics)}: those are taken"
        problems.append(Problem(second.source, 0, what))
    models = {gpu.model for gpu in second.gpus if gpu.model}
    spare = models.pop() if len(models) == 1 else ""
    gpus = [
        replace(gpu, model=gpu.model or (second.gpus[place].model if same else spare))
        for place, gpu in enumerate(first.gpus)
    ]
    if not first.tree_known and second.tree_known and same:
        spots = [second.gpus[place] for place in range(len(gpus))]
        gpus = [
            replace(gpu, host=spot.host, gt_per_s=spot.gt_per_s, lanes=spot.lanes)
            for gpu, spot in zip(gpus, spots, strict=True)
        ]
    led = second if not first.tree_known and second.tree_known and same else first
    other = first if led is second else second
    nics = _nics(led.nics, other.nics) if led.nics_known else _placed(led, other.nics)
    return replace(
        first,
        gpus=tuple(gpus),
        nics=nics,
        cpus=led.cpus,
        tree=led.tree,
        joined=led.joined,
        tree_known=led.tree_known,
        nics_known=first.nics_known or second.nics_known,
        nvlink=first.nvlink if first.nvlink is not None or not same else second.nvlink,
        sm=first.sm or second.sm,
        host=first.host or second.host,
        notes=tuple(dict.fromkeys((*led.notes, *first.notes))),
        problems=tuple(problems),
    )


def _nics(lead: tuple[NicFact, ...], other: Iterable[NicFact]) -> tuple[NicFact, ...]:
    """The leading description's ports, with rates that the other one states for the same device."""
    named = {nic.device: nic for nic in other if nic.device}
    filled = []
    for nic in lead:
        match = named.get(nic.device)
        if match is not None and not nic.port_bytes_per_s:
            nic = replace(nic, port_bytes_per_s=match.port_bytes_per_s, kind=nic.kind or match.kind)
        filled.append(nic)
    return tuple(filled)


def with_nics(facts: NodeFacts, count: int) -> NodeFacts:
    """The node with `count` ports that no file places: spread over what its GPUs hang on, in order."""
    return replace(facts, nics=_placed(facts, [NicFact("", "")] * count), nics_known=True)


def _placed(facts: NodeFacts, nics: Sequence[NicFact]) -> tuple[NicFact, ...]:
    hosts = [facts.gpus[place * len(facts.gpus) // len(nics)].host for place in range(len(nics))]
    return tuple(replace(nic, host=host) for nic, host in zip(nics, hosts, strict=True))
