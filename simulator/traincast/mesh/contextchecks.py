"""Can a sequence be split over context-parallel ranks as a recipe asks?"""

from collections.abc import Iterator

from traincast.mesh.mesh import Mesh
from traincast.mesh.problems import Problem, either, near_multiples
from traincast.model import ModelShape
from traincast.recipe import Recipe


def context_problems(model: ModelShape, mesh: Mesh, recipe: Recipe) -> Iterator[Problem]:
    """What clashes between model, mesh and the kind of context parallelism; warnings name what is replicated."""
    cp, asked = mesh.cp, recipe.cp_ulysses
    if cp == 1:
        if asked > 1:
            yield Problem(f"cp_ulysses {asked}, but cp is 1", f"cp {asked}, or no cp_ulysses")
        return
    ulysses = recipe.ulysses(cp)
    divisors = [n for n in range(2, cp) if cp % n == 0]
    if recipe.cp_kind == "ulysses" and asked not in (1, cp):
        message = f"cp_ulysses {asked}, but cp_kind ulysses exchanges heads over all of cp {cp}"
        yield Problem(message, "cp_kind usp, or no cp_ulysses")
    elif recipe.cp_kind == "usp" and asked == 1:
        fix = f"cp_ulysses {either(divisors)}" if divisors else "cp_kind ring or ulysses"
        yield Problem(f"cp_kind usp on cp {cp} needs cp_ulysses, the ranks that exchange heads", fix)
    elif cp % ulysses:
        yield Problem(f"cp {cp} is not a multiple of cp_ulysses {ulysses}", f"cp_ulysses {either([1, *divisors])}")
    else:
        yield from _head_problems(model, mesh.tp, ulysses)
        yield from _block_problems(recipe, cp, cp // ulysses)


def _head_problems(model: ModelShape, tp: int, ulysses: int) -> Iterator[Problem]:
    """Exchanging heads needs heads for every rank; key/value heads may be held by several."""
    if ulysses == 1:
        return
    ranks, heads, kv_heads = tp * ulysses, model.heads, model.kv_heads
    spelled = f"tp {tp} * {ulysses} ranks that exchange heads = {ranks}"
    fits = [n for n in range(1, ulysses) if heads % (tp * n) == 0 and _kv_fit(kv_heads, tp * n) and ulysses % n == 0]
    others = f"cp_kind usp with cp_ulysses {either(fits[-2:])}, or cp_kind ring or allgather"
    if heads % ranks:
        yield Problem(f"{heads} heads do not divide over {spelled}", others)
    elif not _kv_fit(kv_heads, ranks):
        yield Problem(f"{kv_heads} kv_heads against {spelled}: neither divides the other", others)
    elif kv_heads < ranks:
        each = f"each is sent to {ranks // kv_heads} ranks"
        yield Problem(f"{kv_heads} kv_heads are fewer than {spelled}: {each}", others, "warning")


def _kv_fit(kv_heads: int, ranks: int) -> bool:
    return kv_heads % ranks == 0 or ranks % kv_heads == 0


def _block_problems(recipe: Recipe, cp: int, ring: int) -> Iterator[Problem]:
    """Blocks of equal length, and a kernel that knows how to merge them."""
    if ring > 1 and recipe.attention != "flash":
        yield Problem(
            f"cp_kind {recipe.cp_kind} attends block by block, which attention {recipe.attention} cannot",
            "attention flash, or cp_kind ulysses",
        )
    blocks = 2 * ring if recipe.cp_balance and ring > 1 else ring
    for parts, why in ((cp, f"cp {cp}"), (blocks, f"{blocks} blocks")):
        if recipe.sequence % parts:
            fix = f"sequence {either(near_multiples(recipe.sequence, parts))}"
            yield Problem(f"sequence {recipe.sequence} does not divide over {why}", fix)
            return
