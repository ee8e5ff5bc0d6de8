"""Graph and spans at scale: `python benchmarks/topology.py [GPUS ...]`. Time and memory are reported, never asserted.

Each line: GPUs, vertices and edges of the graph, CPU seconds to build and flatten it, CPU seconds for the spans of all
families of the mesh, how many different spans there are, and the peak memory of the process so far.
"""

import resource
import sys
import time

from traincast.lower.spans import rank_spans
from traincast.mesh import ShapeRequest, build_mesh
from traincast.topology import NodeRequest, node_cluster, usual_node

SHAPES = {
    3072: {"tp": 8, "cp": 1, "dp": 6, "pp": 64},
    16384: {"tp": 8, "cp": 16, "dp": 8, "pp": 16},
    102400: {"tp": 8, "cp": 16, "dp": 50, "pp": 16},
}


def main() -> None:
    """Build each size once and print what it took."""
    for gpus in [int(word) for word in sys.argv[1:]] or list(SHAPES):
        mesh = build_mesh(ShapeRequest(**SHAPES[gpus]))
        begin = time.process_time()
        # 144-port switches: three levels of 64 ports end at 65,536 NICs
        cluster = node_cluster(usual_node(NodeRequest("B300-SXM", 8, 8)), gpus // 8)
        built = time.process_time()
        spans = rank_spans(mesh, cluster)
        done = time.process_time()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = f"{cluster.graph.number_of_nodes():8,d} vertices {cluster.graph.number_of_edges():8,d} edges"
        times = f"graph {built - begin:6.2f} s  spans {done - built:6.2f} s"
        print(f"{gpus:7,d} GPUs {size}  {times}  {len(spans.table)} spans  {peak:6.0f} MiB")


if __name__ == "__main__":
    main()
