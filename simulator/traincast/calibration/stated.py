"""What the user says of results (`--gpu`) against what the files themselves name."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from traincast.calibration.curves import Curve
from traincast.calibration.hardware import gpu_of
from traincast.calibration.profile_file import names_text
from traincast.calibration.records import Record
from traincast.errors import DataError

ONE_GPU: Final = "name files of one GPU at a time; of a CSV with several, keep the rows of one in a file of their own"


@dataclass(eq=False)
class NamedGpus:
    """How many rows of which files are of which GPU, as the files name it."""

    rows: dict[str, int] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)

    def add(self, file: str, curves: Iterable[Curve], kernels: Iterable[Record]) -> None:
        """Counts what a file names; what it does not name is nobody's."""
        found = [(_name(one.gpu, one.net), len(one.points)) for one in curves]
        found += [(_name(one.run.gpu or "", ""), 1) for one in kernels]
        for name, rows in found:
            if name:
                self.rows[name] = self.rows.get(name, 0) + rows
                self.files.setdefault(name, []).append(file)

    def against(self, gpu: str) -> tuple[str, ...]:
        """Remarks where files name another GPU of the catalogue than the user. Raises DataError where they name
        several: `--gpu` says which one it is, not which rows to take."""
        others = {name: rows for name, rows in self.rows.items() if name != gpu}
        if len(self.rows) > 1:
            shown = ", ".join(f"{name} {rows}" for name, rows in sorted(others.items(), key=lambda one: -one[1]))
            count, all_rows = sum(others.values()), sum(self.rows.values())
            raise DataError(f"{count} of {all_rows} rows are of other GPUs than {gpu}: {shown}", fix=ONE_GPU)
        return tuple(
            f"{names_text(dict.fromkeys(self.files[name]))} names {name}: taken as {gpu}, since --gpu says so"
            for name in others
            if gpu_of(name) is not None
        )


def _name(text: str, net: str) -> str:
    """The GPU of the catalogue that a text names; another name as it is; empty where there is none."""
    known = gpu_of(text, net)
    return known.name if known is not None else text.strip()
