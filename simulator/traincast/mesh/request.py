"""A parallel shape as somebody asks for it, with what it has to agree with."""

from dataclasses import dataclass

from traincast.mesh.gridchecks import DEFAULT_ORDER


@dataclass(frozen=True)
class ShapeRequest:
    """A parallel shape, and of model and batch what it has to agree with; None is unknown and unchecked.

    `dp` None is what the world leaves (1 without a world); `etp` None is 1. `vpp` counts chunks a rank,
    `experts` the routed ones (0: a dense model) and `ffn_hidden` is the inner size of the MLP, of an expert
    where there are any. `global_batch` and `microbatch` count sequences, `sequence` tokens. `stage_layers`
    gives layers per chunk in pipeline order; `uneven` asks for a balanced uneven split where the even one
    fails, `ragged` for a smaller last microbatch; `causal` says that CP splits the sequence in 2*cp blocks.
    `model_chunks` are the chunks that one copy of the model puts on a stage, where they are not `vpp`; `in_groups` says
    that microbatches pass the chunks in groups of pp, as interleaving has it.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int | None = None
    ep: int = 1
    etp: int | None = None
    order: str = DEFAULT_ORDER
    placement: tuple[int, ...] | None = None
    world: int | None = None
    vpp: int = 1
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn_hidden: int | None = None
    experts: int | None = None
    global_batch: int | None = None
    microbatch: int = 1
    sequence: int | None = None
    stage_layers: tuple[int, ...] | None = None
    uneven: bool = False
    ragged: bool = False
    causal: bool = True
    sequence_parallel: bool = False
    model_chunks: int | None = None
    in_groups: bool = True

    @property
    def parts(self) -> int:
        """Parts that the layers are cut into."""
        return self.pp * (self.vpp if self.model_chunks is None else self.model_chunks)

    @property
    def dp_or_left(self) -> int | None:
        """dp as given, or what tp, cp and pp leave of the world; None where that is no whole number."""
        if self.dp is not None or self.world is None:
            return 1 if self.dp is None else self.dp
        left, rest = divmod(self.world, self.tp * self.cp * self.pp)
        return left if rest == 0 and left > 0 else None

    @property
    def ranks(self) -> int | None:
        """The world as given, or the product of the sizes; None where neither is known."""
        dp = self.dp_or_left
        if self.world is not None or dp is None:
            return self.world
        return self.tp * self.cp * self.pp * dp
