"""States that live in the host's memory: the optimiser's, or the parameters' too.

Reduced gradients of a rank's own part go to the host, the host's cores update what belongs to them, and the new
parameters come back. All GPUs of a node share its cores; what they share of the way to the host's memory is in the rate
of a copy. Copies are of pinned memory, at the rate of the links.

References
----------
[1] Ren et al. 2021, "ZeRO-Offload" (arXiv:2101.06840), §4: optimiser states and their update on the host.
[2] Rajbhandari et al. 2021, "ZeRO-Infinity" (arXiv:2104.07857), §5: parameters too, copied in front of each gather.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from traincast.lower.offload import host_bytes_per_s
from traincast.lower.program import TailOp
from traincast.model.operators import ACTIVATION_BYTES

if TYPE_CHECKING:
    from traincast.lower.classes import CostBook


def host_update(book: "CostBook", own: float) -> Iterator[TailOp]:
    """The update of a rank's `own` parameters on the host, with the copies around it.

    Gradients that were reduced behind each microbatch are there already; parameters that live on the host stay there.
    """
    job, rate = book.job, host_bytes_per_s(book.job.cluster, book.job.seat)
    if not book.sharding.reduces_each:
        yield TailOp("gradients to host", "host", own * job.recipe.reduce_bytes / rate)
    ranks = min(job.mesh.world, job.cluster.gpus_per_node)
    yield TailOp("optimizer", "optimizer", own * ranks * book.machine.profile["host.update"] / 1e6)
    if job.recipe.offload_states == "optimizer":
        yield TailOp("parameters from host", "host", own * ACTIVATION_BYTES / rate)
