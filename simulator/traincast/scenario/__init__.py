"""Scenario files: YAML -> Scenario, with every error placed at file:line:col and mended by its message."""

from traincast.scenario.cluster import open_cluster
from traincast.scenario.files import model_names, scenario_names, scenarios_dir
from traincast.scenario.load import load_model, load_scenario
from traincast.scenario.types import ClusterSpec, Scenario

__all__ = [
    "ClusterSpec",
    "Scenario",
    "load_model",
    "load_scenario",
    "model_names",
    "open_cluster",
    "scenario_names",
    "scenarios_dir",
]
