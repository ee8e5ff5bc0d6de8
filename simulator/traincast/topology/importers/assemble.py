"""Files -> one cluster: hosts from fabric, Slurm or log, their inside from matrix, XML or lspci, the rest assumed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final

from traincast.catalog import Catalog, load_catalog
from traincast.errors import TopologyError, UserError
from traincast.topology.cluster import Cluster, make_cluster
from traincast.topology.graphfile import write_form
from traincast.topology.graphform import GraphForm, expand_graph
from traincast.topology.importers.draft import Draft, Options
from traincast.topology.importers.fabric import Fabric
from traincast.topology.importers.facts import NodeFacts, merge_nodes
from traincast.topology.importers.lspci import PciList, facts_of_pci
from traincast.topology.importers.matrix import TopoMatrix
from traincast.topology.importers.nccllog import NcclLog
from traincast.topology.importers.ncclxml import XmlSystem
from traincast.topology.importers.nodes import facts_of_matrix, facts_of_system
from traincast.topology.importers.place import on_fabric, on_slurm, without_fabric
from traincast.topology.importers.read import GuidHosts, Record, form_name, read_topology, refuse_alone, says
from traincast.topology.importers.slurm import SlurmTopology
from traincast.topology.importers.sources import facts_of_log, merge_fabrics, merge_logs, net_of_fabric
from traincast.topology.importers.text import Problem, decode
from traincast.topology.summary import summarise

# which description of a node leads where several files describe it: an XML has the whole tree
_LEADERS: Final = (XmlSystem, TopoMatrix, PciList)
_MOST_NODES: Final = 100_000


@dataclass(frozen=True)
class FileReport:
    """One file: its form, and what it says in figures."""

    file: str
    form: str
    says: Mapping[str, Any]


@dataclass(frozen=True)
class Imported:
    """A cluster made of files.

    `counts` has gpus, nics, switches (those that the files name), nodes, blocks and assumed_switches. `form` is the
    cluster written out, `problems` is everything that was left out, mended or looks wrong.
    """

    cluster: Cluster
    form: GraphForm
    counts: Mapping[str, int]
    files: tuple[FileReport, ...]
    assumed: tuple[str, ...]
    problems: tuple[Problem, ...]


def import_bytes(
    files: Iterable[tuple[str, bytes]], options: Options | None = None, catalog: Catalog | None = None
) -> Imported:
    """The cluster of files given as name and contents. Raises TopologyError or CatalogError for what cannot be."""
    texts: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for name, data in files:
        text, bad = decode(data, name)
        texts.append((name, text))
        problems += bad
    found = import_texts(texts, options, catalog)
    return replace(found, problems=(*problems, *found.problems))


def import_texts(
    files: Sequence[tuple[str, str]], options: Options | None = None, catalog: Catalog | None = None
) -> Imported:
    """The cluster of files given as name and text. Raises TopologyError or CatalogError for what cannot be."""
    parts = catalog or load_catalog()
    if not files:
        raise TopologyError("no file to import", fix="name at least one")
    options = options or Options()
    if options.nodes is not None and not 1 <= options.nodes <= _MOST_NODES:
        raise TopologyError(f"{options.nodes} nodes", fix=f"give 1 to {_MOST_NODES}", where="--nodes")
    records = [read_topology(text, name) for name, text in files]
    draft = Draft(parts, options)
    try:
        form, named, blocks = _form(records, draft)
        cluster = make_cluster(options.name, expand_graph(form), tuple(dict.fromkeys(draft.assumed)))
    except UserError as error:
        raise type(error)(error.message, fix=error.fix, where=error.where or files[0][0]) from error
    counts = summarise(cluster).counts
    return Imported(
        cluster=cluster,
        form=form,
        counts={
            **counts,
            "switches": counts["switches"] if named else 0,
            "blocks": blocks,
            "assumed_switches": 0 if named else counts["switches"],
        },
        files=tuple(FileReport(one.name, form_name(one), says(one)) for one in records),
        assumed=cluster.assumptions,
        problems=tuple(dict.fromkeys(draft.problems)),
    )


def cluster_yaml(found: Imported) -> str:
    """The cluster file that `load_cluster` reads back to an equal graph."""
    forms = ", ".join(f"{PurePath(one.file).name} ({one.form})" for one in found.files)
    head = {"description": f"imported from {forms}", "source": forms, "assumptions": list(found.assumed)}
    return write_form(found.form, head)


def _form(records: Sequence[Record], draft: Draft) -> tuple[GraphForm, bool, int]:
    """The cluster written out, whether a file names its switches, and the number of blocks."""
    nodes = _node_facts(records, draft)
    fabrics = [one for one in records if isinstance(one, Fabric)]
    slurms = [one for one in records if isinstance(one, SlurmTopology)]
    logs = [one for one in records if isinstance(one, NcclLog)]
    guids = [one for one in records if isinstance(one, GuidHosts)]
    for one in guids:
        if not fabrics:
            raise refuse_alone(one)
    _one_fabric(fabrics, slurms)
    jobs = facts_of_log(merge_logs(logs), draft.catalog) if logs else ()
    draft.problems += [problem for job in jobs for problem in job.problems]
    if fabrics:
        names = {guid: host for one in guids for guid, host in one.hosts.items()}
        merged = merge_fabrics(fabrics)
        draft.problems += merged.problems
        if slurms:
            what = "the fabric's own file is there: this tree is not used"
            draft.problems += [Problem(one.name, 0, what) for one in slurms]
        return on_fabric(net_of_fabric(merged, names), nodes, jobs, draft), True, 0
    if slurms:
        draft.problems += slurms[0].problems
        return on_slurm(slurms[0], nodes, jobs, draft)
    return without_fabric(nodes, jobs, draft), False, 0


def _one_fabric(fabrics: Sequence[Fabric], slurms: Sequence[SlurmTopology]) -> None:
    forms = {fabric.form for fabric in fabrics}
    if len(forms) > 1:
        raise TopologyError(f"two forms of fabric files: {', '.join(sorted(forms))}", fix="give files of one of them")
    if len(slurms) > 1:
        raise TopologyError(f"{len(slurms)} Slurm topologies", where=slurms[1].name, fix="give one of them")


def _node_facts(records: Sequence[Record], draft: Draft) -> list[NodeFacts]:
    """Facts about nodes: files of one form are different nodes, files of several forms describe the same ones."""
    by_form: list[list[NodeFacts]] = []
    for kind in _LEADERS:
        found: list[NodeFacts] = []
        for one in records:
            if not isinstance(one, kind):
                continue
            if isinstance(one, XmlSystem):
                found += facts_of_system(one, draft.catalog)
            elif isinstance(one, TopoMatrix):
                found.append(facts_of_matrix(one))
            elif isinstance(one, PciList):
                found.append(facts_of_pci(one, draft.catalog))
        if found:
            by_form.append(found)
    if not by_form:
        return []
    count = max(len(found) for found in by_form)
    odd = next((found for found in by_form if len(found) not in (1, count)), None)
    if odd is not None:
        what = f"{len(odd)} files of form {odd[0].form}, but {count} of another"
        raise TopologyError(what, where=odd[0].source, fix="give one of each form for each node, or one for all")
    merged = [found[0 if len(found) == 1 else place] for place in range(count) for found in by_form[:1]]
    for found in by_form[1:]:
        merged = [merge_nodes(one, found[0 if len(found) == 1 else place]) for place, one in enumerate(merged)]
    draft.problems += [problem for one in merged for problem in one.problems]
    return merged
