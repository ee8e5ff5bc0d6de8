"""What a decoder-only transformer looks like, and nothing about how it is trained."""

from dataclasses import dataclass
from typing import Literal

from traincast.errors import ShapeError

Positions = Literal["learned", "rotary"]
Norm = Literal["layernorm", "rmsnorm"]

_SIZES = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "max_positions")


@dataclass(frozen=True)
class ModelShape:
    """Widths and depths of one decoder-only transformer.

    `heads` are query heads, `kv_heads` key and value heads (fewer under grouped-query attention). A
    `gated_mlp` has three matrices of `hidden` x `ffn_hidden`, a plain one two. `vocab` is the tokenizer's,
    before padding. `max_positions` sizes the table of learned positions. `biases` are those of the linear
    layers. Raises ShapeError on a size below 1 and on query heads that do not share their key and value heads
    evenly.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    max_positions: int
    gated_mlp: bool = False
    tied_embeddings: bool = True
    positions: Positions = "learned"
    norm: Norm = "layernorm"
    biases: bool = True

    def __post_init__(self) -> None:
        for field in _SIZES:
            if getattr(self, field) < 1:
                raise ShapeError(f"{field} is {getattr(self, field)}", fix="give a whole number of 1 or more")
        if self.heads % self.kv_heads:
            raise ShapeError(
                f"{self.heads} query heads cannot share {self.kv_heads} key and value heads evenly",
                fix=f"make kv_heads a divisor of heads, e.g. {self.heads} or 1",
            )

    @property
    def attention_width(self) -> int:
        """Columns of the query projection and rows of the output projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    @property
    def mlp_matrices(self) -> int:
        """Matrices of `hidden` x `ffn_hidden` in one MLP."""
        return 3 if self.gated_mlp else 2


def gpt(name: str, hidden: int, layers: int, heads: int, vocab: int = 51200) -> ModelShape:
    """A plain GPT: MLP of 4 x hidden, learned positions, layer norms, biases, tied embeddings."""
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden_per_head(hidden, heads),
        ffn_hidden=4 * hidden,
        vocab=vocab,
        max_positions=2048,
    )


@dataclass(frozen=True)
class Grouping:
    """What a Llama adds to hidden, layers and heads: key and value heads and the width of the gated MLP."""

    kv_heads: int
    ffn_hidden: int
    vocab: int = 128256
    max_positions: int = 8192


def llama(name: str, hidden: int, layers: int, heads: int, grouping: Grouping) -> ModelShape:
    """A Llama: grouped-query attention, gated MLP, rotary positions, RMS norms, no biases, separate head."""
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=grouping.kv_heads,
        head_dim=hidden_per_head(hidden, heads),
        ffn_hidden=grouping.ffn_hidden,
        vocab=grouping.vocab,
        max_positions=grouping.max_positions,
        gated_mlp=True,
        tied_embeddings=False,
        positions="rotary",
        norm="rmsnorm",
        biases=False,
    )


def hidden_per_head(hidden: int, heads: int) -> int:
    """Width of one head where heads divide the hidden width. Raises ShapeError otherwise."""
    if heads < 1 or hidden % heads:
        raise ShapeError(f"hidden {hidden} is not a multiple of {heads} heads", fix="state head_dim, or change heads")
    return hidden // heads
