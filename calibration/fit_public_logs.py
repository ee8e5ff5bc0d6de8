"""Fit the network constants of the shipped fabric profiles from public logs, and print or write the profiles.

Run `python calibration/fit_public_logs.py` (a minute) to print what it finds beside what the profiles hold, with
`--write` to write `profiles/*.yaml`; their intervals stay (`fit_intervals.py` makes them). The logs are
`measured/collectives.csv`, each curve with its source.

What is fitted on what: inside a node the curves of 2 and of 8 GPUs (an NVL72 rack: 2 to 36), across nodes those of
one and two nodes. Everything else is held out: 3 to 7 GPUs, other sites' logs, 4 to 128 nodes, 64 and 72 GPUs of a
rack. Constants that no curve tells are inherited; where a fabric was measured with another GPU its constants are
carried over and say so. Who launched matters for small messages: one process for eight GPUs costs about 3 us a GPU
more than one each; the logs that say so are told apart (`launch` in the table).
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from traincast.calibration.choice import priced_by as choice_cache
from traincast.calibration.curves import read_curves
from traincast.calibration.fit import Fit
from traincast.calibration.fitted import fitted_constants
from traincast.calibration.network_fit import PRIORS, fit_network
from traincast.calibration.network_model import Setting, points_of, setting_of
from traincast.calibration.place import NoPlaceError
from traincast.calibration.profile_file import Heading, Written, profile_text, traits_of, with_intervals
from traincast.profile import Profile, load_profile, profiles_dir
from traincast.validate.curves import fitted_curves

MEASURED = Path(__file__).resolve().parent / "measured" / "collectives.csv"

INSIDE = tuple(
    name
    for name in PRIORS
    if name.startswith(("network.intra", "network.nvls", "exchange.", "network.launch"))
    or name in ("network.process_launch", "network.base_latency", "network.edge_steps", "network.ring_overlap")
)
ACROSS = (
    *("network.inter_latency", "network.inter_efficiency", "network.wire_efficiency", "network.inter_mixing"),
    *("network.hop", "network.ring_hop", "network.ring_overlap"),
)

NEUTRAL = (
    Written("network.inter_latency", 1.0, "assumed", "NCCL's own latencies: no log of one node tells it"),
    Written("network.inter_efficiency", 1.0, "assumed", "NCCL's own bandwidths: no log of one node tells it"),
    Written("network.inter_mixing", 0.0, "assumed", "no log of one node tells it"),
)
"""What a node's profile hands on to fits across nodes. The profiles of stacks were identified from 2 and 4 nodes; from
their values a fit on 2 nodes would know something of the 4 nodes that are held out."""

P4_TEXT = "floors of 161 and 175 us on two p4 nodes against 32 on InfiniBand, two hops (public logs)"
P5_TEXT = "floor of 65 us on two p5 nodes against 25 on InfiniBand, two hops (public logs)"
P4_HOP, P5_HOP = (Written("network.hop", s, "derived", text) for s, text in ((65e-6, P4_TEXT), (20e-6, P5_TEXT)))

A100 = ("A100-40GB-SXM", "A100-80GB-SXM", "A800-80GB-SXM")
H100 = ("H100-80GB-SXM", "H800-80GB-SXM", "H100-96GB-SXM-500W")
V100 = ("V100-16GB-SXM", "V100-32GB-SXM")


@dataclass(frozen=True)
class Fabric:
    """One profile to fit: what it is for, the curves that tell it (patterns of their names), the constants that they
    may tell, and constants carried over from another profile or stated from elsewhere (SI, evidence, source)."""

    name: str
    gpu: str
    base: str
    text: str
    gpus: tuple[str, ...]
    tags: tuple[str, ...]
    curves: tuple[str, ...] = ()
    names: tuple[str, ...] = INSIDE
    traits: Mapping[str, object] = field(default_factory=dict)
    launch: str = ""
    carried: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stated: tuple[Written, ...] = ()


FABRICS = (
    Fabric(
        "a100-node",
        "A100-80GB-SXM",
        "a100-80gb-sxm",
        "NVLink 3 and NVSwitch inside the node; across nodes NCCL's own figures",
        A100,
        ("node",),
        (r"a100_sxm_[28]g_.*_aic.*", r"abci_a_8g_all_reduce", r"a100_8g_vtrain", r"a100_8g_stas"),
        traits={"nccl": "2.8"},
        launch="thread",
        stated=NEUTRAL,
    ),
    Fabric(
        "a100-azure-ndv4",
        "A100-40GB-SXM",
        "a100-node",
        "Azure NDv4: 8 HDR InfiniBand NICs a node, virtual machines",
        A100,
        ("azure", "ib-8x200"),
        (r"a100_8g_echo", r"a100_2n_echo"),
        tuple(dict.fromkeys((*INSIDE, *ACROSS))),
        launch="single",
    ),
    Fabric(
        "a100-hdr4-bare",
        "A100-40GB-SXM",
        "a100-node",
        "4 HDR InfiniBand NICs a node, bare metal (ABCI)",
        A100,
        ("abci", "ib-4x200"),
        (r"abci_a_2n_all_reduce",),
        ACROSS,
    ),
    Fabric(
        "a100-ib",
        "A100-80GB-SXM",
        "a100-node",
        "InfiniBand or RoCE of any number of NICs, bare metal: latencies as on ABCI, full NIC rates",
        A100,
        ("ib", "roce", "rdma", "fabric"),
        carried={"a100-hdr4-bare": ("network.inter_latency", "network.inter_mixing", "network.ring_hop")},
        stated=(Written("network.ring_overlap", 0.75, "assumed", "as the prior of the other fabrics"),),
    ),
    Fabric(
        "a100-efa4",
        "A100-40GB-SXM",
        "a100-ib",
        "AWS p4d and p4de: 4 EFA adapters of 100 Gbit/s a node",
        A100,
        ("aws", "efa-4x100", "efa"),
        stated=(P4_HOP,),
    ),
    Fabric(
        "v100-node",
        "V100-16GB-SXM",
        "v100-sxm",
        "NVLink 2 mesh inside the node; across nodes NCCL's own figures",
        V100,
        ("node", "fabric"),
        (r"abci_v_4g_all_reduce", r"v100_[28]g_vtrain"),
        launch="process",
        stated=NEUTRAL,
    ),
    Fabric(
        "v100-edr2",
        "V100-16GB-SXM",
        "v100-node",
        "4 V100 and 2 EDR InfiniBand NICs a node, bare metal (ABCI)",
        V100,
        ("abci", "ib-2x100", "ib"),
        (r"abci_v_2n_all_reduce",),
        ACROSS,
    ),
    Fabric(
        "h100-node",
        "H100-80GB-SXM",
        "h100-80gb-sxm",
        "NVLink 4 and NVSwitch with NVLink SHARP inside the node; across nodes NCCL's own figures",
        H100,
        ("node",),
        (r"h100_sxm_[28]g_.*_aic.*", r"h100_p5_1n"),
        traits={"nccl": "2.23"},
        launch="process",
        stated=NEUTRAL,
    ),
    Fabric(
        "h100-ndr8",
        "H100-80GB-SXM",
        "h100-node",
        "8 NDR InfiniBand or 400 Gbit/s RoCE NICs a node, bare metal, with NVLink SHARP",
        H100,
        ("ib-8x400", "ib", "roce-8x400", "roce", "fabric"),
        (r"h100_ndr_2n_.*",),
        (*ACROSS, "network.base_latency"),
        traits={"nccl": "2.26"},
        launch="process",
    ),
    Fabric(
        "h100-ndr8-without-nvls",
        "H100-80GB-SXM",
        "h100-ndr8",
        "8 NDR InfiniBand NICs a node, bare metal, NVLink SHARP switched off (NCCL_NVLS_ENABLE=0)",
        (),
        (),
        traits={"nvls": False},
    ),
    Fabric(
        "h100-efa32",
        "H100-80GB-SXM",
        "h100-ndr8",
        "AWS p5: 32 EFA adapters of 100 Gbit/s a node",
        H100,
        ("aws", "efa-32x100", "efa"),
        stated=(P5_HOP,),
    ),
    Fabric(
        "h100-a3mega",
        "H100-80GB-SXM",
        "h100-ndr8",
        "GCP A3 Mega: 8 adapters of 200 Gbit/s a node, TCPXO",
        H100,
        ("tcpxo-8x200", "tcpxo"),
        (r"h100_a3mega_2n_.*",),
        ACROSS,
    ),
    Fabric(
        "h200-node",
        "H200-141GB-SXM",
        "h100-ndr8",
        "NVLink 4 and NVSwitch with NVLink SHARP inside the node; across nodes as h100-ndr8",
        ("H200-141GB-SXM",),
        ("node", "ib-8x400", "ib", "fabric"),
        (r"h200_sxm_[28]g_.*_aic.*",),
        launch="thread",
    ),
    Fabric(
        "h200-roce8",
        "H200-141GB-SXM",
        "h200-node",
        "GCP A3 Ultra: 8 RoCE adapters of 400 Gbit/s a node",
        ("H200-141GB-SXM",),
        ("gcp", "roce-8x400", "roce"),
        (r"h200_a3ultra_2n_ag",),
        ("network.hop", "network.wire_efficiency", "network.inter_mixing", "network.ring_hop"),
    ),
    Fabric(
        "h200-efa16",
        "H200-141GB-SXM",
        "h200-node",
        "AWS p5en: 16 EFA adapters of 200 Gbit/s a node",
        ("H200-141GB-SXM",),
        ("aws", "efa-16x200", "efa"),
        carried={"h100-efa32": ("network.hop",)},
    ),
    Fabric(
        "b200-node",
        "B200-180GB-SXM",
        "blackwell-sxm",
        "NVLink 5 and NVSwitch with NVLink SHARP inside the node; across nodes as h100-ndr8",
        ("B200-180GB-SXM",),
        ("node", "ib", "roce", "fabric"),
        (r"b200_sxm_[28]g_.*_aic.*",),
        traits={"nccl": "2.27"},
        launch="thread",
        carried={"h100-ndr8": ACROSS},
    ),
    Fabric(
        "b300-node",
        "B300-SXM",
        "b200-node",
        "NVLink 5 and NVSwitch with NVLink SHARP inside the node; across nodes as h100-ndr8",
        ("B300-SXM",),
        ("node", "ib", "roce", "fabric"),
        (r"b300_sxm_[28]g_.*_aic.*", r"b300_8g_default_eu"),
        traits={"nccl": "2.29"},
        launch="thread",
    ),
    Fabric(
        "b200-efa",
        "B200-180GB-SXM",
        "b200-node",
        "AWS p6: 8 EFA adapters of 400 Gbit/s a node",
        ("B200-180GB-SXM", "B300-SXM"),
        ("aws", "efa-8x400", "efa"),
        carried={"h100-efa32": ("network.hop",)},
    ),
    Fabric(
        "gb200-nvl72",
        "GB200",
        "b200-node",
        "one NVLink 5 domain of 72 GPUs a rack, with NVLink SHARP; between racks as h100-ndr8",
        ("GB200",),
        ("node", "ib", "roce", "fabric"),
        (r"gb200_[24]g_.*_aic.*", r"sm_100_GB200_(8|16|18|32|36)g_.*_xla"),
        traits={"nccl": "2.27"},
        launch="process",
    ),
    Fabric(
        "gb300-nvl72",
        "GB300",
        "gb200-nvl72",
        "one NVLink 5 domain of 72 GPUs a rack, with NVLink SHARP; between racks as h100-ndr8",
        ("GB300",),
        ("node", "ib", "roce", "fabric"),
        (r"gb300_[24]g_.*_aic.*", r"sm_103_(8|16|18|32|36)g_.*_xla"),
        traits={"nccl": "2.28"},
        launch="process",
    ),
)


def all_settings() -> dict[str, Setting]:
    """Every curve of the table whose hardware is known, by name."""
    found = {}
    for curve in read_curves(MEASURED):
        try:
            found[curve.id] = setting_of(curve)
        except NoPlaceError:
            continue
    return found


def curves_of(fabric: Fabric, settings: Mapping[str, Setting]) -> tuple[Setting, ...]:
    """The curves that a profile is fitted on."""
    return tuple(s for name, s in settings.items() if any(re.fullmatch(p, name) for p in fabric.curves))


def base_of(fabric: Fabric) -> Profile:
    """What a fit starts from: the base profile with this fabric's traits and the constants carried over or stated."""
    base = load_profile(fabric.base)
    constants = {
        one.name: replace(base.constants[one.name], value=one.value, kind=one.kind, source=one.source)
        for one in carried(fabric)
    }
    traits = replace(base.traits, **fabric.traits)
    return replace(base, constants={**base.constants, **constants}, traits=traits, launch=fabric.launch)


def carried(fabric: Fabric) -> Iterator[Written]:
    """Constants from another profile, and those that are stated."""
    for name, constants in fabric.carried.items():
        other = load_profile(name)
        for constant in constants:
            told = tuple(sorted(other.constants[constant].curves))
            source = f"as measured on another GPU: profile {name}"
            yield Written(constant, other[constant], "derived", source, curves=told)
    yield from fabric.stated


def fit(fabric: Fabric, settings: Mapping[str, Setting]) -> Fit | None:
    """The fit of one profile; None where no curve tells anything."""
    told = curves_of(fabric, settings)
    if not told:
        return None
    base = base_of(fabric)
    return fit_network(points_of(told, base), base, fabric.names)


def text_of(fabric: Fabric, found: Fit | None) -> str:
    """The profile's file."""
    base = load_profile(fabric.base)
    constants = [*carried(fabric)]
    if found is not None:
        constants += fitted_constants(found, "calibration/measured/collectives.csv")
    head = Heading(
        name=fabric.name,
        gpu=fabric.gpu,
        fabric=fabric.text,
        base=fabric.base,
        traits=traits_of(base, **fabric.traits),
        collective_gpus=fabric.gpus,
        fabrics=fabric.tags,
        launch=fabric.launch,
        fitted_curves=() if found is None else tuple(found.errors_by_group()),
        correlations=() if found is None else found.correlated,
        comments=("Written by calibration/fit_public_logs.py; kernels and host as in the profile it inherits.",),
    )
    return profile_text(head, constants, {})


def show(fabric: Fabric, found: Fit | None) -> None:
    """Print what a fit found, by constant and by curve."""
    print(f"{fabric.name} (from {fabric.base})")
    if found is None:
        return
    for one in found.constants:
        if one.told:
            told_by = f"{one.cases} points of {len(one.groups)} curves"
            print(f"    {one.name:28s} {one.value:10.4g} +- {one.error:.2g}   {told_by}")
    for name, error in found.errors_by_group().items():
        print(f"      {name:45s} mean error {100 * error:.1f} %")


def reload() -> None:
    """Forget loaded profiles, so that the files just written are read."""
    for cached in (load_profile, fitted_curves, choice_cache):
        cached.cache_clear()


def main() -> None:
    """Fit all profiles in order, print them, and write them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write calibration/profiles/*.yaml")
    parser.add_argument("names", nargs="*", help="only these profiles")
    chosen = parser.parse_args()
    settings = all_settings()
    for fabric in FABRICS:
        if chosen.names and fabric.name not in chosen.names:
            continue
        found = fit(fabric, settings)
        show(fabric, found)
        if chosen.write:
            path = profiles_dir() / f"{fabric.name}.yaml"
            intervals = load_profile(fabric.name).intervals if path.exists() else {}
            path.write_text(with_intervals(text_of(fabric, found), intervals), encoding="utf-8")
            reload()


if __name__ == "__main__":
    main()
