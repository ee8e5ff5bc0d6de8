"""What a run measures, in which order: the most telling first, so that a budget that runs out costs the least.

Tier 0 is what judges the run itself, tier 1 a coarse picture of everything, tiers 2 and 3 fill it in. A quick run
ends after tier 1. Within a tier the parts go side by side: half of the time gives half of each of them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from suite.groups import Groups, pair_rounds
from suite.options import Options

Scalar = str | int | float
GPU_MOST_BYTES, CPU_MOST_BYTES = 4 * 2**30, 64 * 2**20
_MOST_GROUPS = 16
_NATURAL = {"tp": "all_reduce", "cp": "all_gather", "pp": "sendrecv", "ep": "alltoall", "tp-ep": "alltoall"}
"""What a family mostly does in training; the others reduce gradients."""


@dataclass(frozen=True)
class Item:
    """One measurement: `part` says which code runs it; `size_bytes` is a collective's, as nccl-tests counts it."""

    tier: int
    part: str
    op: str
    family: str = ""
    mode: str = ""
    dtype: str = ""
    size_bytes: int = 0
    params: tuple[tuple[str, Scalar], ...] = ()

    @property
    def key(self) -> str:
        """A name that stays the same from run to run."""
        further = ",".join(f"{name}={value}" for name, value in self.params)
        words = (self.part, self.op, self.family, self.mode, self.dtype, str(self.size_bytes or ""), further)
        return "/".join(word for word in words if word)

    def get(self, name: str) -> int:
        """A whole number out of `params`."""
        return int(dict(self.params)[name])

    @property
    def reduced(self) -> str:
        """The key without its size: items that differ in size alone have it in common."""
        return "/".join(word for word in (self.part, self.op, self.family, self.mode, self.dtype) if word)


@dataclass(frozen=True)
class Site:
    """What the plan depends on beside the options; `fp8` and `bf16`: whether every rank's device has them."""

    gpu: bool
    families: dict[str, Groups]
    fp8: bool = False
    bf16: bool = True

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.families["world"][0])


def build(options: Options, site: Site) -> tuple[Item, ...]:
    """All measurements of a run in their order."""
    parts = {
        "launch": _launch,
        "gemm": _gemms,
        "attention": _attention,
        "memory": _memory,
        "optimizer": _optimizer,
        "setup": _setup,
        "overlap": _overlaps,
        "collectives": _collectives,
    }
    items = [reference(site)] if {"gemm", "overlap"} & set(options.only) else []
    for name, make in parts.items():
        if name in options.only:
            items += make(options, site)
    unique = {item.key: item for item in items if item.tier <= (1 if options.quick else 3)}
    return _side_by_side(sorted(unique.values(), key=lambda item: item.tier))


def _side_by_side(items: Sequence[Item]) -> tuple[Item, ...]:
    """Items in the order of their tiers; from tier 1 on the k-th of n of a part stands at (k - 1/2) / n of its tier."""
    counts = Counter((item.tier, item.part) for item in items)
    seen: Counter[tuple[int, str]] = Counter()
    places: dict[str, tuple[int, float]] = {}
    for item in items:
        part = (item.tier, item.part)
        seen[part] += 1
        places[item.key] = (item.tier, (seen[part] - 0.5) / counts[part] if item.tier else 0.0)
    return tuple(sorted(items, key=lambda item: places[item.key]))


def reference(site: Site) -> Item:
    """The product that is measured at the start and at the end: a drift means throttling."""
    size = 4096 if site.gpu else 256
    return Item(0, "gemm", "gemm", dtype=_dtypes(site)[0], params=_product("reference", size, size, size))


def ladder(least: int, most: int) -> dict[int, int]:
    """Sizes from `least` to `most` with the tier of each: factors of 16 first, then 4, then 2."""
    found: dict[int, int] = {}
    for tier, factor in ((1, 16), (2, 4), (3, 2)):
        size = least
        while size <= most:
            found.setdefault(size, tier)
            size *= factor
    return dict(sorted(found.items()))


def most_bytes(options: Options, site: Site) -> int:
    """The largest message of a run; not below the smallest one, where only that was asked for."""
    return options.most_bytes or max(options.least_bytes, GPU_MOST_BYTES if site.gpu else CPU_MOST_BYTES)


def _collectives(options: Options, site: Site) -> Iterator[Item]:
    sizes = ladder(options.least_bytes, most_bytes(options, site))
    if site.world > 1:
        middle = 2**26 if site.gpu else 2**20
        largest = max((size for size in sizes if size <= middle), default=options.least_bytes)
        for number in range(len(pair_rounds(site.world))):
            yield Item(0, "pairs", "sendrecv", f"pairs{number}", "all", "fp32", largest, (("pattern", "pair"),))
    for size, tier in sizes.items():
        for family, groups in site.families.items():
            for op in options.ops:
                yield Item(tier, "collectives", op, family, "all", "fp32", size)
                if len(groups) > 1:
                    yield Item(max(tier, 2), "collectives", op, family, "alone", "fp32", size)
            if "sendrecv" in options.ops and site.world > 1:
                yield Item(tier, "collectives", "sendrecv", family, "all", "fp32", size, (("pattern", "pingpong"),))


def _overlaps(options: Options, site: Site) -> Iterator[Item]:
    """A product beside a collective, and two families at once."""
    middle, large = (2**24, 2**28) if site.gpu else (2**18, 2**20)
    sizes = [size for size in (middle, large) if size <= most_bytes(options, site)] or [options.least_bytes]
    families = {name: groups for name, groups in site.families.items() if name != "world" or len(site.families) == 1}
    for number, size in enumerate(reversed(sizes)):
        if site.world > 1:
            for family in families:
                op = _natural(family, options.ops)
                yield Item(1 + number, "overlap", f"gemm+{op}", family, "all", _dtypes(site)[0], size)
        for one, two in combinations(families, 2):
            ops = f"{_natural(one, options.ops)}+{_natural(two, options.ops)}"
            yield Item(1 + number, "families", ops, f"{one}+{two}", "all", "fp32", size)


def _natural(family: str, ops: Sequence[str]) -> str:
    wanted = _NATURAL.get(family, "all_reduce")
    return wanted if wanted in ops else ops[0]


def _setup(options: Options, site: Site) -> Iterator[Item]:
    """Creation of groups: a sweep over size and count, from groups of one rank on, then all of the mesh."""
    size = 1
    while size <= site.world:
        for count in sorted({1, min(_MOST_GROUPS, site.world // size)}):
            yield Item(1, "setup", "new_group", params=(("size", size), ("count", count)))
        size *= 2
    yield Item(1, "setup", "mesh_startup")


def _gemms(options: Options, site: Site) -> Iterator[Item]:
    hidden = options.hidden or ((4096, 8192, 2048, 12288) if site.gpu else (512, 1024))
    tokens = options.tokens or ((2048, 8192) if site.gpu else (256,))
    for h_place, h in enumerate(hidden):
        for t_place, count in enumerate(tokens):
            for dtype_place, dtype in enumerate(_dtypes(site)):
                for tp in (1, 8) if site.gpu else (1,):
                    tier = 1 if h_place < 2 and t_place == dtype_place == 0 and tp == 1 else 2
                    yield from gemms_of(tier, h, count, dtype, tp)


def gemms_of(tier: int, h: int, tokens: int, dtype: str, tp: int) -> Iterator[Item]:
    """Products of one layer (and the logits) for tensor parallelism of `tp`: forward, dgrad and wgrad of each.

    Y[tokens, n] = X[tokens, k] W[n, k]^T; dX[tokens, k] = dY W; dW[n, k] = dY^T X. `m`, `n`, `k` are those of the
    product itself (k is summed over).
    """
    layers = {
        "qkv": (3 * h // tp, h),
        "projection": (h, h // tp),
        "fc1": (4 * h // tp, h),
        "fc2": (h, 4 * h // tp),
        "logits": (51200 // tp if h >= 2048 else 8 * h, h),
    }
    for layer, (n, k) in layers.items():
        for which, m_n_k in (("forward", (tokens, n, k)), ("dgrad", (tokens, k, n)), ("wgrad", (n, k, tokens))):
            further = (("layer", layer), ("hidden", h), ("tp", tp))
            yield Item(tier, "gemm", "gemm", dtype=dtype, params=(*_product(which, *m_n_k), *further))


def _product(which: str, m: int, n: int, k: int) -> tuple[tuple[str, Scalar], ...]:
    return (("pass", which), ("m", m), ("n", n), ("k", k))


def _attention(options: Options, site: Site) -> Iterator[Item]:
    shapes = [(1, 32, 32, 2048, 128), (1, 16, 16, 4096, 64), (1, 32, 8, 8192, 128), (4, 32, 32, 2048, 64)]
    if not site.gpu:
        shapes = [(1, 4, 4, 256, 64)]
    for place, (batch, heads, kv_heads, sequence, size) in enumerate(shapes):
        for kernel in ("flash", "unfused"):
            for masked in ("causal", "full"):
                for which in ("forward", "backward"):
                    shape = (("b", batch), ("heads", heads), ("kv_heads", kv_heads), ("s", sequence), ("d", size))
                    words = (("pass", which), ("mask", masked), *shape)
                    yield Item(1 if place < 1 else 2, "attention", kernel, dtype=_dtypes(site)[0], params=words)


def _memory(options: Options, site: Site) -> Iterator[Item]:
    rows, columns = (2048, 8192) if site.gpu else (256, 1024)
    for place, factor in enumerate((1, 8)):
        for op in ("copy", "layer_norm", "gelu", "dropout_add", "softmax"):
            for which in ("forward",) if op == "copy" else ("forward", "backward"):
                params = (("pass", which), ("rows", rows * factor), ("columns", columns))
                yield Item(1 + place, "memory", op, dtype=_dtypes(site)[0], params=params)


def _optimizer(options: Options, site: Site) -> Iterator[Item]:
    for place, count in enumerate((2**26, 2**29) if site.gpu else (2**18, 2**22)):
        yield Item(1 + place, "optimizer", "adam", dtype="fp32", params=(("parameters", count),))


def _launch(options: Options, site: Site) -> Iterator[Item]:
    yield Item(0, "launch", "launch", dtype="fp32", params=(("where", "host"),))
    yield Item(0, "launch", "launch", dtype="fp32", params=(("where", "device"),))


def _dtypes(site: Site) -> tuple[str, ...]:
    if not site.gpu:
        return ("fp32", "bf16")
    if not site.bf16:  # before Ampere: products of bf16 run, if at all, at a fraction of the rate of fp16
        return ("fp16",)
    return ("bf16", "fp16", "fp8") if site.fp8 else ("bf16", "fp16")
