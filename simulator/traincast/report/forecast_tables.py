"""A forecast as tables: what an engineer looks at first comes first."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from traincast.lower.program import LABELS
from traincast.report.job_text import job_rows
from traincast.report.tables import Cell, Table
from traincast.units import counted

if TYPE_CHECKING:
    from traincast.forecast import Forecast
    from traincast.lower.context_report import ContextReport
    from traincast.lower.touched import Degradation
    from traincast.scenario import Scenario

_GB, _GIB = 1e9, 2.0**30
_SHOWN_STAGES = 4
_HALF = "full attention matrix (SC21 eq. 3), of which causal flash attention executes about half"


def forecast_tables(forecast: "Forecast", scenario: "Scenario | None" = None) -> tuple[Table, ...]:
    """Summary, published figure and defects where there are any, breakdown, traffic, memory, assumptions.

    With its scenario the summary begins with the job that was asked for.
    """
    tables = [summary_table(forecast, scenario)]
    if forecast.published:
        tables.append(published_table(forecast, forecast.published))
    if forecast.degraded:
        tables += [loss_table(forecast.degraded), defects_table(forecast.degraded)]
    tables += [
        breakdown_table(forecast),
        traffic_table(forecast),
        memory_table(forecast),
        bubble_table(forecast),
    ]
    if forecast.link_losses:
        losses = tuple((text,) for text in forecast.link_losses)
        tables.append(Table("Links that slowed transfers", ("link and loss",), losses))
    assumptions = tuple((text,) for text in forecast.assumptions)
    return (*tables, Table("Assumptions", ("assumption",), assumptions))


def summary_table(forecast: "Forecast", scenario: "Scenario | None" = None) -> Table:
    """The job, step time and rates, each with its unit and convention."""
    job = () if scenario is None else tuple(job_rows(scenario))
    rows = (*_subject(forecast), *job, *_summary(forecast))
    return Table(f"Forecast: {forecast.scenario}", ("figure", "value", "unit", "remark"), rows)


def _subject(forecast: "Forecast") -> Iterator[tuple[object, ...]]:
    yield "model", forecast.model, None, None
    yield "cluster", forecast.cluster, None, f"{counted(forecast.gpus, 'GPU')} in use"
    yield "profile", forecast.profile, None, None


def _summary(forecast: "Forecast") -> Iterator[tuple[object, ...]]:
    from traincast.units import format_size

    rates, memory = forecast.rates, forecast.memory
    conventions = {
        "hardware": f"forward, backward and what is recomputed, {_HALF}",
        "model": "forward and backward once, full attention matrix",
        "model_causal": "the same, causal attention at half",
    }
    yield "step time", _number(forecast.step_time_s), "s", f"{_engine_words(forecast)}"
    for name, meaning in conventions.items():
        yield f"rate per GPU, {name} FLOPs", _number(rates.tflops_per_gpu[name]), "TFLOP/s", meaning
    yield "aggregate rate, hardware FLOPs", _number(rates.aggregate_pflops), "PFLOP/s", None
    for name, share in (("MFU", rates.mfu), ("HFU", rates.hfu)):
        over = f"{'model' if name == 'MFU' else 'hardware'} FLOPs over the dense peak"
        if share is None:
            yield name, None, "%", f"{over}: above 100 %, so no share of it: they count the {_HALF}"
        else:
            yield name, _number(100 * share), "%", over
    yield "tokens per GPU", _number(rates.tokens_per_s_per_gpu), "1/s", None
    found = forecast.interval
    if found is None:
        yield "interval", None, "s", "none: the profile has no residuals of whole steps"
    else:
        bounds = f"{_number(found.low_s).text} to {_number(found.high_s).text}"
        yield "interval", bounds, "s", f"{100 * found.level:.0f} % of steps by {found.how}"
    need, limit = format_size(memory.worst.total_bytes), format_size(memory.limit_bytes)
    yield "memory", memory.verdict, None, f"stage {memory.worst.stage} needs {need} of {limit}"
    if memory.verdict == "does not fit":
        yield "nearest that fits", ", ".join(forecast.nearest_that_fits or ("none found",)), None, None
    if (context := forecast.context_parallel) is not None:
        yield "context parallelism", context.kind, None, _context_words(context)
        reachable = f"{context.available_bytes_per_s / _GB:.3g} GB/s"
        need = f"{context.direction}, to be no slower than attention; reachable here: {reachable}"
        yield "rate required", _number(context.required_bytes_per_s / _GB), "GB/s per GPU", need
    yield "mesh signature", forecast.mesh_signature, None, None


def _context_words(context: "ContextReport") -> str:
    """Whether the network keeps up with attention, and up to which cp it would."""
    bound = f"{context.bound}-bound on cp {context.cp}, paced by {context.gpu} (the group of rank {context.rank})"
    if context.pays_to_cp is None:
        return f"{bound}; attention outlasts the exchange at any cp"
    up_to = f"up to cp {context.pays_to_cp}" if context.pays_to_cp else "at no cp"
    return f"{bound}; on these wires attention outlasts the exchange {up_to}"


def _engine_words(forecast: "Forecast") -> str:
    if forecast.engine == "des":
        return f"discrete-event engine, {forecast.events:,} events"
    return "recurrence"


def published_table(forecast: "Forecast", published: Mapping[str, Any]) -> Table:
    """The published figures beside the forecast, with the error."""
    rows = []
    for name, unit, measured, predicted in published_pairs(forecast, published):
        error = 100 * (predicted / measured - 1)
        rows.append((name, _number(measured), _number(predicted), unit, Cell(error, f"{error:+.1f}")))
    title = f"Published: {published['source']}" if published.get("source") else "Published"
    return Table(title, ("figure", "published", "forecast", "unit", "error %"), tuple(rows))


def published_pairs(forecast: "Forecast", published: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    """(figure, unit, published, forecast) of the figures that a scenario states."""
    step_time = published.get("step_time_s")
    if step_time:
        yield "step time", "s", float(step_time), forecast.step_time_s
    rate = published.get("tflops_per_gpu")
    if rate:
        convention = str(published.get("convention") or published.get("flop_convention") or "hardware")
        yield (
            f"rate per GPU, {convention} FLOPs",
            "TFLOP/s",
            float(rate),
            forecast.rates.tflops_per_gpu[convention],
        )
    tokens = published.get("tokens_per_s_per_gpu")
    if tokens:
        yield "tokens per GPU", "1/s", float(tokens), forecast.rates.tokens_per_s_per_gpu


def loss_table(degraded: "Degradation") -> Table:
    """The step on this cluster beside that on the clean one."""
    rows: tuple[tuple[object, ...], ...] = (
        ("step time, nothing wrong", _number(degraded.clean_step_time_s), "s"),
        ("step time here", _number(degraded.step_time_s), "s"),
        ("loss", _number(degraded.loss_s), "s"),
        ("loss", Cell(degraded.loss_percent, f"{degraded.loss_percent:+.2f}"), "%"),
    )
    if len(degraded.defects) > 1:
        rows += tuple(
            (f"loss of {one.part} alone", _number(one.alone_loss_s), "s")
            for one in degraded.defects
            if one.alone_loss_s is not None
        )
        if degraded.sum_alone_s is not None:
            rows += (("losses alone, added up", _number(degraded.sum_alone_s), "s"),)
    return Table("Degraded cluster", ("figure", "value", "unit"), rows)


def defects_table(degraded: "Degradation") -> Table:
    """A row for each defect and family of groups that it touches."""
    rows: list[tuple[object, ...]] = []
    for one in degraded.defects:
        for family in one.families:
            ranks = ", ".join(map(str, family.first_ranks))
            rows.append((one.loss, family.family, family.touched, family.groups, family.changed, ranks))
        if not one.families:
            rows.append((one.loss, "none", 0, None, 0, None))
    columns = ("defect", "groups that pass it", "how many", "of", "cost differs", "ranks of the first")
    return Table("Defects and the groups that they touch", columns, tuple(rows))


def breakdown_table(forecast: "Forecast") -> Table:
    """Where the step goes, mean over stages."""
    seconds = forecast.breakdown.mean_s
    rows: list[tuple[object, ...]] = [
        (label, seconds[label], _percent(100 * seconds[label] / forecast.step_time_s)) for label in LABELS
    ]
    rows.append(("total", sum(seconds[label] for label in LABELS), _percent(100.0)))
    return Table("Where the time goes (mean over stages)", ("label", "seconds", "share %"), tuple(rows))


def traffic_table(forecast: "Forecast") -> Table:
    """What a GPU sends along each axis in one step, mean over all; on a degraded cluster also the longest wait."""
    most = forecast.degraded.most_exposed_s if forecast.degraded else {}
    rows = tuple(
        (
            *(axis, round(row.calls), row.bytes_per_gpu / _GB, row.exposed_s),
            *((most[axis],) if axis in most else ()),
            _percent(100 * row.cross_node_share),
        )
        for axis, row in forecast.traffic.items()
    )
    columns = ("axis", "calls", "GB per GPU", "exposed s", *(("exposed s, most of a GPU",) if most else ()))
    return Table("Traffic of a GPU in one step, mean over all", (*columns, "across nodes %"), rows)


def memory_table(forecast: "Forecast") -> Table:
    """Memory of the first stages, the fullest and the last, an item a row; JSON holds all stages."""
    memory = forecast.memory
    stages = memory.per_stage
    wanted = {stages[0].stage, memory.worst.stage, stages[-1].stage, *(one.stage for one in stages[:_SHOWN_STAGES])}
    shown = [one for one in stages if one.stage in wanted]
    rows = [(item.replace("_", " "), *(one.items[item] / _GIB for one in shown)) for item in shown[0].items]
    rows.append(("total", *(one.total_bytes / _GIB for one in shown)))
    some = "" if len(shown) == len(stages) else f", {len(shown)} of {len(stages)} stages"
    title = f"Memory per GPU [GiB] of {memory.limit_bytes / _GIB:.1f}: {memory.verdict}{some}"
    return Table(title, ("item", *(f"stage {one.stage}" for one in shown)), tuple(_rounded(row) for row in rows))


def _rounded(row: tuple[object, ...]) -> tuple[object, ...]:
    """Numbers with two decimals on screen."""
    return tuple(Cell(cell, f"{cell:.2f}") if isinstance(cell, float) else cell for cell in row)


def bubble_table(forecast: "Forecast") -> Table:
    """Pipeline idle time under both definitions, as found and by the schedule's formula."""
    bubble = forecast.bubble
    rows = (
        (
            "of ideal time (SC21): wait of the busiest stage",
            _percent(100 * bubble.share_of_ideal),
            _formula(bubble.formula_share_of_ideal),
        ),
        (
            "of the step (GPipe): idle label, mean of stages, imbalance included",
            _percent(100 * bubble.share_of_step),
            _formula(bubble.formula_share_of_step),
        ),
    )
    return Table("Pipeline bubble", ("share", "this step %", "formula %"), rows)


def _formula(share: float | None) -> "Cell | str":
    """A formula's share; a dash where no paper states one."""
    return "-" if share is None else _percent(100 * share)


def _percent(value: float) -> Cell:
    """One decimal."""
    return Cell(value, f"{value:.1f}")


def _number(value: float) -> Cell:
    """Four significant digits, whole digits never cut, thousands marked."""
    text = f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:#.4g}"
    return Cell(value, text)
