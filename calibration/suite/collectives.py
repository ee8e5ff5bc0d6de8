"""Collectives over groups: buffers, one repetition, and a check that the result is right to the last element."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from suite.groups import Groups, group_of
from suite.world import Run, World, l2_bytes

ELEMENT_BYTES = 4
_MOST_COPIES = 64
_CHUNK = 2**22
_CHECK_BYTES = 40 * _CHUNK
"""What the check of a chunk takes: whole numbers of 8 bytes and what is made of them."""
IN_PLACE = ("all_reduce", "broadcast")
"""PyTorch leaves the result of these where the input stood."""
_EXACT = 2**24
"""Whole numbers up to here are exact in fp32, so that a sum has one right value."""


@dataclass(frozen=True)
class Member:
    """This rank's place in a group: the process group, its ranks, and the number of the group in its family."""

    group: Any
    ranks: tuple[int, ...]
    number: int
    place: int


@dataclass(frozen=True)
class Collective:
    """One collective, ready to run. `size_bytes` is what is really moved: `nccl-tests` counting, whole elements.

    `prepare` writes the values whose result `wrong` then checks; both concern the first copy of the buffers.
    """

    size_bytes: int
    run: Run
    prepare: Callable[[], None]
    wrong: Callable[[], int]


def make_groups(families: dict[str, Groups], rank: int, create: Callable[[list[int]], Any]) -> dict[str, Member]:
    """Creates all groups of all families (every rank creates all of them) -> this rank's member of each family."""
    found: dict[str, Member] = {}
    for family, groups in families.items():
        handles = [create(list(ranks)) for ranks in groups]
        number = group_of(groups, rank)
        if number is not None:
            ranks = groups[number]
            found[family] = Member(handles[number], ranks, number, ranks.index(rank))
    return found


def connect(world: World, members: dict[str, Member]) -> None:
    """Uses the world's group and each of this rank's groups once.

    NCCL connects a communicator at its first use, for which all of its ranks must come: messages between some of them
    (pairs of an odd world, ends of a group) would else wait for the others, and the time would be in a measurement.
    """
    one = torch.zeros(1, device=world.device)
    for group in (dist.group.WORLD, *(member.group for member in members.values())):
        dist.all_reduce(one, group=group)
    world.synchronize()


def busbw_factor(op: str, ranks: int) -> float:
    """busbw / algbw, as nccl-tests defines it (doc/PERFORMANCE.md)."""
    if op == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("all_gather", "reduce_scatter", "alltoall") else 1.0


@dataclass(frozen=True)
class Layout:
    """Elements of a collective: all of it as nccl-tests counts, and those of one input and one output buffer."""

    count: int
    inputs: int
    outputs: int

    def copies(self, world: World) -> int:
        """Buffers to rotate over, so that none is found in the cache."""
        each = ELEMENT_BYTES * (self.inputs + self.outputs)
        return min(_MOST_COPIES, max(1, math.ceil(2 * l2_bytes(world) / each)))

    def needed_bytes(self, world: World) -> int:
        """Memory of all buffers, and of the check of a result."""
        return self.copies(world) * ELEMENT_BYTES * (self.inputs + self.outputs) + _CHECK_BYTES


def layout(op: str, ranks: int, wanted_bytes: int) -> Layout:
    """Elements of a collective of about `wanted_bytes`: whole elements, equal shares."""
    split = op in ("all_gather", "reduce_scatter", "alltoall")
    each = ELEMENT_BYTES * ranks
    count = max(1, wanted_bytes // each) * ranks if split else max(1, wanted_bytes // ELEMENT_BYTES)
    share = count // ranks
    outputs = {"all_reduce": 0, "broadcast": 0, "reduce_scatter": share}.get(op, count)
    return Layout(count, share if op == "all_gather" else count, outputs)


def build(world: World, op: str, member: Member, wanted_bytes: int, pingpong: bool = False) -> Collective:
    """Buffers and functions of one collective; talks to nobody. Raises RuntimeError where memory does not suffice."""
    shape = layout(op, len(member.ranks), wanted_bytes)
    copies = shape.copies(world)
    fresh = [torch.zeros(shape.inputs, device=world.device) for _ in range(copies)]
    into = [torch.zeros(shape.outputs, device=world.device) if shape.outputs else one for one in fresh]
    run = _pingpong(fresh, into, member) if pingpong else _run(op, fresh, into, member)

    def prepare() -> None:
        _fill(fresh[0], member, member.place)

    def wrong() -> int:
        found = _wrong(op, fresh[0], into[0], member, pingpong)
        fresh[0].zero_()  # sums that go on growing would end as infinities
        return found

    return Collective(ELEMENT_BYTES * shape.count, run, prepare, wrong)


def _run(op: str, fresh: list[torch.Tensor], into: list[torch.Tensor], member: Member) -> Run:
    group, copies = member.group, len(fresh)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    ahead = member.ranks[(member.place + 1) % len(member.ranks)]
    behind = member.ranks[member.place - 1]

    def exchange(i: int) -> None:
        """Each rank sends to the next one and receives from the one before it, as nccl-tests' sendrecv."""
        sends = dist.P2POp(dist.isend, fresh[i % copies], ahead, group=group)
        receives = dist.P2POp(dist.irecv, into[i % copies], behind, group=group)
        for work in dist.batch_isend_irecv([receives, sends]):
            work.wait()

    runs: dict[str, Run] = {
        "all_reduce": lambda i: dist.all_reduce(fresh[i % copies], group=group),
        "all_gather": lambda i: gather(into[i % copies], fresh[i % copies], group=group),
        "reduce_scatter": lambda i: scatter(into[i % copies], fresh[i % copies], group=group),
        "alltoall": lambda i: dist.all_to_all_single(into[i % copies], fresh[i % copies], group=group),
        "broadcast": lambda i: dist.broadcast(fresh[i % copies], member.ranks[0], group=group),
        "sendrecv": exchange,
    }
    return runs[op]


def _pingpong(fresh: list[torch.Tensor], into: list[torch.Tensor], member: Member) -> Run:
    """A message from the group's first rank to its last and back; the ranks between do nothing."""
    first, last, copies = member.ranks[0], member.ranks[-1], len(fresh)

    def lead(i: int) -> None:
        dist.send(fresh[i % copies], last, group=member.group)
        dist.recv(into[i % copies], last, group=member.group)

    def follow(i: int) -> None:
        dist.recv(into[i % copies], first, group=member.group)
        dist.send(into[i % copies], first, group=member.group)

    return lead if member.place == 0 else follow


def _sizes(member: Member) -> tuple[int, int]:
    """Values of one element (`steps` of them) and of one rank (`marks`) so that a sum stays exact."""
    n = len(member.ranks)
    marks = max(2, min(101, _EXACT // (64 * n)))
    return 61, marks


def _mark(place: int, member: Member, marks: int) -> int:
    return (place * 7 + member.number * 3) % marks


def _pattern(begin: int, count: int, like: torch.Tensor, steps: int) -> torch.Tensor:
    return ((torch.arange(begin, begin + count, device=like.device) % steps) + 1).to(like.dtype)


def _fill(tensor: torch.Tensor, member: Member, place: int) -> None:
    """Element j of the rank at `place`: a number that tells element, rank and group."""
    steps, marks = _sizes(member)
    for begin in range(0, tensor.numel(), _CHUNK):
        part = tensor[begin : begin + _CHUNK]
        part.copy_(_pattern(begin, part.numel(), tensor, steps) + steps * _mark(place, member, marks))


def _expected(op: str, begin: int, count: int, member: Member, tensor: torch.Tensor) -> torch.Tensor:
    """What elements begin to begin + count of the result must be; they lie in one rank's share where there are shares.

    `tensor` is the result.
    """
    steps, marks = _sizes(member)
    n = len(member.ranks)
    total = steps * sum(_mark(place, member, marks) for place in range(n))
    share = tensor.numel() // n
    if op == "all_reduce":
        return n * _pattern(begin, count, tensor, steps) + total
    if op == "reduce_scatter":
        return n * _pattern(member.place * tensor.numel() + begin, count, tensor, steps) + total
    if op == "all_gather":
        source, first = begin // share, begin % share
    elif op == "alltoall":
        source, first = begin // share, member.place * share + begin % share
    else:
        source, first = (0 if op == "broadcast" else (member.place - 1) % n), begin
    return _pattern(first, count, tensor, steps) + steps * _mark(source, member, marks)


def _wrong(op: str, fresh: torch.Tensor, into: torch.Tensor, member: Member, pingpong: bool) -> int:
    """Elements of the result that are not what they must be."""
    if pingpong:
        op, member = "broadcast", member  # what comes back is what the first rank sent
    share = into.numel() // len(member.ranks) if op in ("all_gather", "alltoall") else into.numel()
    wrong = 0
    for base in range(0, into.numel(), max(share, 1)):
        for begin in range(base, min(base + share, into.numel()), _CHUNK):
            count = min(_CHUNK, base + share - begin, into.numel() - begin)
            part = into[begin : begin + count]
            wrong += int((part != _expected(op, begin, count, member, into)).sum().item())
    return wrong
