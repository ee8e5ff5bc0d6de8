"""Finds scenario, model and cluster files by name or path."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from traincast.catalog import data_dir
from traincast.errors import ScenarioError

SUFFIXES = (".yaml", ".yml")
NO_SCENARIOS = ("models", "published")


def scenarios_dir() -> Path:
    """Folder of the scenarios that come along."""
    return data_dir() / "scenarios"


def scenario_names() -> tuple[str, ...]:
    """Names of the scenarios that come along, such as sc21/t1_1008b, in alphabetical order."""
    folder = scenarios_dir()
    names = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    return tuple(sorted(name for name in names if name.split("/")[0] not in NO_SCENARIOS))


def model_names() -> tuple[str, ...]:
    """Names of the models that come along, in alphabetical order."""
    return tuple(sorted(path.stem for path in (scenarios_dir() / "models").glob("*.yaml")))


def find_scenario(name_or_path: str) -> Path:
    """The file of a scenario. Raises ScenarioError with the nearest names."""
    path = Path(name_or_path)
    if path.suffix in SUFFIXES or path.is_file():
        for candidate in (path, scenarios_dir() / path):
            if candidate.is_file():
                return candidate
    elif (shipped := scenarios_dir() / f"{name_or_path}.yaml").is_file():
        return shipped
    if path.is_dir():
        raise ScenarioError(f"{name_or_path} is a folder, not a scenario", fix="name a .yaml file in it")
    raise _missing("scenario", name_or_path, scenario_names())


def find_model(name: str, beside: Path) -> Path:
    """The file of a model: one that comes along by name, or a path as seen from the scenario's folder."""
    if not name.endswith(SUFFIXES):
        path = scenarios_dir() / "models" / f"{name}.yaml"
        if path.is_file():
            return path
    elif (path := beside.parent / name).is_file():
        return path
    raise _missing("model", name, model_names())


def find_cluster(name: str, beside: Path) -> str:
    """The name of a cluster file that is there, or the path of one as seen from the scenario's folder.

    Raises TopologyError or ScenarioError.
    """
    from traincast.topology.load import cluster_path

    if not name.endswith(SUFFIXES):
        cluster_path(name)
        return name
    for path in (beside.parent / name, Path(name)):
        if path.is_file():
            return str(path)
    raise ScenarioError(f"no cluster file {name!r}", fix="give its path as seen from the scenario's folder")


def _missing(what: str, name: str, known: Iterable[str]) -> ScenarioError:
    near = _nearest(name, tuple(known))
    fix = f"did you mean {', '.join(near)}?" if near else f"give the path of a {what} file"
    return ScenarioError(f"no {what} {name!r}", fix=fix)


def _nearest(name: str, known: tuple[str, ...]) -> list[str]:
    """Up to three known names that are like the given one, as a whole or in their last part."""
    wanted = name.removesuffix(".yaml").removesuffix(".yml").lower()
    near = get_close_matches(wanted, known, 3, 0.5)
    last = wanted.split("/")[-1]
    by_last = {one.split("/")[-1]: one for one in reversed(known)}
    near += [by_last[hit] for hit in get_close_matches(last, by_last, 3, 0.5)]
    near += [one for one in known if last and last in one]
    return list(dict.fromkeys(near))[:3]
