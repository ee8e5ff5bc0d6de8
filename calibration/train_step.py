"""A real training step of a small transformer on one GPU: the time that a forecast is held to.

    python calibration/train_step.py -o results.jsonl --layers 12 --hidden 2048 --heads 16

Appends its records to the file and writes a scenario beside it, with the measured time as its published one, for
`traincast predict`. Needs PyTorch and the standard library.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.meta import run_entry

CATALOGUE = {
    "A100-SXM4-80GB": "A100-80GB-SXM",
    "A100-SXM4-40GB": "A100-40GB-SXM",
    "A100 80GB PCIe": "A100-80GB-PCIe",
    "A100-PCIE-40GB": "A100-40GB-PCIe",
    "H100 80GB HBM3": "H100-80GB-SXM",
    "H100 PCIe": "H100-80GB-PCIe",
    "H200": "H200-141GB-SXM",
    "B200": "B200-180GB-SXM",
    "V100-SXM2-32GB": "V100-32GB-SXM",
    "V100-SXM2-16GB": "V100-16GB-SXM",
}
"""How the driver calls a GPU -> its name in the catalogue."""


def main(arguments: Sequence[str]) -> int:
    """Measures the steps, writes records and scenario; returns the exit code."""
    given = _parse(arguments)
    try:
        from suite.gpt import Size
        from suite.store import StoreError
        from suite.world import OUT_OF_MEMORY
    except ModuleNotFoundError as error:
        print(f"train_step.py: no module {error.name}: pip install torch", file=sys.stderr)
        return 2
    if given.hidden % given.heads:
        print(f"train_step.py: --hidden {given.hidden} is no multiple of --heads {given.heads}", file=sys.stderr)
        return 2
    names = ("layers", "hidden", "heads", "vocab", "sequence", "microbatch", "microbatches")
    size = Size(**{name: getattr(given, name) for name in names})
    try:
        done = _measured(given, size, ["train_step.py", *arguments])
    except (StoreError, OSError, MemoryError, OUT_OF_MEMORY) as error:
        print(f"train_step.py: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    print(done, file=sys.stderr)
    return 0


def _measured(given: argparse.Namespace, size: Any, command: Sequence[str]) -> str:
    """Measures in a world of one process, which waits for nobody when something fails."""
    from suite.facts import facts_of, labelled
    from suite.gpt import Trainer
    from suite.groups import Shape
    from suite.launch import Launch
    from suite.rows import finished
    from suite.store import open_store
    from suite.world import join, leave

    world = labelled(join(Launch(), None))
    facts = facts_of(world, Shape(), os.environ)
    store = open_store(given.output, True, facts)
    trainer = Trainer(size, world.device)
    entries = _entries(world, trainer, given.steps)
    end = {"kind": "end", "measured": len(entries), "left_out": 0, "complete": True, "problems": []}
    index = store.index
    lines = [run_entry(index, facts, command, os.environ), *(finished(entry, index) for entry in (*entries, end))]
    store.write(lines)
    step_us = entries[0]["time_us"]
    scenario = given.output.with_name(f"{given.output.stem}-l{size.layers}h{size.hidden}.yaml")
    scenario.write_text(scenario_text(size, facts["gpu"], step_us, trainer.dtype), encoding="utf-8")
    leave(world)
    rate = size.flops() / (step_us * 1e-6) / 1e12
    return f"{step_us / 1e3:.2f} ms a step, {rate:.2f} TFLOP/s (model); forecast: traincast predict {scenario.name}"


def _entries(world: Any, trainer: Any, steps: int) -> list[dict[str, Any]]:
    """Records of whole steps, and of their forward and backward alone."""
    from suite.plan import Item
    from suite.rows import timed
    from suite.sampling import Limits, sample
    from suite.world import clock_tick_s

    size = trainer.size
    names = ("layers", "hidden", "heads", "vocab", "sequence", "microbatch", "microbatches")
    shape = {**{name: getattr(size, name) for name in names}, "parameters": trainer.parameters, "steps": steps}
    tick_s = clock_tick_s(world.gpu)
    limits = Limits(least=steps, most=4 * steps, seconds=120.0, sample_s=1e-6, most_inner=1, tick_s=tick_s)
    found = []
    for op, run in (("train_step", trainer.step), ("gradients", trainer.fresh_gradients)):
        item = Item(1, "step", op, dtype=trainer.dtype, params=tuple(shape.items()))
        entry = timed(item, "step", sample(world, run, limits, together=True), world.hosts)
        entry["flops_per_s"] = round(size.flops() / (entry["time_us"] * 1e-6), 1)
        found.append(entry | {"ranks": 1, "nodes": 1})
    return found


def scenario_text(size: Any, gpu: str | None, step_us: float, dtype: str) -> str:
    """The measured step as a scenario of `traincast predict`; `dtype`: that of the weights in the products."""
    known = next((name for words, name in CATALOGUE.items() if gpu and words in gpu), None)
    named = known or "A100-80GB-SXM  # no catalogue name is known for this device: put its own here"
    kind = f"{{name: GPT-small, hidden: {size.hidden}, layers: {size.layers}, heads: {size.heads}"
    return "\n".join(
        (
            f"description: a GPT of {size.layers} layers on one GPU, measured by calibration/train_step.py",
            f"model: {kind}, vocab: {size.vocab}, max_positions: {size.sequence}, tied_embeddings: true}}",
            "cluster:",
            f"  gpu: {named}",
            "  nodes: 1",
            "  gpus_per_node: 1",
            "  nics_per_node: 0",
            "training:",
            f"  global_batch: {size.microbatch * size.microbatches}",
            f"  microbatch: {size.microbatch}",
            f"  sequence: {size.sequence}",
            f"  precision: {dtype}",
            "  recompute: none",
            "  attention: flash",
            *((f"  gradient_dtype: {dtype}",) if dtype != "fp32" else ()),
            f"published: {{step_time: {step_us / 1e3:.4g} ms, source: measured by calibration/train_step.py}}",
            "",
        )
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train_step.py", description="A real training step of a small GPT.")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="records are appended here")
    sizes = {"layers": 12, "hidden": 2048, "heads": 16, "vocab": 51200, "sequence": 2048}
    for name, value in (sizes | {"microbatch": 4, "microbatches": 1, "steps": 20}).items():
        parser.add_argument(f"--{name}", type=_whole, default=value, metavar="N", help="default %(default)s")
    return parser.parse_args(arguments)


def _whole(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
