"""A step as a trace in Chrome's event format: opens in chrome://tracing and in Perfetto.

One process a stage, one thread a stream, one complete event ("ph": "X") a bar; times in microseconds, as the
format wants them.
"""

from collections.abc import Iterator
from typing import Any

from traincast.lower.program import Program, Result
from traincast.report.bars import STREAMS, Bar, bars

_MICROSECONDS = 1e6


def chrome_trace(program: Program, result: Result, title: str) -> dict[str, Any]:
    """The trace of one representative pipeline, ready for json.dumps."""
    events = [*_names(len(program.schedule)), *(_event(bar) for bar in bars(program, result))]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "step_time_s": result.step_time_s},
    }


def _names(stages: int) -> Iterator[dict[str, Any]]:
    for stage in range(stages):
        yield {"ph": "M", "pid": stage, "name": "process_name", "args": {"name": f"stage {stage}"}}
        yield {"ph": "M", "pid": stage, "name": "process_sort_index", "args": {"sort_index": stage}}
        for thread, stream in enumerate(STREAMS):
            yield {"ph": "M", "pid": stage, "tid": thread, "name": "thread_name", "args": {"name": stream}}


def _event(bar: Bar) -> dict[str, Any]:
    arguments = {"microbatch": bar.microbatch, "chunk": bar.chunk}
    return {
        "ph": "X",
        "name": bar.name if bar.microbatch is None else f"{bar.name} {bar.microbatch}",
        "cat": bar.kind,
        "pid": bar.stage,
        "tid": STREAMS.index(bar.stream),
        "ts": bar.start_s * _MICROSECONDS,
        "dur": (bar.end_s - bar.start_s) * _MICROSECONDS,
        "args": {key: value for key, value in arguments.items() if value is not None},
    }
