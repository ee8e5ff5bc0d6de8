"""What a run knows about where it runs; host names are labelled on the host and travel as labels."""

import hashlib
import platform
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from suite import meta
from suite.groups import Shape, families_text
from suite.launch import LaunchError
from suite.world import World

_SAME = ("gpu", "driver", "torch", "nccl", "environment")
"""What all ranks of a run should have in common."""


def labelled(world: World) -> World:
    """The world with a label for the host of each rank; names stay where they are.

    Raises LaunchError where two ranks of an NCCL run would share a GPU.
    """
    salt = world.agreed_bytes(secrets.token_bytes(16))
    uuid = gpu_uuid()
    card = hashlib.sha256(salt + uuid.encode()).hexdigest() if uuid and world.backend == "nccl" else world.rank
    rows = world.gather_objects((meta.host_label(platform.node(), salt), card))
    cards = [(host, one) for host, one in rows]
    for rank, one in enumerate(cards):
        first = cards.index(one)
        if first < rank:
            raise LaunchError(f"ranks {first} and {rank} share a GPU, which NCCL refuses; start one process a GPU")
    return replace(world, hosts=tuple(str(host) for host, _ in rows))


def gpu_uuid() -> str | None:
    """How the driver's tools call this rank's GPU whatever CUDA_VISIBLE_DEVICES says; None where that is not known."""
    if not torch.cuda.is_available():
        return None
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is None:  # an older PyTorch
        return meta.visible_uuid(torch.cuda.current_device())
    text = str(uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def capability(world: World) -> tuple[int, int]:
    """The lowest compute capability of all ranks' GPUs, (0, 0) without: the plan must be the same for all."""
    mine = torch.cuda.get_device_capability() if world.gpu else (0, 0)
    major, minor = min((row[0], row[1]) for row in world.gather([float(part) for part in mine]))
    return int(major), int(minor)


def facts_of(world: World, shape: Shape, environment: Mapping[str, str]) -> dict[str, Any]:
    """What a run and one that resumes it must have in common, and the topology; `differ`: what ranks do not share."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if world.backend == "nccl" else None
    mine = {
        "gpu": torch.cuda.get_device_name() if world.gpu else None,
        "driver": meta.gpu_state(meta.ask(*meta.state_command(gpu_uuid()))).get("driver") if world.gpu else None,
        "torch": torch.__version__,
        "nccl": nccl,
        "environment": meta.safe_environment(environment),
    }
    ranks = world.gather_objects(mine)
    names = [one["gpu"] for one in ranks]
    return {
        "gpu": " + ".join(sorted({name for name in names if name})) or None,
        "gpus": sum(name is not None for name in names),
        "driver": mine["driver"],
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
        "rank_hosts": meta.rank_hosts(world.hosts),
        "environment": mine["environment"],
        "differ": differences(ranks, world.hosts),
        "topology": meta.topology_text(meta.ask("nvidia-smi", "topo", "-m")) if world.gpu and not world.rank else None,
    }


def differences(ranks: list[dict[str, Any]], hosts: tuple[str, ...]) -> list[str]:
    """What some ranks have otherwise than rank 0, a sentence each with the first such rank."""
    found = []
    for name in _SAME:
        other = [rank for rank, one in enumerate(ranks) if one[name] != ranks[0][name]]
        if not other:
            continue
        rank = other[0]
        here, there = ranks[0][name], ranks[rank][name]
        if isinstance(here, dict):
            keys = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
            here, there = {key: here.get(key) for key in keys}, {key: there.get(key) for key in keys}
        found.append(f"{len(other)} ranks differ in {name}: {there} on rank {rank} ({hosts[rank]}), {here} on rank 0")
    return found
