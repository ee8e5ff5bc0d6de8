"""A comparison of training strategies as tables."""

from typing import TYPE_CHECKING

from traincast.report.tables import Cell, Table
from traincast.units import format_size, format_time

if TYPE_CHECKING:
    from traincast.plan.compared import Comparison, Layout, StrategyRow

_GIB, _GB, _TB = 2.0**30, 1e9, 1e12


def strategy_tables(found: "Comparison") -> list[Table]:
    """Rates and memory; checkpoints; what each strategy is and why it is refused; assumptions."""
    assumptions = tuple((text,) for text in found.assumptions)
    return [
        rates_table(found),
        checkpoint_table(found),
        reasons_table(found),
        Table("Assumptions", ("assumption",), assumptions),
    ]


def rates_table(found: "Comparison") -> Table:
    """One row a strategy: layout, step time, rates under named FLOP conventions, memory, traffic that leaves nodes."""
    columns = (
        *("strategy", "layout", "step_time_s", "tokens/s/GPU", "TFLOP/s, model", "TFLOP/s, hardware", "MFU %"),
        *("memory GiB", "memory", "across nodes %", "exposed s"),
    )
    rows = tuple((row.strategy, _layout(row.layout), *_rates(row)) for row in found.rows)
    best = f"{found.fastest.strategy} is the fastest" if found.fastest else "none fits"
    return Table(f"Strategies for {found.model} on {found.gpus} GPUs of {found.cluster}: {best}", columns, rows)


def _rates(row: "StrategyRow") -> tuple[object, ...]:
    need = row.memory.worst.total_bytes / _GIB if row.memory else None
    run = row.forecast
    if run is None:
        return (*(None,) * 5, need, row.verdict, None, None)
    rates = run.rates
    shares = (None if rates.mfu is None else 100 * rates.mfu, 100 * run.cross_node_share)
    speeds = (rates.tflops_per_gpu["model"], rates.tflops_per_gpu["hardware"])
    exposed = sum((row.exposed_s or {}).values())
    return (run.step_time_s, rates.tokens_per_s_per_gpu, *speeds, shares[0], need, row.verdict, shares[1], exposed)


def _layout(layout: "Layout | None") -> str:
    """A layout in few words: axes above 1, sharding, microbatch, recomputation."""
    if layout is None:
        return "-"
    sizes = (("tp", layout.tp), ("cp", layout.cp), ("pp", layout.pp), ("vpp", layout.vpp))
    words = [f"{name} {size}" for name, size in sizes if size > 1] + [f"dp {layout.dp}"]
    if layout.zero_stage:
        words.append(f"ZeRO-{layout.zero_stage} shard {layout.shard}")
    if layout.zero_stage and layout.replicate > 1:
        words.append(f"replicate {layout.replicate}")
    return ", ".join((*words, f"mb {layout.microbatch}", f"recompute {layout.recompute}"))


def checkpoint_table(found: "Comparison") -> Table:
    """Files, bytes and times of a checkpoint of each strategy that runs."""
    columns = ("strategy", "files", "TB", "largest file", "nodes that write", "save", "TB read", "load", "who writes")
    rows = tuple(
        (
            *(row.strategy, one.files, one.size_bytes / _TB),
            Cell(one.largest_file_bytes, format_size(one.largest_file_bytes)),
            *(one.nodes, Cell(one.save_s, format_time(one.save_s)), one.read_bytes / _TB),
            *(Cell(one.load_s, format_time(one.load_s)), one.rule),
        )
        for row in found.rows
        if (one := row.checkpoint) is not None
    )
    return Table("Checkpoints: parameters and optimiser states", columns, rows)


def reasons_table(found: "Comparison") -> Table:
    """What each strategy is; where its memory goes, or why it does not run."""
    rows = tuple((row.strategy, row.meaning, _reason(row)) for row in found.rows)
    return Table("Strategies and where they are limited", ("strategy", "what it is", "memory, or why not"), rows)


def _reason(row: "StrategyRow") -> str:
    fix = f" (fix: {row.fix})" if row.fix else ""
    return f"{row.verdict}: {row.reason}{fix}" if row.forecast is None and row.layout is None else f"{row.reason}{fix}"


def wide_table(found: "Comparison") -> Table:
    """All figures of a strategy in one row, for CSV: SI units, empty where it does not run."""
    axes = ("tp", "cp", "pp", "dp", "vpp", "zero_stage", "shard", "replicate", "microbatch", "recompute", "schedule")
    figures = (
        *("step_time_s", "tokens_per_s_per_gpu", "mfu", "hfu", "memory_bytes", "memory_limit_bytes"),
        *("fullest_stage", "largest_item", "verdict", "cross_node_share", "cross_node_bytes_per_gpu", "exposed_s"),
        *("bubble_s", "reason", "fix"),
    )
    conventions = ("model", "model_causal", "hardware")
    stored = ("files", "bytes", "largest_file_bytes", "save_s", "load_s")
    rows = []
    for row in found.rows:
        data = row.as_dict()
        layout, rates, saved = (data[key] or {} for key in ("layout", "tflops_per_gpu", "checkpoint"))
        rows.append(
            (
                row.strategy,
                *(layout.get(name) for name in axes),
                *(data[name] for name in figures),
                *(rates.get(name) for name in conventions),
                *(saved.get(name) for name in stored),
            )
        )
    columns = ("strategy", *axes, *figures, *(f"tflops_{name}" for name in conventions))
    return Table("Strategies", (*columns, *(f"checkpoint_{name}" for name in stored)), tuple(rows))
