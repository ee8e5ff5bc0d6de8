"""Parameters: of a whole model, of one layer on one tensor-parallel rank, of a pipeline stage.

Counts are exact integers. Column-parallel weights and biases and the vocabulary are split over tensor
parallelism; row-parallel biases, norms and learned positions are on every rank.
"""

from dataclasses import dataclass

from traincast.model.shape import ModelShape


def padded_vocab(vocab: int, tp: int, multiple: int = 128) -> int:
    """Rows of the embedding table: the next multiple of `multiple`·`tp`, as Megatron-LM pads it."""
    step = multiple * tp
    return -(-vocab // step) * step


def closed_form_parameters(layers: int, hidden: int, vocab: int, sequence: int) -> float:
    """Parameters of a plain GPT by the printed formula.

    Notes
    -----
    P = 12·l·h²·(1 + 13/(12·h) + (V + s)/(12·l·h)): per layer 4h² + 4h in attention, 8h² + 5h in the MLP and
    4h in two layer norms; (V + s)·h in the embeddings. The final layer norm (2h) is left out there.

    Reference: Narayanan et al. 2021 (SC21), eq. 2.
    """
    inner = 1 + 13 / (12 * hidden) + (vocab + sequence) / (12 * layers * hidden)
    return 12 * layers * hidden**2 * inner


def layer_parameters(shape: ModelShape, tp: int = 1) -> int:
    """Parameters of one transformer layer on one of `tp` ranks."""
    return _attention(shape, tp) + _mlp(shape, tp) + 2 * norm_parameters(shape)


def norm_parameters(shape: ModelShape) -> int:
    """Scale, and shift where the norm has one; on every rank."""
    return shape.hidden * (2 if shape.norm == "layernorm" else 1)


def local_kv_heads(shape: ModelShape, tp: int) -> int:
    """Key and value heads on one rank: replicated where there are fewer heads than ranks."""
    return max(1, shape.kv_heads // tp)


def embedding_parameters(shape: ModelShape, tp: int = 1) -> int:
    """Token table (padded, split over rows) and learned positions on one rank of the first stage."""
    positions = shape.max_positions * shape.hidden if shape.positions == "learned" else 0
    return padded_vocab(shape.vocab, tp) // tp * shape.hidden + positions


def head_parameters(shape: ModelShape, tp: int = 1) -> int:
    """Output matrix on one rank of the last stage, tied or not (without bias)."""
    return padded_vocab(shape.vocab, tp) // tp * shape.hidden


def total_parameters(shape: ModelShape) -> int:
    """Parameters of the model as its authors count them: vocabulary unpadded, tied embeddings once."""
    positions = shape.max_positions * shape.hidden if shape.positions == "learned" else 0
    tables = shape.vocab * shape.hidden * (1 if shape.tied_embeddings else 2)
    return tables + positions + shape.layers * layer_parameters(shape) + norm_parameters(shape)


@dataclass(frozen=True)
class StageParameters:
    """Parameters of one rank of one pipeline stage, by where they sit."""

    layers: int
    embedding: int
    head: int
    final_norm: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.layers + self.embedding + self.head + self.final_norm


def stage_parameters(shape: ModelShape, tp: int, layers: int, *, first: bool, last: bool) -> StageParameters:
    """Parameters of one rank of a stage that holds `layers` layers.

    A tied head is a second copy on the last stage, unless that is the first stage too.
    """
    has_own_head = last and not (first and shape.tied_embeddings)
    return StageParameters(
        layers=layers * layer_parameters(shape, tp),
        embedding=embedding_parameters(shape, tp) if first else 0,
        head=head_parameters(shape, tp) if has_own_head else 0,
        final_norm=norm_parameters(shape) if last else 0,
    )


def _attention(shape: ModelShape, tp: int) -> int:
    query = shape.attention_width // tp
    keys_and_values = 2 * local_kv_heads(shape, tp) * shape.head_dim
    biases = query + keys_and_values + shape.hidden if shape.biases else 0
    return shape.hidden * (query + keys_and_values) + query * shape.hidden + biases


def _mlp(shape: ModelShape, tp: int) -> int:
    width = shape.ffn_hidden // tp
    columns = (shape.mlp_matrices - 1) * width
    biases = columns + shape.hidden if shape.biases else 0
    return shape.mlp_matrices * shape.hidden * width + biases
