"""Network constants of a profile from measured collectives; `fit` has the method."""

from collections.abc import Iterable
from typing import Final

from traincast.calibration.fit import Data, Fit, Prior, fit_constants
from traincast.calibration.network_model import Points, forecast_points
from traincast.profile import Profile

PRIORS: Final = {
    "network.launch": Prior(1e-5, 0.0, 5e-4),
    "network.process_launch": Prior(2e-6, 0.0, 5e-5, 3.7e-6),
    "network.intra_latency": Prior(0.5, 0.1, 6.0),
    "network.base_latency": Prior(0.5, 0.0, 3.0),
    "network.intra_efficiency": Prior(0.2, 0.05, 1.6),
    "network.intra_mixing": Prior(1.0, 0.0, 4.0, 0.3),
    "network.edge_steps": Prior(0.5, 0.0, 2.0, 0.8),
    "network.nvls_latency": Prior(0.6, 0.05, 6.0),
    "network.nvls_growth": Prior(0.3, 0.0, 2.0),
    "network.nvls_efficiency": Prior(0.2, 0.3, 1.5),
    "network.nvls_mixing": Prior(1.5, 0.0, 6.0, 0.7),
    "network.inter_latency": Prior(0.5, 0.3, 5.0),
    "network.inter_efficiency": Prior(0.2, 0.1, 1.6),
    "network.wire_efficiency": Prior(0.3, 0.05, 1.04),
    "network.inter_mixing": Prior(1.0, 0.0, 4.0, 0.3),
    "network.one_efficiency": Prior(0.3, 0.05, 1.3),
    "network.some_efficiency": Prior(0.3, 0.05, 1.3),
    "network.hop": Prior(1e-5, 0.0, 2e-4),
    "network.ring_hop": Prior(1e-5, 0.0, 2e-4),
    "network.ring_overlap": Prior(0.5, 0.0, 3.0, 0.75),
    "exchange.launch": Prior(1e-5, 0.0, 2e-4),
    "exchange.handshake": Prior(1e-5, 0.0, 2e-4),
    "exchange.peer": Prior(5e-7, 0.0, 2e-5),
    "exchange.efficiency": Prior(0.2, 0.1, 1.6),
    "exchange.inter_efficiency": Prior(0.3, 0.1, 1.6),
    "exchange.mixing": Prior(1.0, 0.0, 5.0, 0.7),
    "exchange.own_share": Prior(0.4, 0.0, 2.0, 0.3),
    "message.launch": Prior(2e-5, 0.0, 5e-4),
    "message.efficiency": Prior(0.3, 0.05, 1.2),
}
"""The constants that collectives can tell."""


def network_data(points: Points) -> Data:
    """Measured collectives as data of a fit, a group for each curve."""
    names = tuple(points.settings[k].curve.id for k in points.curve)
    return Data(points.time_s, names, lambda profile: forecast_points(points, profile), points.noise)


def fit_network(points: Points, base: Profile, names: Iterable[str] | None = None, thorough: bool = True) -> Fit:
    """Fits the named constants (by default all that points can tell)."""
    return fit_constants(network_data(points), base, PRIORS, names, thorough)
