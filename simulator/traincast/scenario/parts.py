"""The GPU models that a scenario runs on, each with the profile that prices it."""

from collections import Counter
from typing import TYPE_CHECKING

from traincast.scenario.types import Scenario

if TYPE_CHECKING:
    from traincast.lower.job import Part
    from traincast.profile import Profile
    from traincast.topology import Cluster


def parts_of(scenario: Scenario, cluster: "Cluster") -> tuple[tuple["Part", ...], tuple[str, ...]]:
    """The GPU models that the ranks run on, in order of rank, each with its profile, and notes on the choice.

    The scenario's profile prices its own GPU, and every model where it is that of none; other models get their default
    profile.
    """
    from traincast.catalog import load_catalog
    from traincast.lower import Part
    from traincast.profile import find_profile, load_profile

    ranks = scenario.mesh.physical(range(scenario.mesh.world)).tolist()
    models = Counter(cluster.gpu_model[gpu] for gpu in ranks)
    stated = load_profile(scenario.profile_name) if scenario.profile_name else None
    parts, notes = [], []
    if len(models) > 1:
        notes.append(f"the ranks run on {' and '.join(f'{n} x {name}' for name, n in models.items())}")
    for name in models:
        if stated is not None and (stated.gpu == name or stated.gpu not in models):
            profile, note = stated, None
            if stated.gpu != name:
                note = f"profile {stated.name} was calibrated on {stated.gpu}, the cluster has {name}"
        else:
            profile, note = find_profile(name, None)
            note = f"{note}{_others_text(name, profile)}" if note and scenario.profile_name is None else note
        parts.append(Part(load_catalog().gpu(name), profile))
        notes += [note] if note else []
    return tuple(parts), tuple(notes)


def _others_text(gpu: str, chosen: "Profile") -> str:
    """The other shipped profiles of a GPU with their stacks, to choose from."""
    from traincast.profile import shipped_profiles

    others = [
        f"{one.name} ({', '.join(one.stacks)})"
        for one in shipped_profiles()
        if one.stacks and one.name != chosen.name and gpu in (one.gpu, *one.also_for)
    ]
    if not others:
        return ""
    return f"; the stack decides much, others with --set profile=NAME: {'; '.join(others)}"
