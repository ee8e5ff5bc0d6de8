"""Textbook bubbles of pipeline schedules, and how many activations a schedule holds."""

from traincast.schedule.types import Schedule


def bubble_share_of_ideal(name: str, p: int, m: int, v: int = 1) -> float:
    """Idle time of a stage as a share of its ideal time (its own work), uniform stages, no latency [1].

    Notes
    -----
    GPipe and 1F1B: (p - 1) (t_f + t_b) idle beside m (t_f + t_b) work, hence (p - 1) / m. Interleaving makes
    a chunk v times shorter, hence (p - 1) / (m v). References: SC21, sections 2.2.1 and 2.2.2 ("bubble time
    overhead").
    """
    return 0.0 if name == "none" else (p - 1) / (m * v)


def bubble_share_of_step(name: str, p: int, m: int, v: int = 1) -> float:
    """Idle time of a stage as a share of the whole step, uniform stages, no latency [1].

    Notes
    -----
    (p - 1) / (m + p - 1), with v chunks a rank (p - 1) / (m v + p - 1): share x of the ideal time is x / (1 +
    x) of the step. Reference: Huang et al. 2019 (GPipe), section 2.3, O((K - 1) / (M + K - 1)).
    """
    return 0.0 if name == "none" else (p - 1) / (m * v + p - 1)


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Peak number of microbatch-chunks per stage whose activations are held at once.

    A forward takes one, and the last pass that needs it gives it back: its backward, or the weight gradient
    where the schedule splits that from the backward.
    """
    peaks = []
    for order in schedule:
        releases = "W" if any(instruction.kind == "W" for instruction in order) else "B"
        held = peak = 0
        for instruction in order:
            held += (instruction.kind == "F") - (instruction.kind == releases)
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)
