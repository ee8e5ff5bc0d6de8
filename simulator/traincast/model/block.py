"""What a rank runs: kinds of operators, and the decoder block that decides their shapes."""

from dataclasses import dataclass
from typing import Literal

from traincast.model.casts import HALF_PRECISION, Casts, Scaling, casts_of

Role = Literal["fwd", "dgrad", "wgrad"]
CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]
CollectiveAxis = Literal["tp", "cp", "ep", "dp", "replica"]
ContextStyle = Literal["ring", "allgather", "burst"]

ACTIVATION_BYTES = 2
"""fp16 and bf16 activations. An fp8 stack still stores activations between operators in bf16."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` products of (m x k) by (k x n).

    `calls` counts framework calls for the host: a linear layer is a transpose view and a product. `fp8`: both factors
    are fp8, the product is half precision; `rowwise`: each row has a scale of its own. `shares_sms`: a reduction beside
    it holds some of the multiprocessors.
    `out_bytes` are moved for each element of the product: a write, or a read and a write of what it is added to.
    `for_weights`, here and in other operators: of a backward pass, serves gradients of weights alone.
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    role: Role = "fwd"
    calls: int = 1
    fp8: bool = False
    shares_sms: bool = False
    rowwise: bool = False
    out_bytes: float = 2.0
    for_weights: bool = False

    @property
    def flops(self) -> float:
        """Multiply-adds counted as two."""
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class FlashAttention:
    """A fused attention kernel over `batch` sequences; scores never reach memory.

    Where it is causal and there are fewer queries than keys, the queries are the last ones of the keys' tokens.
    `drops`: it draws a random number for each score (dropout).
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    query: int
    keys: int
    head_dim: int
    causal: bool = True
    role: Literal["fwd", "bwd"] = "fwd"
    calls: int = 1
    drops: bool = False

    @property
    def flops(self) -> float:
        """Work of the full attention matrix: 2 products forward, 5 backward (scores are rebuilt)."""
        products = 2 if self.role == "fwd" else 5
        return 2.0 * products * self.batch * self.heads * self.query * self.keys * self.head_dim


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """Kernels whose time is the bytes they move; `calls` kernels. `columns`: they walk a matrix along its columns."""

    name: str
    bytes_moved: float
    calls: int = 1
    columns: bool = False
    for_weights: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of the group along `axis`; `size_bytes` as nccl-tests counts it (the full buffer).

    `behind` compute operators that follow do not wait for it: it runs beside them, and what comes next waits.
    `needs` says whether it waits for what was computed before it (a gather of parameters ahead of time does not).
    `group` names the family of its group where that is not the whole axis; it then has a stream of its own, too.
    `after_copies`: it waits for what was copied from the host's memory before it.
    """

    name: str
    op: CollectiveOp
    axis: CollectiveAxis
    size_bytes: float
    behind: int = 0
    calls: int = 1
    needs: bool = True
    group: str = ""
    after_copies: bool = False
    for_weights: bool = False

    @property
    def family(self) -> str:
        """Family of groups that it runs in, and the name of its stream."""
        return self.group or self.axis


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy of activations `out` to the host's memory or back `in`, at the rate that a GPU has beside its neighbours.

    Each way has a stream of its own. A copy needs nothing and nothing in its chunk waits for it, but the chunk ends no
    sooner than it does: what it copies belongs to the passes before and after.
    """

    name: str
    size_bytes: float
    way: Literal["out", "in"]
    bytes_per_s: float
    calls: int = 1


Operator = Gemm | FlashAttention | MemoryBound | Collective | HostCopy


@dataclass(frozen=True, slots=True)
class Context:
    """How context-parallel ranks share the attention of a sequence.

    `ulysses` ranks exchange heads for tokens. The others form rings of cp/ulysses ranks, each with a block of the
    sequence, and `style` says how a rank sees the blocks of the others: `ring` passes keys and values on, `allgather`
    gathers them, `burst` passes on whatever is smaller, and over rings of `inner` ranks inside the nodes and one across
    them (0: one ring). `balanced` ranks hold blocks i and 2r - 1 - i of 2r; without it a rank holds block `position` of
    r. `keeps_gathered` keys and values are not gathered again for the backward pass.
    With `by_block` what is gathered is attended to a rank's block at a time, as in a ring; keys and values are repeated
    for every query head before, and gradients go round in single precision (PyTorch's context_parallel, torchtitan).
    """

    style: ContextStyle = "ring"
    ulysses: int = 1
    inner: int = 0
    balanced: bool = True
    position: int = 0
    keeps_gathered: bool = False
    by_block: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """What decides a decoder block's operators on one rank: model widths, tensor-parallel share, kernels in use.

    `dropout` adds the mask traffic of attention and hidden dropout (GPT stacks of 2020-2022 train with 0.1).
    `overlap_tp` lets backward collectives of column-parallel layers run beside the following product
    (Megatron-LM from late 2021; Korthikanti 2022 §6). `fused_accumulation` adds weight gradients to the main gradient
    inside the product's epilogue; without it an extra kernel reads the gradient and updates the main gradient, in a
    share `summed` of the microbatches (autograd keeps the first one's as it is where there is no buffer to add it to).
    `softmax_keys`: the fused softmax is bound to shapes, and to so many keys (`model.attention`).
    With `fused_loss` one kernel passes over the half-precision logits twice, and one writes their gradient over them.
    With `split_tp` collectives under sequence parallelism are cut into pieces that run beside pieces of the product
    (Transformer Engine's userbuffers); `overlap_tp` then holds too. With `fp8` linear layers multiply in fp8, cast as
    `scaling` says (`model.casts`), and need transposes where `fp8_transposes`; `fused_casts`: a cast is part of the
    kernel that makes the tensor (XLA); `fp8_weights`: weights come in fp8. With `autocast` parameters and the residual
    stream are single precision, and so are embedding, norms and loss, as torch.autocast runs them: each product casts
    its factors down and its weight gradient up. `copies_sequence`: what is gathered or scattered along the sequence is
    copied, as sequences are not the outermost dimension (`model.linear`). `complex_rotary`: rotary embeddings multiply
    complex numbers; `unfused_rotary`: they are several kernels (`operators`).
    `sequence` counts the tokens of a whole sequence; a rank has 1/`cp` of them and sees the rest as `context` says.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    gated_mlp: bool
    rotary: bool
    microbatch: int
    sequence: int
    tp: int = 1
    sequence_parallel: bool = False
    flash: bool = False
    dropout: bool = True
    overlap_tp: bool = False
    fused_accumulation: bool = False
    summed: float = 1.0
    main_gradient_bytes: int = 2
    fused_loss: bool = False
    softmax_keys: int = 0
    split_tp: bool = False
    fp8: bool = False
    fp8_transposes: bool = True
    fused_casts: bool = False
    autocast: bool = False
    scaling: Scaling = "delayed"
    fp8_weights: bool = False
    copies_sequence: bool = False
    complex_rotary: bool = False
    unfused_rotary: bool = False
    cp: int = 1
    context: Context = Context()

    @property
    def casts(self) -> Casts:
        """What casts to fp8 move."""
        if not self.fp8:
            return HALF_PRECISION
        return casts_of(self.scaling, transposes=self.fp8_transposes, fused=self.fused_casts)

    @property
    def reads_behind_gathers(self) -> bool:
        """Whether a cast reads what was gathered, so that it needs no copy of it."""
        return self.fp8 and self.casts.gathers_half

    @property
    def streams_gathers(self) -> bool:
        """Whether a product takes what is gathered as it comes; not where all of it is copied or cast before."""
        split = self.split_tp and self.tp > 1 and self.sequence_parallel
        return split and not self.copies_sequence and not self.reads_behind_gathers

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on this rank."""
        return self.microbatch * (self.sequence // self.cp)

    @property
    def local_heads(self) -> int:
        """Query heads on this rank."""
        return self.heads // self.tp

    @property
    def local_kv_heads(self) -> int:
        """Key/value heads on this rank; replicated when there are fewer than ranks."""
        return max(1, self.kv_heads // self.tp)

    @property
    def qkv_width(self) -> int:
        """Columns of the fused query, key and value projection on this rank."""
        return (self.local_heads + 2 * self.local_kv_heads) * self.head_dim

    @property
    def attention_width(self) -> int:
        """Columns of the attention output on this rank."""
        return self.local_heads * self.head_dim

    @property
    def ffn_width(self) -> int:
        """Columns of the MLP on this rank (each of gate and up, when gated)."""
        return self.ffn_hidden // self.tp

    @property
    def ring(self) -> int:
        """Ranks that hold different blocks of the same heads."""
        return self.cp // self.context.ulysses

    @property
    def core_heads(self) -> int:
        """Query heads that this rank attends with, once heads are exchanged for tokens."""
        return self.local_heads // self.context.ulysses

    @property
    def core_kv_heads(self) -> int:
        """Key/value heads that this rank attends with; replicated when there are fewer than ranks to exchange with."""
        if self.context.by_block:
            return self.core_heads
        return max(1, self.local_kv_heads // self.context.ulysses)

    @property
    def core_sequence(self) -> int:
        """Tokens of a sequence whose queries this rank holds in the attention core."""
        return self.sequence // self.ring

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one full activation of width `hidden`."""
        return float(self.tokens * self.hidden * ACTIVATION_BYTES)

    @property
    def norm_elements(self) -> float:
        """Elements that a norm, a residual add or a hidden dropout walks: the sequence is split under SP."""
        return self.tokens * self.hidden / (self.tp if self.sequence_parallel else 1)
