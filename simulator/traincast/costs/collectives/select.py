"""Seconds of a collective: NCCL's choice of algorithm and protocol, then the calibrated time of that choice."""

import math
from dataclasses import dataclass

from traincast.costs.collectives.exchange import exchange_choice, exchange_terms
from traincast.costs.collectives.nccl import NVLS_CAPS, PROTOCOLS
from traincast.costs.collectives.network import NetworkConstants, Wires, across_efficiency, wires
from traincast.costs.collectives.nvls import nvls_allowed, nvls_choice
from traincast.costs.collectives.option import Choice, Terms, parts_of, total_seconds
from traincast.costs.collectives.ring import ring_choice
from traincast.costs.collectives.tree import tree_choice
from traincast.costs.collectives.versions import has_ll128
from traincast.topology import Span

ALL_TO_ALL = frozenset({"all_to_all", "alltoall"})


@dataclass(frozen=True)
class Forced:
    """What NCCL_ALGO and NCCL_PROTO leave: algorithms (lower case) and protocols; empty: all."""

    algorithms: frozenset[str] = frozenset()
    protocols: frozenset[str] = frozenset()


FREE = Forced()


def options(op: str, size_bytes: float, w: Wires, c: NetworkConstants) -> list[Choice]:
    """Every way in which NCCL could run a collective here."""
    protocols = [p for p in range(3) if PROTOCOLS[p] != "LL128" or has_ll128(c.nccl, c.generation, w.nvlink)]
    found = [ring_choice(op, p, size_bytes, w, c) for p in protocols]
    if op == "all_reduce":
        found += [tree_choice(p, size_bytes, w, c) for p in protocols]
    if nvls_allowed(op, w, c):
        found.append(nvls_choice(op, w, c))
    return found


def _free(option: Choice, op: str) -> bool:
    """Whether NCCL takes an option by itself: all-gather and reduce-scatter use NVLS only where it is asked for.
    Their times on 4 to 72 GPUs of an NVL72 domain are those of rings, 1.4 us a rank
    (calibration/measured/collectives.csv)."""
    return op == "all_reduce" or option.algorithm != "nvls"


def choose(op: str, size_bytes: float, w: Wires, c: NetworkConstants, forced: Forced = FREE) -> Choice:
    """Algorithm and protocol with the smallest latency + size / bandwidth by NCCL's own numbers.

    Where none of what is forced can run (NVLS on too few GPUs), NCCL falls back to what is left.
    """
    if op in ALL_TO_ALL:
        return exchange_choice(size_bytes, w, c)
    found = options(op, size_bytes, w, c)
    if forced.algorithms or forced.protocols:
        found = [o for o in found if _obeys(o, forced, w, c)] or _without_nvls(found, forced)
    if not forced.algorithms:
        found = [o for o in found if _free(o, op)]
    return min(found, key=lambda o: o.latency_s + size_bytes / o.bytes_per_s)


def _obeys(option: Choice, forced: Forced, w: Wires, c: NetworkConstants) -> bool:
    nvls = option.algorithm in ("nvls", "nvlstree")
    if nvls and forced.algorithms & {"nvls", "nvlstree"}:
        return w.ranks_per_node >= NVLS_CAPS[c.generation].least_ranks
    if forced.algorithms and option.algorithm not in forced.algorithms:
        return False
    return not forced.protocols or option.protocol in forced.protocols


def _without_nvls(found: list[Choice], forced: Forced) -> list[Choice]:
    rings = [o for o in found if o.algorithm == "ring"]
    return [o for o in rings if not forced.protocols or o.protocol in forced.protocols] or rings


def terms_of(choice: Choice, w: Wires, c: NetworkConstants) -> Terms:
    """The constants that price a choice on these wires."""
    if choice.algorithm == "exchange":
        return exchange_terms(choice.protocol, w, c)
    ring, fabric = choice.algorithm == "ring", c.fabric
    overlap = 1.0 + fabric.overlap * math.log2(w.ranks / 8) if ring and w.ranks > 8 else 1.0
    if choice.algorithm == "nvls":
        slower = c.nvls.latency_factor * (1.0 + c.nvls.growth * max(math.log2(w.ranks / 8), 0.0))
        return Terms(c.launch_s, slower, 1.0, 0.0, c.nvls.efficiency, 1.0, 0.0, c.nvls.mixing, 1.0)
    if w.nodes == 1:
        return Terms(
            launch_s=c.launch_s,
            latency_factor=c.intra_latency_factor,
            base_factor=c.base_factor,
            hop_s=0.0,
            efficiency=c.intra_efficiency,
            wire=1.0,
            edge_steps=c.edge_steps,
            mixing=c.intra_mixing,
            overlap=overlap,
        )
    return Terms(
        launch_s=c.launch_s,
        latency_factor=c.inter_latency_factor,
        base_factor=c.base_factor,
        hop_s=fabric.hop_s + fabric.ring_hop_s if ring else fabric.hop_s,
        efficiency=across_efficiency(w, c),
        wire=fabric.wire,
        edge_steps=c.edge_steps if ring else 0.0,
        mixing=c.inter_mixing,
        overlap=overlap,
    )


def collective_seconds(op: str, size_bytes: float, span: Span, c: NetworkConstants, forced: Forced = FREE) -> float:
    """Time of one collective of `size_bytes` (as nccl-tests counts it: the full buffer) over a span [s].

    Notes
    -----
    t = t0 + lambda L + S/(eta B) + g sqrt(lambda L S/(eta B)), with L and B of the chosen algorithm; `option` has the
    terms that fabrics and rings add. calibration/identify_a100.py and calibration/fit_public_logs.py print how close
    that comes to measured curves, by size.
    """
    if span.ranks <= 1 or size_bytes <= 0:
        return 0.0
    w = wires(span, c)
    choice = choose(op, size_bytes, w, c, forced)
    return float(total_seconds(parts_of(choice, size_bytes), terms_of(choice, w, c)))


def all_to_all_seconds(size_bytes: float, span: Span, c: NetworkConstants) -> float:
    """Pairwise exchange [s]: every rank sends size/n to each other rank; the slower of NVLink and NIC shares counts."""
    return collective_seconds("all_to_all", size_bytes, span, c)
