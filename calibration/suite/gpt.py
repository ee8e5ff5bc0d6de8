"""A plain GPT, as small as a transformer can be written: what `train_step.py` trains for a few steps."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn


@dataclass(frozen=True)
class Size:
    """Shape of the model and of one step."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    sequence: int
    microbatch: int
    microbatches: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.sequence * self.microbatch * self.microbatches

    def flops(self) -> float:
        """FLOP of a step, convention `model`: forward and backward once, the full attention matrix.

        72 B s l h^2 (1 + s / (6 h) + V / (12 l h)) (Narayanan et al. 2021, eq. 3, without recomputation).
        """
        further = self.sequence / (6 * self.hidden) + self.vocab / (12 * self.layers * self.hidden)
        return 72.0 * self.tokens * self.layers * self.hidden**2 * (1 + further)


class Block(nn.Module):
    """Layer norm, causal attention, residual; layer norm, MLP of four times the width, residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        h = size.hidden
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.projection = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.fc1, self.fc2 = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens in and out, shape (b, s, h)."""
        b, s, h = x.shape
        parts = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(b, s, h))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Embedding, blocks, norm, logits through the embedding's own matrix."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.hidden)
        self.positions = nn.Embedding(size.sequence, size.hidden)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch, shapes (b, s)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


class Trainer:
    """Steps of mixed precision: weights in half precision, fp32 masters and Adam moments (all fp32 without a GPU).

    Half is bf16, before Ampere fp16 (without loss scaling: what is timed does not depend on the values).
    """

    def __init__(self, size: Size, device: torch.device) -> None:
        torch.manual_seed(0)
        gpu = device.type == "cuda"
        self.size = size
        self.model = Gpt(size).to(device)
        self.dtype = "fp32"
        if gpu:
            self.dtype = "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
            self.model = self.model.to(torch.bfloat16 if self.dtype == "bf16" else torch.float16)
        self.weights = list(self.model.parameters())
        self.masters = [weight.detach().float().clone() for weight in self.weights] if gpu else self.weights
        options: dict[str, Any] = {"fused": True} if gpu else {"foreach": True}
        self.adam = torch.optim.Adam(self.masters, lr=1e-4, **options)
        shape = (size.microbatches, size.microbatch, size.sequence)
        self.data = torch.randint(size.vocab, shape, device=device)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(weight.numel() for weight in self.weights)

    def gradients(self, i: int = 0) -> torch.Tensor:
        """Forward and backward of all microbatches; the last one's loss."""
        loss = torch.zeros(())
        for batch in self.data:
            loss = self.model(batch, batch.roll(-1, 1))
            (loss / self.size.microbatches).backward()
        return loss.detach()

    def fresh_gradients(self, i: int = 0) -> torch.Tensor:
        """`gradients` as in a step, where none are there before."""
        for weight in self.weights:
            weight.grad = None
        return self.gradients(i)

    def update(self, i: int = 0) -> None:
        """Gradients to the masters, Adam, masters to the weights, gradients away."""
        if self.masters is not self.weights:
            for master in self.masters:
                master.grad = torch.empty_like(master) if master.grad is None else master.grad
            grads = [weight.grad for weight in self.weights]
            torch._foreach_copy_([master.grad for master in self.masters], grads)
        self.adam.step()
        if self.masters is not self.weights:
            torch._foreach_copy_([weight.detach() for weight in self.weights], self.masters)
        for weight in self.weights:
            weight.grad = None

    def step(self, i: int = 0) -> torch.Tensor:
        """One training step; its loss."""
        loss = self.gradients(i)
        self.update(i)
        return loss
