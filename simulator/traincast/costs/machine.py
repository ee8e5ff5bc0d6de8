"""Seconds of one operator on one machine: GPU, profile and the spans of the groups it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from statistics import NormalDist

from traincast.catalog import Gpu
from traincast.costs.attention import FlashConstants, flash_attention_seconds
from traincast.costs.collectives import (
    ExchangeConstants,
    FabricConstants,
    NetworkConstants,
    NvlsConstants,
    collective_seconds,
    message_seconds,
)
from traincast.costs.gemm import GemmConstants, gemm_seconds
from traincast.costs.memory_bound import MemoryConstants, memory_bound_seconds
from traincast.model.operators import Collective, FlashAttention, Gemm, HostCopy, MemoryBound, Operator
from traincast.profile import Profile
from traincast.topology import Span


@dataclass(frozen=True, eq=False)
class Machine:
    """A GPU under a profile. Compared by identity, so that operator times are memoised per machine.

    `speed` is the share of its rate that this GPU reaches (1 unless it is degraded): device times divide by it.
    """

    gpu: Gpu
    profile: Profile
    precision: str
    gpus_per_node: int = 8
    speed: float = 1.0

    @property
    def half_precision(self) -> str:
        """What an fp8 stack computes in where it does not compute in fp8; else the precision itself."""
        return "bf16" if self.precision in ("fp8", "mxfp8") else self.precision

    def gemm(self, op: Gemm) -> GemmConstants:
        """Constants of a product: its direction and precision, and the multiprocessors that it has.

        In fp8 the peak is higher and the share of it lower (`gemm.fp8`, with a scale for each row also `gemm.rowwise`).
        Prologue and epilogue of a tile take the time that they take in half precision, which is more steps of K at the
        higher rate.
        """
        p = self.profile
        lost = (p["gemm.fp8"] if op.fp8 else 1.0) * (p["gemm.rowwise"] if op.rowwise else 1.0)
        narrow = "mxfp8" if self.precision == "mxfp8" else "fp8"
        half, peak = self.gpu.peak(self.half_precision), self.gpu.peak(narrow if op.fp8 else self.half_precision)
        held = round(p["overlap.split_sms"]) if op.shares_sms else 0
        left = (self.gpu.sm_count - held) / self.gpu.sm_count
        return GemmConstants(
            peak_flops_per_s=peak * left,
            memory_bytes_per_s=self.memory.bytes_per_s,
            sm_count=self.gpu.sm_count - held,
            efficiency=p["gemm.forward" if op.role == "fwd" else f"gemm.{op.role}"] * lost,
            ramp_k=p["gemm.ramp_k"] * peak / half,
            wave_weight=p["gemm.wave_weight"],
            small_tile=p["gemm.small_tile"],
            fixed_s=p["kernel.fixed"],
            unaligned=p["gemm.unaligned"],
            rows_run_along_k=op.role != "wgrad",
            in_bytes=1.0 if op.fp8 else 2.0,
            out_bytes=op.out_bytes,
        )

    def flash(self, role: str) -> FlashConstants:
        """Constants of fused attention in one direction."""
        p = self.profile
        name = "attention.flash_forward" if role == "fwd" else "attention.flash_backward"
        return FlashConstants(
            peak_flops_per_s=self.gpu.peak(self.precision if self.precision in ("fp16", "bf16") else "bf16"),
            efficiency=p[name],
            ramp=p["attention.ramp"],
            head_ramp=p["attention.head_ramp"],
            diagonal=p["attention.diagonal"],
            fixed_s=p["kernel.fixed"],
        )

    @cached_property
    def memory(self) -> MemoryConstants:
        """Constants of memory-bound kernels."""
        p = self.profile
        rate = self.gpu.memory_bandwidth_bytes_per_s * p["memory.efficiency"]
        return MemoryConstants(rate, p["kernel.fixed"])

    @cached_property
    def network(self) -> NetworkConstants:
        """Constants of collectives and messages."""
        p = self.profile
        return NetworkConstants(
            nccl=p.traits.nccl,
            generation=p.traits.generation,
            launch_s=p["network.launch"],
            intra_latency_factor=p["network.intra_latency"],
            intra_efficiency=p["network.intra_efficiency"],
            intra_mixing=p["network.intra_mixing"],
            inter_latency_factor=p["network.inter_latency"],
            inter_efficiency=p["network.inter_efficiency"],
            inter_mixing=p["network.inter_mixing"],
            one_efficiency=p["network.one_efficiency"],
            some_efficiency=p["network.some_efficiency"],
            message_launch_s=p["message.launch"],
            message_efficiency=p["message.efficiency"],
            gpus_per_node=self.gpus_per_node,
            base_factor=p["network.base_latency"],
            edge_steps=p["network.edge_steps"],
            nvls_on=p.traits.nvls,
            nvls=NvlsConstants(
                latency_factor=p["network.nvls_latency"],
                growth=p["network.nvls_growth"],
                efficiency=p["network.nvls_efficiency"],
                mixing=p["network.nvls_mixing"],
            ),
            exchange=ExchangeConstants(
                launch_s=p["exchange.launch"],
                handshake_s=p["exchange.handshake"],
                peer_s=p["exchange.peer"],
                efficiency=p["exchange.efficiency"],
                inter_efficiency=p["exchange.inter_efficiency"],
                mixing=p["exchange.mixing"],
                own_share=p["exchange.own_share"],
            ),
            fabric=FabricConstants(
                hop_s=p["network.hop"],
                ring_hop_s=p["network.ring_hop"],
                wire=p["network.wire_efficiency"],
                overlap=p["network.ring_overlap"],
            ),
        )


@lru_cache(maxsize=64)
def machine_of(gpu: Gpu, profile: Profile, precision: str, gpus_per_node: int, speed: float = 1.0) -> Machine:
    """The machine of these; one object for equal ones, so that jobs share what is memoised for it."""
    return Machine(gpu, profile, precision, gpus_per_node, speed)


@lru_cache(maxsize=65536)
def compute_seconds(op: Gemm | FlashAttention | MemoryBound, machine: Machine) -> float:
    """Device time of a compute operator [s]."""
    if isinstance(op, Gemm):
        seconds = gemm_seconds(op.m, op.n, op.k, op.batch, machine.gemm(op))
    elif isinstance(op, FlashAttention):
        masked_share = op.query / op.keys if op.causal else 0.0
        seconds = flash_attention_seconds(op.flops, op.keys, op.head_dim, masked_share, machine.flash(op.role))
        seconds *= 1.0 + machine.profile["attention.dropout"] * op.drops
    else:
        share = machine.profile["memory.columns"] if op.columns else 1.0
        seconds = memory_bound_seconds(op.bytes_moved / share, op.calls, machine.memory)
    return float(seconds) / machine.speed


@lru_cache(maxsize=65536)
def _collective(op: str, size_bytes: float, span: Span, machine: Machine) -> float:
    if op == "send_recv":
        return message_seconds(size_bytes, span, machine.network)
    return collective_seconds(op, size_bytes, span, machine.network)


def operator_seconds(op: Operator, machine: Machine, spans: Mapping[str, Span]) -> float:
    """Device time of any operator [s]; a collective uses the span of its family of groups.

    Inside a layer a collective costs `collective.handover` more than by itself: compute hands over to its stream and
    takes over again. It begins with the last of n ranks, which comes `collective.skew` * e(n) after the mean one
    (`last_of`).
    """
    if isinstance(op, Collective):
        span, profile = spans[op.family], machine.profile
        seconds = _collective(op.op, op.size_bytes, span, machine)
        waits = profile["collective.handover"] + profile["collective.skew"] * last_of(span.ranks)
        return seconds + waits if seconds > 0.0 else 0.0
    if isinstance(op, HostCopy):
        return op.size_bytes / op.bytes_per_s
    return compute_seconds(op, machine)


@cache
def last_of(ranks: int) -> float:
    """How many standard deviations after the mean the last of n ranks comes, normal arrivals: 1.42 for eight.

    Notes
    -----
    Expected maximum of n standard normals by Blom's formula, inverse normal of (n - 3/8) / (n + 1/4): within 4 % of the
    exact value from n = 3 on. Reference: Blom 1958, Statistical Estimates and Transformed Beta-Variables.
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def host_seconds(op: Operator, machine: Machine, *, autograd: bool = False) -> float:
    """Time that the host needs to issue an operator [s].

    Autograd issues the calls of a backward pass without Python, in the share `host.backward` of the time; collectives
    of a backward pass stand in functions of the stack, which are Python there too.
    """
    if isinstance(op, Collective):
        return op.calls * machine.profile["host.collective"]
    each = machine.profile["host.call"]
    return op.calls * (each * machine.profile["host.backward"] if autograd else each)
