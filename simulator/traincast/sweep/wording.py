"""Fixes in the words of a sweep."""

NUMBERED = ("tp", "cp", "pp", "dp", "vpp", "microbatch")
"""Axes whose values are whole numbers."""


def axis_fix(fix: str) -> str:
    """A fix in axes of the sweep, and in keys of the scenario where it is not about an axis."""
    from traincast.mesh.wording import worded
    from traincast.scenario.wording import dotted

    def typed(name: str, values: str) -> str:
        listed = values.replace(" or ", ",")
        if name in NUMBERED and listed.replace(",", "").isdigit():
            return f"--axis {name}={listed}"
        if not values:
            return f"leave {dotted(name)} out"
        return f"{name} {values}" if name in (*NUMBERED, "world") else f"--set {dotted(name)}={values}"

    return worded(fix, typed)
