"""Textbook bubbles of pipeline schedules, and how many activations a schedule holds."""

from collections.abc import Sequence

from traincast.schedule.placement import BOTH_WAYS, family
from traincast.schedule.times import EQUAL, PassTimes
from traincast.schedule.types import Instruction, Schedule, ScheduleKey


def bubble_s(key: ScheduleKey, times: PassTimes) -> float | None:
    """Idle time of a stage in one step [s], uniform stages, no latency; None where no paper states a formula.

    Notes
    -----
    GPipe and 1F1B: (p - 1)(F + B) with B = I + W [1]. Interleaving and looping make a chunk v times shorter [1, 2].
    ZB-H1: (p - 1)(F + I - W), ZB-H2: (p - 1)(F + I - 2 W), and none where that is negative [3]; both for at least as
    many microbatches as they hold, and for W no longer than F and I. ZB-V: none if F = I = W [3]. DualPipe: (p/2 - 1)
    (F&B + B - 3 W), DualPipeV: (p - 1)(F&B + B - 3 W) of a chunk [4]; F&B, a forward and a backward at once, takes F +
    B here, and what the overlap saves goes into the costs of the chunks; both hold for F = I only. The seconds of
    `times` are of all chunks that one microbatch passes on a stage.

    References: [1] SC21, sections 2.2.1 and 2.2.2. [2] Lamy-Poirier 2022. [3] Qi et al. 2023, Table 2 and section 6.
    [4] DeepSeek-V3 Technical Report, Table 2, and the DualPipe repository.
    """
    name, p, _, v = key
    name = family(name)
    forward_s, input_s, weight_s, backward_s = times.forward_s, times.input_s, times.weight_s, times.backward_s
    if name == "none":
        return 0.0
    if name in ("gpipe", "1f1b", "interleaved", "looped-bfs"):
        return (p - 1) * (forward_s + backward_s) / v
    if name == "zb-h1":
        return (p - 1) * (forward_s + input_s - weight_s) / v
    if name == "zb-h2":
        return max((p - 1) * (forward_s + input_s - 2 * weight_s), 0.0)
    if name in ("dualpipe", "dualpipev") and forward_s == input_s:
        depth, parts = (p // 2, 1) if name in BOTH_WAYS else (p, v)
        return (depth - 1) * (forward_s + 2 * backward_s - 3 * weight_s) / parts
    return 0.0 if name == "zb-v" and forward_s == input_s == weight_s else None


def bubble_share_of_ideal(name: str, p: int, m: int, v: int = 1, times: PassTimes = EQUAL) -> float:
    """Idle time of a stage as a share of its ideal time (its own work), uniform stages, no latency [1].

    Notes
    -----
    GPipe and 1F1B: (p - 1) (t_f + t_b) idle beside m (t_f + t_b) work, hence (p - 1) / m. Interleaving makes
    a chunk v times shorter, hence (p - 1) / (m v). Schedules that split the backward depend on `times`; not a number
    where no formula is known. References: SC21, sections 2.2.1 and 2.2.2 ("bubble time overhead").
    """
    if family(name) == "none":
        return 0.0
    if family(name) in ("gpipe", "1f1b", "interleaved", "looped-bfs"):
        return (p - 1) / (m * v)
    idle_s = bubble_s((name, p, m, v), times)
    return float("nan") if idle_s is None else idle_s / (m * times.work_s)


def bubble_share_of_step(name: str, p: int, m: int, v: int = 1, times: PassTimes = EQUAL) -> float:
    """Idle time of a stage as a share of the whole step, uniform stages, no latency [1].

    Notes
    -----
    (p - 1) / (m + p - 1), with v chunks a rank (p - 1) / (m v + p - 1): share x of the ideal time is x / (1 +
    x) of the step. Reference: Huang et al. 2019 (GPipe), section 2.3, O((K - 1) / (M + K - 1)).
    """
    if family(name) in ("gpipe", "1f1b", "interleaved", "looped-bfs"):
        return (p - 1) / (m * v + p - 1)
    ideal = bubble_share_of_ideal(name, p, m, v, times)
    return ideal / (1 + ideal)


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Peak number of microbatch-chunks per stage whose activations are held at once.

    A forward takes one, and the last pass that needs it gives it back: its backward, or the weight gradient
    where the schedule splits that from the backward.
    """
    return tuple(int(peak) for peak in held(schedule, 1.0))


def held(schedule: Schedule, after_input: float) -> tuple[float, ...]:
    """The same, if a microbatch-chunk counts only `after_input` (0 to 1) between its I and its W.

    The input gradient frees what only it needs. Of a layer's activations, 34 + 5 a s / h bytes a token and hidden
    unit, the weight gradients need 32: inputs and output gradients of its matrix products (Qi et al. 2023, Table 1).
    """
    return tuple(float(sum(counts)) for counts in held_chunks(schedule, after_input))


def held_chunks(schedule: Schedule, after_input: float = 1.0) -> tuple[tuple[float, ...], ...]:
    """Per stage, microbatches held of each chunk at the stage's fullest moment (the first, if there are several)."""
    states = (passes_held(order) for order in schedule)
    counts = ([tuple(w + after_input * d for w, d in zip(*state, strict=True)) for state in found] for found in states)
    return tuple(max(found, key=sum, default=()) for found in counts)


def passes_held(order: Sequence[Instruction]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The distinct states of a stage behind its instructions, in the order of their first appearance.

    A state counts, for each chunk, microbatches between F and the input part of their backward (B in one piece, I, or a
    B that a W follows), and those between the input part and W. What an instruction adds it holds while it runs, and
    what it gives back it holds until its end, so that a stage never holds more than in the fullest of these states.
    """
    followed_up = {(i.microbatch, i.chunk) for i in order if i.kind == "W"}
    chunks = 1 + max((i.chunk for i in order), default=0)
    waiting, due = [0] * chunks, [0] * chunks
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    for i in order:
        if i.kind == "F":
            waiting[i.chunk] += 1
        elif i.kind == "W":
            due[i.chunk] -= 1
        else:
            waiting[i.chunk] -= 1
            due[i.chunk] += (i.microbatch, i.chunk) in followed_up
        found[tuple(waiting), tuple(due)] = None
    return tuple(found)


def in_flight_bound(key: ScheduleKey) -> tuple[int, ...]:
    """Per stage, the most microbatch-chunks that a schedule may hold; a chunk is 1/v of what a stage holds.

    Notes
    -----
    GPipe and looped breadth-first hold all. 1F1B: p - s. Interleaved 1F1B: 2 (p - s - 1) + (v - 1) p + 1 [1]. ZB-H1:
    p v, as the first stage of 1F1B; ZB-H2: 2 p - 1; ZB-1p and ZB-2p: p and 2 p, where one between I and W counts as
    the search was told (`after_input`); ZB-V: 2 p halves [2]. DualPipe: p + 1, DualPipeV: 2 p + 1 halves [3].
    References: [1] SC21, section 2.2.2. [2] Qi et al. 2023, Table 2 and sections 3 and 6. [3] DeepSeek-V3 Technical
    Report, Table 2, and the DualPipe repository.
    """
    name, p, m, v = key
    most = {
        "none": 1,
        "gpipe": m,
        "looped-bfs": m * v,
        "zb-h1": p * v,
        "zb-h2": 2 * p - 1,
        "zb-1p": p,
        "zb-2p": 2 * p,
        "zb-v": 2 * p,
        "dualpipe": p + 1,
        "dualpipev": 2 * p + 1,
    }
    if family(name) in most:
        return (min(most[family(name)], m * v),) * p
    ahead = [2 * (p - s) - 1 + (v - 1) * p if family(name) == "interleaved" else p - s for s in range(p)]
    return tuple(min(one, m * v) for one in ahead)
