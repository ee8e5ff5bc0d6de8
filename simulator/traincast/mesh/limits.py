"""How large a size may be: beyond this a number is a slip of the pen, and work on it would never end."""

from types import MappingProxyType

MOST_RANKS = 4_000_000
"""Ranks of a mesh, and along any of its axes."""

MOST = MappingProxyType(
    {
        "layers": 10_000,
        "hidden": 1_000_000,
        "heads": 100_000,
        "kv_heads": 100_000,
        "head_dim": 1_000_000,
        "ffn_hidden": 10_000_000,
        "vocab": 10_000_000,
        "sequence": 100_000_000,
        "global batch": 10_000_000,
        "microbatch": 10_000_000,
        "vpp": 10_000,
    }
)
"""Sizes of a model and of a batch, by the words that messages use."""
