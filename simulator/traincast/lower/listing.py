"""The operations of one microbatch on one rank, in program order, as text: for goldens, traces and explanations."""

from collections.abc import Iterator

from traincast.lower.chunk import Segment
from traincast.lower.job import Job
from traincast.lower.split import SEGMENTS
from traincast.lower.stages import chunk_parts, forward_segments
from traincast.model.operators import Collective, FlashAttention, Gemm, HostCopy, Operator
from traincast.schedule import SPLIT, Pass, neighbours, parts_of
from traincast.schedule.placement import Hop


def describe(op: Operator) -> str:
    """Shape and volume of one operator, e.g. `gemm 4096x6144x4096` (m x n x k) or `all_reduce tp 33.6 MB`."""
    if isinstance(op, Gemm):
        batch = f"{op.batch} x " if op.batch > 1 else ""
        return f"gemm {batch}{op.m}x{op.n}x{op.k}"
    if isinstance(op, FlashAttention):
        return f"attention {op.batch}x{op.heads}/{op.kv_heads}x{op.query}x{op.keys}x{op.head_dim}"
    if isinstance(op, HostCopy):
        return f"{op.size_bytes / 1e6:.1f} MB"
    if isinstance(op, Collective):
        behind = f" behind {op.behind}" if op.behind else ""
        return f"{op.op} {op.axis} {op.size_bytes / 1e6:.1f} MB{behind}"
    return f"memory {op.bytes_moved / 1e6:.1f} MB"


def stream(op: Operator) -> str:
    """The stream that an operator runs on."""
    if isinstance(op, HostCopy):
        return f"host-{op.way}"
    return op.axis if isinstance(op, Collective) else "compute"


def operations(job: Job, stage: int) -> Iterator[str]:
    """One line per operation of one microbatch on a stage: pass, chunk, stream, phase, name, shape.

    Repeated layers are written out: the list is what the GPU runs.
    """
    parts, name, pp, v = chunk_parts(job), job.recipe.schedule, job.mesh.pp, job.chunks
    held, around = parts_of(name, pp, v, stage), neighbours(name, pp, v)
    for chunk, index in enumerate(held):
        yield from _message("F", chunk, "recv", around[stage, chunk].before)
        yield from _lines("F", chunk, forward_segments(job, parts[index]))
        yield from _message("F", chunk, "send", around[stage, chunk].after)
    kinds: tuple[Pass, ...] = ("I", "W") if name in SPLIT else ("B",)
    for chunk, index in sorted(enumerate(held), key=lambda one: -one[1]):
        yield from _message(kinds[0], chunk, "recv", around[stage, chunk].after)
        yield from _lines(kinds[0], chunk, SEGMENTS[kinds[0]](job, parts[index]))
        yield from _message(kinds[0], chunk, "send", around[stage, chunk].before)
        for kind in kinds[1:]:
            yield from _lines(kind, chunk, SEGMENTS[kind](job, parts[index]))


def _message(kind: Pass, chunk: int, what: str, hop: Hop | None) -> Iterator[str]:
    """A message with the neighbour that holds the part before or after; none where the stage itself does."""
    if hop is not None and hop.way:
        content, way = "activations" if kind == "F" else "gradients", "from" if what == "recv" else "to"
        yield f"{kind} {chunk} pp-{what}  message  {content} {way} stage {hop.place[0]}"


def _lines(kind: Pass, chunk: int, segments: tuple[Segment, ...]) -> Iterator[str]:
    for segment in segments:
        for op in segment.operators:
            yield f"{kind} {chunk} {stream(op)}  {segment.phase}  {op.name}  {describe(op)}"
