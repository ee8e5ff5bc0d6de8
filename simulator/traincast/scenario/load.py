"""YAML file -> Scenario."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from traincast.catalog import Catalog, load_catalog
from traincast.errors import ScenarioError, ShapeError, UserError, combined
from traincast.model import ModelShape
from traincast.scenario.build import Draft, build, model_shape
from traincast.scenario.files import find_cluster, find_model, find_scenario, scenarios_dir
from traincast.scenario.placement import in_full
from traincast.scenario.problems import place_order, schema_errors
from traincast.scenario.schema import ModelSection, ScenarioSection
from traincast.scenario.text import Places, override, parse, read_text, shown
from traincast.scenario.types import Scenario

Overrides = Sequence[tuple[str, str]]
WHOLE = ("model", "cluster")
STAND_IN = {"hidden": 1, "layers": 1, "heads": 1, "vocab": 1}
Checked = TypeVar("Checked", bound=BaseModel)


def load_scenario(path_or_name: str | Path, overrides: Overrides = (), *, catalog: Catalog | None = None) -> Scenario:
    """The scenario of a file, or of a name such as `sc21/t1_1008b` that comes along.

    `overrides` are pairs such as ("training.microbatch", "2"): YAML values laid over the file before it is
    checked. Raises one UserError (ScenarioError, CatalogError or ShapeError) that reports all problems, a
    line each, with file:line:col or the option, what was found, and a fix.
    """
    path = find_scenario(str(path_or_name))
    data, places = parse(read_text(path), shown(path))
    data, places = override(data, places, [pair for pair in overrides if pair[0] in WHOLE])
    problems: list[UserError] = []
    data, places = _with_model_file(data, places, path, problems)
    data, places = override(data, places, [pair for pair in overrides if pair[0] not in WHOLE])
    data, cluster_file = _without_cluster_name(data, places, path, problems)
    data, places = in_full(data, places)
    section = _checked(data, ScenarioSection, places, problems)
    problems.sort(key=place_order)
    if problems or section is None:
        raise combined(problems)
    return build(Draft(section, cluster_file, places, path, _name(path), catalog or load_catalog()))


def load_model(name: str) -> ModelShape:
    """A model that comes along, such as `llama3-8b`, or the model of a file. Raises ScenarioError or
    ShapeError."""
    path = find_model(name, Path("scenario"))
    data, places = parse(read_text(path), shown(path))
    problems: list[UserError] = []
    section = _checked(data, ModelSection, places, problems)
    if section is None:
        raise combined(problems)
    try:
        return model_shape(section.model_copy(update={"name": section.name or path.stem}))
    except ShapeError as error:
        raise ShapeError(error.message, where=places.label, fix=error.fix) from error


def _name(path: Path) -> str:
    """The name of a scenario that has none: its place below scenarios/, else that of its file."""
    resolved = path.resolve()
    if resolved.is_relative_to(scenarios_dir()):
        return resolved.relative_to(scenarios_dir()).with_suffix("").as_posix()
    return path.stem


def _with_model_file(
    data: Mapping[str, Any], places: Places, path: Path, problems: list[UserError]
) -> tuple[dict[str, Any], Places]:
    """The data with the model's name replaced by what its file holds; a model file is checked on its own."""
    name = data.get("model")
    if not isinstance(name, str):
        return dict(data), places
    stand_in = {**data, "model": STAND_IN}  # the rest of the file is checked all the same
    try:
        file = find_model(name, path)
        model, model_places = parse(read_text(file), shown(file))
    except UserError as error:
        problems.append(_placed(error, places.where(("model",))))
        return stand_in, places
    if _checked(model, ModelSection, model_places, problems) is None:
        return stand_in, places
    return {**data, "model": {"name": file.stem, **model}}, places.grafted(("model",), model_places)


def _without_cluster_name(
    data: Mapping[str, Any], places: Places, path: Path, problems: list[UserError]
) -> tuple[dict[str, Any], str | None]:
    """The data without the name of a cluster file, and that name."""
    name = data.get("cluster")
    if name is None:
        fix = "add cluster: with the name of a cluster file, or with gpu: and nodes: below it"
        problems.append(ScenarioError("cluster is missing", where=places.where(("cluster",)), fix=fix))
    if not isinstance(name, str):
        return dict(data), None
    rest = {key: value for key, value in data.items() if key != "cluster"}
    try:
        return rest, find_cluster(name, path)
    except UserError as error:
        problems.append(_placed(error, places.where(("cluster",))))
        return rest, None


def _placed(error: UserError, where: str) -> UserError:
    return type(error)(error.message, where=error.where or where, fix=error.fix)


def _checked(
    data: Mapping[str, Any], schema: type[Checked], places: Places, problems: list[UserError]
) -> Checked | None:
    """The section that the data holds; what is wrong with it is added to `problems`."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        problems += schema_errors(error, schema, places)
        return None
