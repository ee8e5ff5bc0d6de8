"""Importers: the files that clusters already produce -> the cluster graph.

One module a form, each a pure function from text to a frozen record with its problems; `assemble` turns one or
several records into a cluster, with what no file says filled from the catalogue and listed as assumed.
"""

from traincast.topology.importers.assemble import FileReport, Imported, cluster_yaml, import_bytes, import_texts
from traincast.topology.importers.draft import Options
from traincast.topology.importers.nccllog import NcclLog, parse_nccl_log
from traincast.topology.importers.read import Record, read_topology
from traincast.topology.importers.text import Problem

__all__ = [
    "FileReport",
    "Imported",
    "NcclLog",
    "Options",
    "Problem",
    "Record",
    "cluster_yaml",
    "import_bytes",
    "import_texts",
    "parse_nccl_log",
    "read_topology",
]
