"""What a run says about itself: hardware, software, environment and topology; no host name, path, address or secret."""

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import PurePath
from typing import Any

TOOL = "traincast suite 1"
_KEPT = re.compile(
    r"(?:NCCL|GLOO|TORCH_NCCL|TORCH_CUDNN|UCX|FI|RDMAV)_[A-Z0-9_]+|CUDA_(?:VISIBLE_DEVICES|DEVICE_MAX_CONNECTIONS|"
    r"LAUNCH_BLOCKING|DEVICE_ORDER|MODULE_LOADING)|PYTORCH_(?:CUDA_)?ALLOC_CONF|NVIDIA_TF32_OVERRIDE|OMP_NUM_THREADS|"
    r"MKL_NUM_THREADS|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
)
_PRIVATE = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH|COMM_ID|ADDR|HOST|USER|SERVER|URL")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:=+^@%\[\]()-]{0,120}")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|(?:[0-9a-fA-F]{0,4}:){3,}|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+){2,}|://")
_QUERY = "clocks.sm,clocks.max.sm,temperature.gpu,clocks_throttle_reasons.active,driver_version"
_STACK = re.compile(r"NCCL_(?!DEBUG)[A-Z0-9_]+|CUDA_DEVICE_MAX_CONNECTIONS|NVIDIA_TF32_OVERRIDE|GLOO_SOCKET_IFNAME")


def host_label(name: str, salt: bytes) -> str:
    """A label that tells the hosts of one run apart; the salt is thrown away, so that nobody can look it up."""
    return f"host-{hashlib.sha256(salt + name.encode(errors='replace')).hexdigest()[:8]}"


def safe_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what is measured; of a path only its last part, nothing that names a host."""
    found = {}
    for name, value in sorted(environment.items()):
        if not _KEPT.fullmatch(name) or _PRIVATE.search(name):
            continue
        shown = PurePath(value).name if "/" in value else value
        if _PLAIN.fullmatch(shown) and not _ADDRESS.search(shown):
            found[name] = shown
    return found


def safe_command(arguments: Sequence[str]) -> str:
    """The command line without folders: ``run.py -o results.jsonl``."""
    words = []
    for word in arguments:
        head, equals, tail = word.rpartition("=")
        words.append(f"{head}{equals}{PurePath(tail).name}" if "/" in tail else word)
    return " ".join(words)


def topology_text(text: str) -> str:
    """`nvidia-smi topo -m` without the codes that colour it."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()


def ask(*command: str) -> str:
    """Output of a command; empty where it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def state_command(uuid: str | None) -> tuple[str, ...]:
    """The command that asks for the state of one GPU."""
    which = (f"--id={uuid}",) if uuid else ()
    return ("nvidia-smi", *which, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")


def gpu_state(output: str) -> dict[str, str]:
    """Clock, highest clock, temperature, reasons for a lowered clock, driver, from what `state_command` printed."""
    cells = [cell.strip() for cell in output.split("\n", 1)[0].split(",")]
    names = ("clock_mhz", "most_clock_mhz", "temperature_c", "throttle", "driver")
    return dict(zip(names, cells, strict=True)) if len(cells) == len(names) else {}


def visible_uuid(index: int) -> str | None:
    """UUID of the GPU that CUDA calls `index`, by CUDA_VISIBLE_DEVICES and the driver's list; None: not known."""
    listed = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    name = listed[index] if index < len(listed) else str(index)
    if not name.isdigit():
        return name
    lines = ask("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader").splitlines()
    known = dict(line.replace(" ", "").split(",", 1) for line in lines if "," in line)
    return known.get(name)


def stack(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of the safe variables that choose algorithms, protocols or devices: records under others do not mix."""
    return {name: value for name, value in environment.items() if _STACK.fullmatch(name)}


def rank_hosts(hosts: Sequence[str]) -> str:
    """The host of each rank as its place in the list of hosts, repeats counted: ``0*8 1*8``."""
    places = {host: place for place, host in enumerate(dict.fromkeys(hosts))}
    return " ".join(f"{places[host]}*{len(list(ranks))}" for host, ranks in groupby(hosts))


def hosts_of(run: Mapping[str, Any]) -> list[str]:
    """The host of each rank of a run, from its line; of one without `rank_hosts` only that of a run on one node."""
    names = [str(name) for name in run.get("hosts", [])]
    if "rank_hosts" not in run:
        return names[:1] * int(run.get("world", 1)) if len(names) == 1 else []
    pairs = [word.split("*") for word in str(run["rank_hosts"]).split()]
    return [name for place, count in pairs for name in [names[int(place)]] * int(count)]


def run_entry(
    index: int, facts: Mapping[str, Any], command: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The line that stands before the records of a run; `facts` are those of `world.facts`."""
    return {
        "kind": "run",
        "index": index,
        "tool": TOOL,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": safe_command(command),
        "environment": safe_environment(environment),
        **{name: value for name, value in facts.items() if value not in (None, "", [])},
    }
