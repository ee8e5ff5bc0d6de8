"""What a run knows about where it runs; host names are labelled on the host and travel as labels."""

import platform
import secrets
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from suite import meta
from suite.groups import Shape, families_text
from suite.world import World


def labelled(world: World) -> World:
    """The world with a label for the host of each rank; names stay where they are."""
    salt = world.agreed_bytes(secrets.token_bytes(16))
    labels: list[Any] = [None] * world.size
    dist.all_gather_object(labels, meta.host_label(platform.node(), salt), group=world.control)
    return replace(world, hosts=tuple(map(str, labels)))


def facts_of(world: World, shape: Shape) -> dict[str, Any]:
    """What a run and one that resumes it must have in common, and the topology."""
    names: list[Any] = [None] * world.size
    mine = torch.cuda.get_device_name() if world.gpu else None
    dist.all_gather_object(names, mine, group=world.control)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if world.backend == "nccl" else None
    return {
        "gpu": " + ".join(sorted({name for name in names if name})) or None,
        "gpus": sum(name is not None for name in names),
        "driver": meta.gpu_state(0).get("driver") if world.gpu else None,
        "nccl": nccl,
        "cuda": torch.version.cuda if world.gpu else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "launcher": world.launch.launcher,
        "backend": world.backend,
        "world": world.size,
        "nodes": len(set(world.hosts)),
        "mesh": shape.text(),
        "families": families_text(shape),
        "hosts": list(dict.fromkeys(world.hosts)),
        "topology": meta.topology_text(meta.ask("nvidia-smi", "topo", "-m")) if world.gpu and not world.rank else None,
    }
