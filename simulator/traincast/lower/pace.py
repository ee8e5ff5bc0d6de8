"""How finely hashed links tell ranks apart: exactly, or alike ranks at the pace of the slowest of them.

A hash leaves no two ranks alike: on 16,384 GPUs every rank meets others on its cables and would be a class of its own.
Where that is more than an engine can run in seconds, ranks keep the classes that ideal adaptive routing gives them, and
all members of a class move at one rate. No real cable carries more than it can then, because each cable still has its
own load of all classes; so the times are those of a schedule that the network could run, and an upper bound wherever
faster members would only wait for the slowest.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.lower.flows import Layout, lay_out
from traincast.lower.fold import RankGroups
from traincast.lower.job import Job
from traincast.lower.spans import RankSpans
from traincast.lower.wires import refine_by_links
from traincast.topology.links import Spread

Ints = npt.NDArray[np.int64]

EXACT_PASSES: Final = 16_384
"""Forward and backward passes of all classes up to which hashed links are told apart exactly."""


def refine_by_layout(
    classes: Ints, groups: RankGroups, layout: Layout, job: Job, spans: RankSpans
) -> tuple[Ints, bool]:
    """The refinement of a partition of ranks by the links of a layout, and whether it is one by bundles alone.

    That is so where hashes make more than EXACT_PASSES / (2 m v) classes.
    """
    if layout.contention.spread.kind == "adaptive":
        return refine_by_links(classes, groups, layout.wires), False
    most = EXACT_PASSES // (2 * job.microbatches * job.chunks)
    exact = refine_by_links(classes, groups, layout.wires, most)
    if exact.max(initial=-1) < most:
        return exact, False
    bundles = lay_out(job, spans, replace(layout.contention, spread=Spread()))
    return refine_by_links(classes, groups, bundles.wires), True
