"""What of a layer is computed again before its backward pass.

A recipe says it in a word: `none`, `full`, `selective` (the attention core), `mlp`, `every_2nd` (every second layer in
full; any number), or a list of parts `op:mlp_act+norm`. `op:torchtitan` is torchtitan's selective activation
checkpointing of operators: the outputs of attention, of reduce-scatters and of every second matrix product are kept
(query, value, gate and down projection), everything else is computed again (torchtitan, parallelize_llama.py,
`_save_list` and `_get_custom_policy`). `full_but_qkv` keeps queries, keys and values, rotary embedding included, and
computes everything else again (MaxText's remat_policy save_qkv_proj, layers/decoders.py and layers/attentions.py).

Long sequences have a mode of their own: `full_but_attention` keeps the output of the attention core and computes
everything else again (LoongTrain, Gu et al. 2024, section 5.2, selective checkpoint++); `full_but_late_attention` keeps
that of the later half of each sequence, which is three quarters of the causal core's work (BurstEngine, Sun et al.
2025, sequence-level selective checkpointing). Published tables call them `op:selective` and `op:seq_selective`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

Piece = Literal["core_attn", "mlp", "mlp_act", "norm", "torchtitan"]
PIECES: tuple[Piece, ...] = get_args(Piece)
_ALSO = {"layernorm": "norm", "act": "mlp_act", "core_attention": "core_attn"}
"""Other spellings of parts."""

EXAMPLES = (
    "none, selective, full, full_but_qkv, full_but_attention, full_but_late_attention, mlp, every_2nd, op:torchtitan, "
    "op:mlp_act+norm"
)


@dataclass(frozen=True)
class Recomputation:
    """`full_every` n: layers n, 2n, ... of a rank are recomputed whole (0: none); `pieces` are what others recompute.

    A rank counts its layers through all of its chunks, whatever others hold (torchtitan, activation_checkpoint.py,
    `_layer_sac_count`): none of them is recomputed where a rank has fewer than n.

    Of the attention core of a whole layer the queries of the last `kept_queries` of each sequence are not computed
    again: 0, a half or 1. `kept_qkv`: queries, keys and values of a whole layer are kept.
    """

    full_every: int = 0
    pieces: frozenset[Piece] = frozenset()
    kept_queries: float = 0.0
    kept_qkv: bool = False

    @property
    def core_again(self) -> float:
        """Share of a causal attention core's work that a whole layer repeats: that of the first queries."""
        return (1.0 - self.kept_queries) ** 2

    def full_layers(self, layers: int, before: int = 0) -> int:
        """How many of `layers` in a row are recomputed whole, behind the `before` that their rank has counted."""
        return (before + layers) // self.full_every - before // self.full_every if self.full_every else 0


@lru_cache(maxsize=256)
def recomputation(text: str) -> Recomputation:
    """What a text asks for. Raises ValueError, with what is understood, for any other."""
    plain = {
        "none": Recomputation(),
        "full": Recomputation(full_every=1),
        "full_but_qkv": Recomputation(full_every=1, kept_qkv=True),
        "selective": Recomputation(pieces=frozenset({"core_attn"})),
        "mlp": Recomputation(pieces=frozenset({"mlp"})),
        **dict.fromkeys(("full_but_attention", "op:selective"), Recomputation(full_every=1, kept_queries=1.0)),
        **dict.fromkeys(("full_but_late_attention", "op:seq_selective"), Recomputation(full_every=1, kept_queries=0.5)),
    }
    if text in plain:
        return plain[text]
    if nth := re.fullmatch(r"every_([1-9]\d{0,3})(st|nd|rd|th)", text):
        return Recomputation(full_every=int(nth[1]))
    listed = text.removeprefix("op:").split("+") if text.startswith("op:") else []
    pieces = frozenset(piece for name in listed for piece in PIECES if piece == _ALSO.get(name, name))
    if not listed or len(pieces) != len(set(listed)) or ("torchtitan" in pieces and len(pieces) > 1):
        raise ValueError(f"recomputation {text!r} is not one of {EXAMPLES} (pieces: {', '.join(PIECES)})")
    return Recomputation(pieces=pieces)
