"""The operations of one microbatch on one rank, in program order, as text: for goldens, traces and explanations."""

from collections.abc import Iterator

from traincast.lower.chunk import Segment
from traincast.lower.job import Job
from traincast.lower.stages import backward_segments, chunk_parts, forward_segments
from traincast.model.operators import Collective, FlashAttention, Gemm, Operator


def describe(op: Operator) -> str:
    """Shape and volume of one operator, e.g. `gemm 4096x6144x4096` (m x n x k) or `all_reduce tp 33.6 MB`."""
    if isinstance(op, Gemm):
        batch = f"{op.batch} x " if op.batch > 1 else ""
        return f"gemm {batch}{op.m}x{op.n}x{op.k}"
    if isinstance(op, FlashAttention):
        return f"attention {op.batch}x{op.heads}/{op.kv_heads}x{op.query}x{op.keys}x{op.head_dim}"
    if isinstance(op, Collective):
        behind = f" behind {op.behind}" if op.behind else ""
        return f"{op.op} {op.axis} {op.size_bytes / 1e6:.1f} MB{behind}"
    return f"memory {op.bytes_moved / 1e6:.1f} MB"


def stream(op: Operator) -> str:
    """The stream that an operator runs on."""
    return op.axis if isinstance(op, Collective) else "compute"


def operations(job: Job, stage: int) -> Iterator[str]:
    """One line per operation of one microbatch on a stage: pass, chunk, stream, phase, name, shape.

    Repeated layers are written out: the list is what the GPU runs.
    """
    parts = chunk_parts(job)
    pp = job.mesh.pp
    for chunk in range(job.chunks):
        index = chunk * pp + stage
        if index > 0:
            yield f"F {chunk} pp-recv  message  activations from stage {(stage - 1) % pp}"
        yield from _lines("F", chunk, forward_segments(job, parts[index]))
        if index < len(parts) - 1:
            yield f"F {chunk} pp-send  message  activations to stage {(stage + 1) % pp}"
    for chunk in reversed(range(job.chunks)):
        index = chunk * pp + stage
        if index < len(parts) - 1:
            yield f"B {chunk} pp-recv  message  gradients from stage {(stage + 1) % pp}"
        yield from _lines("B", chunk, backward_segments(job, parts[index]))
        if index > 0:
            yield f"B {chunk} pp-send  message  gradients to stage {(stage - 1) % pp}"


def _lines(kind: str, chunk: int, segments: tuple[Segment, ...]) -> Iterator[str]:
    for segment in segments:
        for op in segment.operators:
            yield f"{kind} {chunk} {stream(op)}  {segment.phase}  {op.name}  {describe(op)}"
