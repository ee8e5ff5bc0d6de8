"""Which shipped profile prices a measured collective: that of its GPU and fabric, else the GPU's default."""

from functools import lru_cache

from traincast.calibration.place import Place
from traincast.errors import DataError
from traincast.profile import Profile, find_profile, shipped_profiles


@lru_cache(maxsize=256)
def priced_by(gpu: str, tags: tuple[str, ...]) -> tuple[Profile, str | None]:
    """The profile of a GPU for the first tag that one names, and a note where that is not the most specific tag."""
    candidates = [one for one in shipped_profiles() if gpu in one.collective_gpus]
    for place, tag in enumerate(tags):
        for one in candidates:
            if tag in one.fabrics:
                wanted = [t for t in tags[:place] if "-" in t or t != tag]
                return one, f"no profile for {wanted[0]}: {one.name}" if wanted else None
    try:
        profile, _ = find_profile(gpu, None)
    except DataError as error:
        raise DataError(f"no profile for GPU {gpu}", fix=error.fix) from error
    return profile, f"no collective of {gpu} was measured on {tags[0]}: the default profile {profile.name}"


def profile_of(place: Place) -> tuple[Profile, str | None]:
    """The profile of a place, and a note where it is not of just that fabric. Raises DataError where there is none."""
    return priced_by(place.gpu.name, place.tags)
