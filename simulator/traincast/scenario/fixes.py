"""Fixes that the same checks take: of what a finding offers, only the values that lead to no other refusal."""

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from traincast.mesh import ShapeRequest, check_shape
from traincast.mesh.wording import NUMBERS
from traincast.schedule import SCHEDULES, chunks_of_model, in_groups
from traincast.schedule.limits import ScheduleRequest, schedule_problems

_FIELDS: Final = {name: name.replace(" ", "_") for name in NUMBERS if name not in ("world", "cp_ulysses")}
_OFFER: Final = re.compile(rf"(?P<name>{'|'.join(_FIELDS)}|schedule) (?P<values>[\w-]+(?: or [\w-]+)*)")


@dataclass(frozen=True)
class Trials:
    """What values are tried on: the shape, its schedule (None: left open), and the GPUs there are (None: unknown).

    `dp_stated`: the replicas are given, so a mesh may leave GPUs idle; else they are what the GPUs leave. `balanced`:
    layers are split again for each shape, as somebody asked for uneven stages.
    """

    request: ShapeRequest
    schedule: str | None = None
    gpus: int | None = None
    dp_stated: bool = True
    balanced: bool = False

    def errors(self) -> int:
        """How many findings refuse the shape under its schedule."""
        asked = self.request
        found = sum(one.severity == "error" for one in check_shape(asked))
        dp, batch = asked.dp_or_left, asked.global_batch
        if self.schedule is None or dp is None or batch is None:
            return found
        step = asked.microbatch * dp
        ask = ScheduleRequest(self.schedule, asked.pp, asked.vpp, -(-batch // step), step)
        return found + sum(1 for _ in schedule_problems(ask))

    def offered(self, fix: str) -> str:
        """The fix without what would not lower the number of refusals; as it is where that would leave nothing."""
        before = self.errors()
        kept = [text for part in fix.split(", or ") if (text := self._kept(part, before))]
        return ", or ".join(kept) or fix

    def _kept(self, part: str, before: int) -> str:
        """An alternative with the values that help; one that is not a setting and its values stays."""
        found = _OFFER.fullmatch(part)
        if found is None or (found["name"] != "schedule" and not found["values"].replace(" or ", "").isdigit()):
            return part
        values = [one for one in found["values"].split(" or ") if self._with(found["name"], one).errors() < before]
        return f"{found['name']} {' or '.join(values)}" if values else ""

    def _with(self, name: str, value: str) -> "Trials":
        """The same with one value set."""
        dp_stated = self.dp_stated or name == "dp"
        schedule = value if name == "schedule" and value in SCHEDULES else self.schedule
        change: dict[str, Any] = {} if name == "schedule" else {_FIELDS[name]: int(value)}
        asked = replace(self.request, **change)
        if name in ("schedule", "vpp"):
            chunks = asked.vpp
            asked = replace(
                asked,
                model_chunks=chunks_of_model(schedule or "", chunks),
                in_groups=schedule is None or in_groups(schedule, chunks),
            )
        if self.balanced and name in ("pp", "vpp", "schedule"):
            asked = replace(asked, stage_layers=None, uneven=True)
        if self.gpus is not None:
            needed = asked.tp * asked.cp * asked.pp * (asked.dp or 1)
            fits = dp_stated and needed <= self.gpus
            asked = replace(asked, world=None if fits else self.gpus)
        return replace(self, request=asked, schedule=schedule, dp_stated=dp_stated)
