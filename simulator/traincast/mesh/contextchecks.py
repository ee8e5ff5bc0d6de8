"""Can a sequence be split over context-parallel ranks as a recipe asks?"""

from collections.abc import Iterator, Sequence
from typing import Final

from traincast.mesh.mesh import Mesh
from traincast.mesh.problems import Problem, either, near_multiples
from traincast.model import ModelShape
from traincast.recipe import Recipe

WITHOUT_HEADS: Final = ("ring", "allgather")
"""Kinds in which no rank exchanges heads."""


def context_problems(model: ModelShape, mesh: Mesh, recipe: Recipe) -> Iterator[Problem]:
    """What clashes between model, mesh and the kind of context parallelism; warnings name what is replicated."""
    cp = mesh.cp
    fits = [n for n in range(1, cp + 1) if cp % n == 0 and _heads_fit(model, mesh.tp * n)]
    found = tuple(_kind_problems(cp, recipe, fits))
    yield from found
    if cp > 1 and not found:
        ulysses = recipe.ulysses(cp)
        yield from _head_problems(model, mesh.tp, ulysses)
        yield from _block_problems(recipe, cp, cp // ulysses)


def _kind_problems(cp: int, recipe: Recipe, fits: Sequence[int]) -> Iterator[Problem]:
    """The ranks that exchange heads, against cp and the kind that is asked for; `fits` are the numbers of them that
    divide cp and have heads for all, what a fix may offer."""
    kind, asked = recipe.cp_kind, recipe.cp_ulysses
    if cp == 1:
        if asked > 1:
            fix = f"cp {asked}, or no cp_ulysses"
            yield Problem(f"cp_ulysses {asked}, but cp is 1", fix, names=("cp_ulysses", "cp"))
        return
    inner = [n for n in fits if 1 < n < cp]
    kinds = "cp_kind ring or ulysses" if cp in fits else "cp_kind ring"
    if kind == "ulysses" and asked not in (1, cp):
        message = f"cp_ulysses {asked}, but cp_kind ulysses exchanges heads over all of cp {cp}"
        fix = "cp_kind usp, or no cp_ulysses" if asked in inner else "no cp_ulysses"
        yield Problem(message, fix, names=("cp_ulysses", "cp_kind"))
    elif kind in WITHOUT_HEADS and asked > 1:
        message = f"cp_ulysses {asked}, but cp_kind {kind} exchanges no heads: all of cp {cp} see other blocks"
        other = "usp" if asked < cp else "ulysses"
        fix = f"cp_kind {other}, or no cp_ulysses" if asked in fits else "no cp_ulysses"
        yield Problem(message, fix, names=("cp_ulysses", "cp_kind"))
    elif kind == "usp" and asked == 1:
        fix = f"cp_ulysses {either(inner)}" if inner else kinds
        message = f"cp_kind usp on cp {cp} needs cp_ulysses, the ranks that exchange heads"
        yield Problem(message, fix, names=("cp_kind",))
    elif cp % recipe.ulysses(cp):
        some = inner if kind == "usp" else [1, *inner]
        fix = f"cp_ulysses {either(some)}" if some else kinds
        yield Problem(f"cp {cp} is not a multiple of cp_ulysses {asked}", fix, names=("cp_ulysses", "cp"))


def _head_problems(model: ModelShape, tp: int, ulysses: int) -> Iterator[Problem]:
    """Exchanging heads needs heads for every rank; key/value heads may be held by several."""
    if ulysses == 1:
        return
    ranks, heads, kv_heads = tp * ulysses, model.heads, model.kv_heads
    spelled = f"tp {tp} * {ulysses} ranks that exchange heads = {ranks}"
    fits = [n for n in range(2, ulysses) if heads % (tp * n) == 0 and _kv_fit(kv_heads, tp * n) and ulysses % n == 0]
    others = f"cp_kind usp with cp_ulysses {either(fits[-2:])}, or " if fits else ""
    others += "cp_kind ring or allgather"
    names = ("cp_ulysses", "cp_kind", "cp", "tp")
    if heads % ranks:
        yield Problem(f"{heads} heads do not divide over {spelled}", others, names=names)
    elif not _kv_fit(kv_heads, ranks):
        yield Problem(f"{kv_heads} kv_heads against {spelled}: neither divides the other", others, names=names)
    elif kv_heads < ranks:
        each = f"each is sent to {ranks // kv_heads} ranks"
        yield Problem(f"{kv_heads} kv_heads are fewer than {spelled}: {each}", others, "warning", names)


def _heads_fit(model: ModelShape, ranks: int) -> bool:
    return model.heads % ranks == 0 and _kv_fit(model.kv_heads, ranks)


def _kv_fit(kv_heads: int, ranks: int) -> bool:
    return kv_heads % ranks == 0 or ranks % kv_heads == 0


def _block_problems(recipe: Recipe, cp: int, ring: int) -> Iterator[Problem]:
    """Blocks of equal length, and a kernel that knows how to merge them."""
    if ring > 1 and recipe.attention != "flash":
        yield Problem(
            f"cp_kind {recipe.cp_kind} attends block by block, which attention {recipe.attention} cannot",
            "attention flash, or cp_kind ulysses",
            names=("attention", "cp_kind"),
        )
    blocks = 2 * ring if recipe.cp_balance and ring > 1 else ring
    for parts, why in ((cp, f"cp {cp}"), (blocks, f"{blocks} blocks")):
        if recipe.sequence % parts:
            fix = f"sequence {either(near_multiples(recipe.sequence, parts))}"
            message = f"sequence {recipe.sequence} does not divide over {why}"
            yield Problem(message, fix, names=("sequence", "cp"))
            return
