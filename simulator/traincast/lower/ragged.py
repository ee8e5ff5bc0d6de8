"""A last microbatch that is smaller than the others.

A program has one cost for each kind of pass, so the passes of all microbatches get their mean. Without a pipeline the
step is then what it is with the true costs; in a pipeline the small microbatch is spread over all of them.
"""

from dataclasses import replace

from traincast.lower.chunk import ChunkTime
from traincast.lower.job import Job
from traincast.lower.program import Label


def last_job(job: Job) -> Job | None:
    """The job of the last microbatch alone; None where it is as large as the others."""
    recipe, dp = job.recipe, job.mesh.dp
    last = recipe.last_microbatch(dp)
    if last == recipe.microbatch:
        return None
    small = replace(recipe, global_batch=last * dp, microbatch=last)
    return replace(job, recipe=small, first=job.microbatches == 1)


def mean_time(whole: ChunkTime, last: ChunkTime, microbatches: int) -> ChunkTime:
    """Mean over the microbatches of a step.

    Marks are those of the last one, as seen from the begin of a mean pass with the same end: gradients are complete
    in the last microbatch.
    """
    share = 1.0 / microbatches
    duration_s = (1.0 - share) * whole.duration_s + share * last.duration_s
    labels: set[Label] = {*whole.labels_s, *last.labels_s}
    labels_s = {
        label: (1.0 - share) * whole.labels_s.get(label, 0.0) + share * last.labels_s.get(label, 0.0)
        for label in sorted(labels)
    }
    marks_s = tuple(max(0.0, duration_s - last.duration_s + mark_s) for mark_s in last.marks_s)
    return ChunkTime(duration_s, labels_s, marks_s)
