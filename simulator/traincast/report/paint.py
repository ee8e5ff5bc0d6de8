"""Colours of a cluster's picture: tiers, GPUs by group or model, links by load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from traincast.topology import Cluster
from traincast.topology.loads import LinkLoads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

INK, QUIET, EMPTY, WIRE = "#263238", "#607d8b", "#dfe5e9", "#b0bec5"
SWITCH_HUES: Final = {
    **{"core": "#37474f", "spine": "#4a6572", "leaf": "#6b8794"},
    **{"nvswitch": "#5c7a4b", "pcie": "#90a4ae", "cpu": "#78909c", "nic": "#8d6e63"},
}
MODEL_HUES: Final = ("#76b39d", "#d9a05b", "#7f9ccb", "#b48ead")
GROUP_HUES: Final = (*("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6fd1", "#a8a032"),)
_HEAT: Final = "YlOrRd"


@dataclass(frozen=True, eq=False)
class Paint:
    """Colour of each GPU (`cells` (GPUs, 3)), least time of each link, and the legend of the groups picked out."""

    cells: Floats
    highlighted: tuple[int, ...]
    legend: Mapping[str, str]
    loads: LinkLoads | None
    seconds: Floats

    def cell(self, gpu: int) -> tuple[float, float, float]:
        """Colour of a GPU; white for a place without one."""
        if gpu < 0:
            return (1.0, 1.0, 1.0)
        red, green, blue = self.cells[gpu].tolist()
        return (red, green, blue)

    def worst(self, kinds: Sequence[str], numbers: Sequence[int]) -> float | None:
        """The longest time of the links of these kinds with these numbers in their section; None without loads."""
        if self.loads is None:
            return None
        links = [self.loads.first(kind) + number for kind in kinds for number in numbers]
        return float(self.seconds[links].max()) if links else 0.0

    def between(self, a: str, b: str) -> float | None:
        """The longer time of both directions of a link inside a node that is no GPU's own."""
        if self.loads is None:
            return None
        begin = len(self.seconds) - len(self.loads.inside)
        known = {edge: begin + number for number, edge in enumerate(self.loads.inside)}
        return max((float(self.seconds[known[edge]]) for edge in ((a, b), (b, a)) if edge in known), default=0.0)

    @property
    def hottest_s(self) -> float:
        """Least time of the busiest link."""
        return float(self.seconds.max(initial=0.0))

    def line(self, seconds: float | None, width: float) -> dict[str, Any]:
        """How a bundle of links is drawn: its heat where loads are shown, else plain."""
        style: dict[str, Any] = {"linewidth": width, "solid_capstyle": "butt", "zorder": 1}
        if seconds is None:
            return {"color": WIRE, **style}
        return {"color": self.heat(seconds) if seconds > 0.0 else EMPTY, **style}

    def heat(self, seconds: float) -> Any:
        """Colour of a time, from pale (nothing) to red (the busiest link)."""
        import matplotlib

        return matplotlib.colormaps[_HEAT](0.12 + 0.88 * seconds / max(self.hottest_s, 1e-30))

    def scale(self) -> "ScalarMappable":
        """The scale of the heat for a colour bar, in milliseconds."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LinearSegmentedColormap, Normalize

        colours = [self.heat(share * self.hottest_s) for share in np.linspace(0.0, 1.0, 64)]
        ramp = LinearSegmentedColormap.from_list("heat", colours)
        return ScalarMappable(Normalize(0.0, self.hottest_s * 1e3), ramp)


def paint_of(cluster: Cluster, family: str, groups: Ints | None, loads: LinkLoads | None) -> Paint:
    """Colours by group where groups are given (the first eight stand out), else by GPU model."""
    seconds = loads.seconds if loads is not None else np.zeros(0)
    if groups is None or not len(groups):
        models = {
            model: _rgb(MODEL_HUES[i % len(MODEL_HUES)]) for i, model in enumerate(dict.fromkeys(cluster.gpu_model))
        }
        return Paint(np.array([models[model] for model in cluster.gpu_model]), (), {}, loads, seconds)
    cells = np.tile(np.array(_rgb(EMPTY)), (len(cluster.gpus), 1))
    picked = groups[: len(GROUP_HUES)]
    legend = {}
    for number, (members, hue) in enumerate(zip(picked.tolist(), GROUP_HUES, strict=False)):
        cells[members] = _rgb(hue)
        legend[f"{family} group {number}: GPUs {_few(members)}"] = hue
    return Paint(cells, tuple(picked.reshape(-1).tolist()), legend, loads, seconds)


def _few(members: Sequence[int]) -> str:
    words = [str(member) for member in members]
    return ", ".join(words if len(words) <= 4 else [*words[:3], "...", words[-1]])


def _rgb(hue: str) -> tuple[float, float, float]:
    red, green, blue = (int(hue[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return (red, green, blue)


@dataclass(frozen=True)
class Words:
    """Text in a box."""

    text: str = ""
    size: float = 9.0
    hue: str = "white"


def box(axes: "Axes", at: tuple[float, float], size: tuple[float, float], hue: Any, words: Words) -> None:
    """A rounded box from the left, centred in height, with text in it."""
    from matplotlib.patches import FancyBboxPatch

    (left, middle), (width, height) = at, size
    corner = min(width, height) * 0.22
    patch = FancyBboxPatch(
        (left + corner, middle - height / 2 + corner),
        width - 2 * corner,
        height - 2 * corner,
        boxstyle=f"round,pad={corner},rounding_size={corner}",
        facecolor=hue,
        edgecolor="white",
        linewidth=0.8,
        zorder=5,
    )
    axes.add_patch(patch)
    if words.text:
        label(axes, (left + width / 2, middle), words.text, size=words.size, hue=words.hue)


def label(axes: "Axes", at: tuple[float, float], text: str, *, size: float, hue: str) -> None:
    """Centred text."""
    axes.text(*at, text, ha="center", va="center", fontsize=size, color=hue, zorder=6)
