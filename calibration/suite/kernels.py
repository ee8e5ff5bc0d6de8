"""Kernels of a transformer: matrix products, attention, memory-bound work, the optimiser, an empty launch.

Each builder returns a `Kernel`: one repetition over rotating buffers that do not fit in the last cache together, and
what it does in FLOP and bytes. Rates are those counts over the measured time; the counts are named here.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

from suite.plan import Item
from suite.world import Run, World, free_bytes, l2_bytes

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_COPIES = 32


class UnsupportedError(Exception):
    """The device or this PyTorch cannot do it; the text says what is missing."""


@dataclass(frozen=True)
class Kernel:
    """One repetition; FLOP and bytes of memory traffic of it, 0 where that says nothing. `host`: time the host."""

    run: Run
    flops: float = 0.0
    bytes: float = 0.0
    host: bool = False


def build(world: World, item: Item) -> Kernel:
    """The kernel of an item. Raises UnsupportedError, or RuntimeError where memory does not suffice."""
    makers: dict[str, Callable[[World, Item], Kernel]] = {
        "gemm": gemm,
        "attention": attention,
        "memory": memory_bound,
        "optimizer": adam,
        "launch": launch,
    }
    return makers[item.part](world, item)


def copies_of(world: World, bytes_each: float) -> int:
    """Buffers to rotate over, so that none is found in the cache; at most what memory holds."""
    wanted = math.ceil(2 * l2_bytes(world) / max(bytes_each, 1)) + 1
    room = int(free_bytes(world) / 2 // max(bytes_each, 1))
    return max(1, min(wanted, room, _MOST_COPIES))


def random_copies(world: World, shape: tuple[int, ...], dtype: torch.dtype, copies: int) -> list[torch.Tensor]:
    """Equal tensors of normal numbers: zeros would cost less power, and equal copies are made in no time."""
    first = torch.randn(shape, device=world.device).to(dtype)
    return [first, *(first.clone() for _ in range(copies - 1))]


def gemm(world: World, item: Item) -> Kernel:
    """C[m, n] = A[m, k] B[k, n] with the layouts of a linear layer: 2 m n k FLOP.

    forward: X W^T (B is stored transposed); dgrad: dY W; wgrad: dY^T X (A is stored transposed).
    """
    m, n, k = item.get("m"), item.get("n"), item.get("k")
    which = dict(item.params)["pass"]
    if item.dtype == "fp8":
        return Kernel(_fp8(world, (m, n, k), which in ("forward", "reference")), 2.0 * m * n * k)
    dtype = DTYPES[item.dtype]
    width = dtype.itemsize
    copies = copies_of(world, width * (m * k + k * n + m * n))

    def matrices(rows: int, columns: int, transposed: bool) -> list[torch.Tensor]:
        made = random_copies(world, (columns, rows) if transposed else (rows, columns), dtype, copies)
        return [one.t() for one in made] if transposed else made

    left = matrices(m, k, which == "wgrad")
    right = matrices(k, n, which in ("forward", "reference"))
    out = [torch.empty(m, n, device=world.device, dtype=dtype) for _ in range(copies)]
    return Kernel(lambda i: torch.mm(left[i % copies], right[i % copies], out=out[i % copies]), 2.0 * m * n * k)


def _fp8(world: World, shape: tuple[int, int, int], fast: bool) -> Run:
    """An fp8 product: A row by row, B column by column, whatever the pass, since Hopper multiplies no other layout.

    `fast`: sums in the tensor cores' own precision, as Transformer Engine does forward and does not backward.
    """
    m, n, k = shape
    if not hasattr(torch, "_scaled_mm") or not world.gpu or torch.cuda.get_device_capability() < (8, 9):
        raise UnsupportedError("this device or PyTorch has no fp8 product")
    if m % 16 or n % 16 or k % 16:
        raise UnsupportedError("fp8 products need multiples of 16")
    copies = copies_of(world, m * k + k * n + 2 * m * n)
    kind, one = torch.float8_e4m3fn, torch.ones((), device=world.device)
    left = random_copies(world, (m, k), kind, copies)
    right = [other.t() for other in random_copies(world, (n, k), kind, copies)]
    further: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": fast}

    def run(i: int) -> None:
        torch._scaled_mm(left[i % copies], right[i % copies], **further)

    return run


def attention(world: World, item: Item) -> Kernel:
    """Attention of `b` sequences of `s` tokens, `heads` heads of `d` columns.

    FLOP of the full matrix: forward 4 b heads s^2 d; backward 8 (unfused) or 10 (flash, which makes the scores
    again; FlashAttention-2's count); half of that where the mask is causal.
    """
    b, heads, kv_heads, s, d = (item.get(name) for name in ("b", "heads", "kv_heads", "s", "d"))
    causal, backward = dict(item.params)["mask"] == "causal", dict(item.params)["pass"] == "backward"
    flash = item.op == "flash"
    dtype = DTYPES[item.dtype]
    each = dtype.itemsize * b * s * d * (4 * heads + 4 * kv_heads)
    copies = copies_of(world, each + (0 if flash else 3 * dtype.itemsize * b * heads * s * s))

    def leaves(count: int) -> list[torch.Tensor]:
        return [one.requires_grad_(backward) for one in random_copies(world, (b, count, s, d), dtype, copies)]

    inputs = list(zip(leaves(heads), leaves(kv_heads), leaves(kv_heads), strict=True))
    attend = _flash(world, causal, heads != kv_heads) if flash else _unfused(world, s, causal, heads // kv_heads)
    factor = 4.0 if not backward else 10.0 if flash else 8.0
    flops = factor * b * heads * s * s * d / (2 if causal else 1)
    if not backward:

        def forward(i: int) -> None:
            with torch.no_grad():
                attend(*inputs[i % copies])

        return Kernel(forward, flops)
    outputs = [attend(*one) for one in inputs]
    slope = torch.randn_like(outputs[0])
    return Kernel(
        lambda i: torch.autograd.grad(outputs[i % copies], inputs[i % copies], slope, retain_graph=True), flops
    )


def _flash(world: World, causal: bool, grouped: bool) -> Callable[..., torch.Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    further: dict[str, Any] = {"enable_gqa": True} if grouped else {}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not world.gpu:  # the processor has one fused kernel and no choice
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **further)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **further)

    return attend


def _unfused(world: World, s: int, causal: bool, share: int) -> Callable[..., torch.Tensor]:
    """Scores written to memory, masked, turned into weights, multiplied: as before fused kernels."""
    ahead = torch.triu(torch.ones(s, s, dtype=torch.bool, device=world.device), diagonal=1) if causal else None

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if share > 1:
            k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        if ahead is not None:
            scores = scores.masked_fill(ahead, torch.finfo(scores.dtype).min)
        return torch.matmul(torch.softmax(scores, -1), v)

    return attend


def memory_bound(world: World, item: Item) -> Kernel:
    """Work that moves bytes: traffic in tensors of rows x columns (read and written), forward and backward.

    copy 2; layer_norm 2, backward 3; gelu 2, backward 3; dropout_add (dropout, then the residual added) 3 and a mask
    of one byte, backward 2 and the mask; softmax 2, backward 3.
    """
    rows, columns = item.get("rows"), item.get("columns")
    backward = dict(item.params)["pass"] == "backward"
    dtype = DTYPES[item.dtype]
    size = float(rows * columns * dtype.itemsize)
    traffic = {"copy": (2, 2), "dropout_add": (3, 2)}.get(item.op, (2, 3))[backward] * size
    traffic += rows * columns if item.op == "dropout_add" else 0
    copies = copies_of(world, 3 * size)

    inputs = [one.requires_grad_(backward) for one in random_copies(world, (rows, columns), dtype, copies)]
    beside = random_copies(world, (rows, columns), dtype, copies)
    weight = torch.ones(columns, device=world.device, dtype=dtype)
    makes: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "copy": lambda x, y: y.copy_(x),
        "layer_norm": lambda x, y: functional.layer_norm(x, (columns,), weight, weight),
        "gelu": lambda x, y: functional.gelu(x, approximate="tanh"),
        "dropout_add": lambda x, y: functional.dropout(x, 0.1) + y,
        "softmax": lambda x, y: torch.softmax(x, -1),
    }
    make = makes[item.op]
    if not backward:

        def forward(i: int) -> None:
            with torch.no_grad():
                make(inputs[i % copies], beside[i % copies])

        return Kernel(forward, bytes=traffic)
    outputs = [make(x, y) for x, y in zip(inputs, beside, strict=True)]
    slope = torch.randn_like(outputs[0])
    return Kernel(
        lambda i: torch.autograd.grad(outputs[i % copies], inputs[i % copies], slope, retain_graph=True), bytes=traffic
    )


def adam(world: World, item: Item) -> Kernel:
    """One Adam step over fp32 parameters: 28 bytes each (parameter and both moments read and written, gradient read).

    Fused on a GPU, foreach elsewhere. Raises MemoryError where parameters, states and gradients do not fit.
    """
    count = item.get("parameters")
    if 20 * count > free_bytes(world):
        raise MemoryError(f"Adam over {count} parameters does not fit in memory")
    parts = [torch.nn.Parameter(torch.randn(count // 8, device=world.device)) for _ in range(8)]
    for part in parts:
        part.grad = torch.randn_like(part)
    optimizer = torch.optim.Adam(parts, lr=1e-6, fused=world.gpu or None, foreach=None if world.gpu else True)
    return Kernel(lambda i: optimizer.step(), bytes=28.0 * (count // 8 * 8))


def launch(world: World, item: Item) -> Kernel:
    """An addition of one element: nothing but its launch. `where`: time of the host, or from kernel to kernel."""
    one = torch.zeros(1, device=world.device)
    return Kernel(lambda i: one.add_(0.0), host=dict(item.params)["where"] == "host")


def time_host(world: World, run: Run, rounds: int, calls: int) -> list[float]:
    """Seconds of the host a call, `rounds` times: `calls` without waiting for the device (its queue holds 1024)."""
    found = []
    for number in range(rounds):
        world.synchronize()
        begin = time.perf_counter()
        for i in range(calls):
            run(calls * number + i)
        found.append((time.perf_counter() - begin) / calls)
    return found
