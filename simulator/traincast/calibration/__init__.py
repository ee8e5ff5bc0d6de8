"""Measurements in, profiles out: one record format, and readers of the logs that people already have.

`import_file` reads a log in any known form into records and problems; nothing that a file holds is dropped
without a problem that names its line. `read_records` and `write_records` keep records as JSON lines.
"""

from traincast.calibration.importers import import_file, import_text
from traincast.calibration.jsonl import SCHEMA, read_records, write_records
from traincast.calibration.records import Imported, Problem, Record, RunInfo, host_label, record_entry

__all__ = [
    "SCHEMA",
    "Imported",
    "Problem",
    "Record",
    "RunInfo",
    "host_label",
    "import_file",
    "import_text",
    "read_records",
    "record_entry",
    "write_records",
]
