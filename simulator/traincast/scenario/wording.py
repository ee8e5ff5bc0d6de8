"""What the checks of shapes find, as problems of a scenario: at the key that clashes, with keys to set."""

from typing import Final

from traincast.errors import ShapeError, UserError
from traincast.mesh.problems import Problem
from traincast.mesh.wording import worded
from traincast.scenario.text import Keys, Places

_PARALLELISM: Final = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "sequence_parallel")
_MODEL: Final = ("heads", "kv_heads", "ffn_hidden", "layers")


def keys_of(name: str) -> Keys:
    """The key of a setting that a check names (`mesh.wording.NAMES`)."""
    if name in _PARALLELISM:
        return ("parallelism", name)
    if name == "world":
        return ("cluster",)
    return ("model" if name in _MODEL else "training", name.replace(" ", "_"))


def dotted(name: str) -> str:
    """The same as text: `training.global_batch`."""
    return ".".join(str(key) for key in keys_of(name))


def place_of(names: tuple[str, ...], places: Places) -> str:
    """Where the first of some settings stands that an option states, or else the file; else its section."""
    keys = [keys_of(name) for name in names]
    stated = [one for one in keys if places.option(one)] + [one for one in keys if one in places.marks]
    return places.where((stated or keys)[0])


def scenario_fix(fix: str, where: str) -> str:
    """A fix in keys, `set training.schedule: 1f1b`; as an option where it was an option that clashed."""
    option = where.startswith("--set ")

    def typed(name: str, values: str) -> str:
        key = dotted(name)
        if name == "world":
            return f"a cluster of {values} GPUs"
        if not values:
            return f"leave {key} out"
        return f"--set {key}={values}" if option else f"set {key}: {values}"

    return worded(fix, typed)


def placed(found: Problem, where: str) -> UserError:
    """The error of a finding at a place."""
    return ShapeError(found.message, where=where, fix=scenario_fix(found.fix, where))


def warning_text(found: Problem) -> str:
    """A warning as an assumption of the scenario."""
    return f"{found.message} (fix: {scenario_fix(found.fix, '')})"
