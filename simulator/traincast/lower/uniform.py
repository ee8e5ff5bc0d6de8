"""Programs of a bare schedule: every stage costs the same, nothing but the pipeline runs."""

from traincast.lower.program import ChunkCost, ChunkKey, Program, RankClass
from traincast.recipe import P2PMode
from traincast.schedule import build


def uniform_program(
    key: tuple[str, int, int, int],
    forward_s: float,
    backward_s: float,
    send_s: float = 0.0,
    p2p: P2PMode = "async",
) -> Program:
    """One class per stage for the schedule `key` = (name, p, m, v).

    `forward_s` and `backward_s` are the seconds of one microbatch on one stage (all its chunks), `send_s`
    those of one message. With it the closed forms of the schedules can be checked, or a schedule studied
    without a model.
    """
    name, p, m, v = key
    chunks: dict[ChunkKey, ChunkCost] = {}
    for chunk in range(v):
        chunks["F", chunk] = ChunkCost(forward_s / v, {"compute": forward_s / v}, send_s)
        chunks["B", chunk] = ChunkCost(backward_s / v, {"compute": backward_s / v}, send_s)
    classes = tuple(
        RankClass(stage=s, ranks=1, example_rank=s, chunks=chunks, previous=(s - 1) % p, next=(s + 1) % p)
        for s in range(p)
    )
    return Program(build(name, p, m, v), key, p2p, classes)
