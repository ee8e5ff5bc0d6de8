"""What of a layer is computed again before its backward pass.

A recipe says it in a word: `none`, `full`, `selective` (the attention core), `mlp`, `every_2nd` (every second layer in
full; any number), or a list of parts `op:mlp_act+norm`. `op:torchtitan` is torchtitan's selective activation
checkpointing of operators: the outputs of attention, of reduce-scatters and of every second matrix product are kept
(query, value, gate and down projection), everything else is computed again (torchtitan, parallelize_llama.py,
`_save_list` and `_get_custom_policy`).
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

Piece = Literal["core_attn", "mlp", "mlp_act", "norm", "torchtitan"]
PIECES: tuple[Piece, ...] = get_args(Piece)
_ALSO = {"layernorm": "norm", "act": "mlp_act", "core_attention": "core_attn"}
"""Other spellings of parts."""

EXAMPLES = "none, selective, full, mlp, every_2nd, op:torchtitan, op:mlp_act+norm"


@dataclass(frozen=True)
class Recomputation:
    """`full_every` n: layers n, 2n, ... are recomputed whole (0: none); `pieces` are what the others recompute."""

    full_every: int = 0
    pieces: frozenset[Piece] = frozenset()

    def full_layers(self, layers: int) -> int:
        """How many of `layers` in a row are recomputed whole."""
        return layers // self.full_every if self.full_every else 0


@lru_cache(maxsize=256)
def recomputation(text: str) -> Recomputation:
    """What a text asks for. Raises ValueError, with what is understood, for any other."""
    plain = {
        "none": Recomputation(),
        "full": Recomputation(full_every=1),
        "selective": Recomputation(pieces=frozenset({"core_attn"})),
        "mlp": Recomputation(pieces=frozenset({"mlp"})),
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
