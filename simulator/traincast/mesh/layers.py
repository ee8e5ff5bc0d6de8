"""How transformer layers lie on pipeline stages and their chunks."""

from collections.abc import Sequence
from itertools import accumulate, groupby

from traincast.errors import ShapeError


def balanced_layers(layers: int, pp: int, vpp: int = 1, embedding_as_layer: bool = False) -> tuple[int, ...]:
    """A balanced uneven split: layers of each chunk in pipeline order, length pp*vpp.

    For use only where somebody asked for it. With `embedding_as_layer` the embedding and the head each stand
    for one layer where layers + 2 divides over the chunks: the first and the last chunk then hold one layer
    less (both, where they are the same chunk). Otherwise the chunks differ by at most one layer, the longer
    ones first, because the head waits on the last stage; chunk i lies on stage i % pp, so stages differ by
    at most one layer too.

    Raises ShapeError where a chunk would stay empty though it holds no embedding and no head.
    """
    chunks = pp * vpp
    if embedding_as_layer and chunks > 1 and (layers + 2) % chunks == 0:
        split = [(layers + 2) // chunks] * chunks
        split[0] -= 1
        split[-1] -= 1
        return tuple(split)
    if layers < chunks:
        raise ShapeError(
            f"{layers} layers are fewer than pp {pp} x vpp {vpp} = {chunks} chunks",
            fix=f"keep pp*vpp at {layers} or below",
        )
    short, longer = divmod(layers, chunks)
    return tuple(short + (chunk < longer) for chunk in range(chunks))


def even_layers(layers: int, pp: int, vpp: int = 1) -> tuple[int, ...]:
    """The even split, length pp*vpp; ShapeError where there is none."""
    chunks = pp * vpp
    if layers % chunks:
        raise ShapeError(
            f"{layers} layers do not divide over pp {pp} x vpp {vpp} = {chunks} chunks",
            fix="ask for uneven stages, or choose pp and vpp whose product divides the layers",
        )
    return (layers // chunks,) * chunks


def stage_ranges(
    split: Sequence[int], pp: int, parts: Sequence[Sequence[int]] | None = None
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Stage -> its chunks as (first layer, layer after the last).

    Chunk i of `split` lies on stage i % pp, unless `parts` says which ones each stage holds (a fold, or two copies).
    """
    ends = list(accumulate(split))
    ranges = [(end - count, end) for end, count in zip(ends, split, strict=True)]
    held = parts or [range(stage, len(split), pp) for stage in range(pp)]
    return tuple(tuple(ranges[part] for part in mine) for mine in held)


def run_lengths(split: Sequence[int]) -> str:
    """A split as short text: "8, 8, 7, 7", or "1, 2 (62 times), 1" where many chunks are alike."""
    runs = [(count, sum(1 for _ in same)) for count, same in groupby(split)]
    texts = [f"{count} ({times} times)" if times > 4 else ", ".join([str(count)] * times) for count, times in runs]
    return ", ".join(texts)
