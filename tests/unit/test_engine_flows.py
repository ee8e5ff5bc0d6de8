"""Messages and gradient buckets that share links, on programs small enough to work out by hand."""

from dataclasses import replace

import pytest

from traincast.analytic import evaluate
from traincast.engine import simulate
from traincast.errors import TraincastError
from traincast.lower.compare import differences
from traincast.lower.losses import describe_losses
from traincast.lower.program import Flow, LinkLoss, Program, ReduceBucket, SharedLink, Sharing
from traincast.lower.uniform import uniform_program
from traincast.topology.sharing import TimedFlow, fluid

NIC = SharedLink("n1/nic0 out", 10.0)
MESSAGE = Flow("pp", 10.0, 10.0, (0,), (1.0,))
BUCKET = Flow("dp", 50.0, 10.0, (0,), (1.0,))


def overlapping(
    bucket: Flow = BUCKET, message: Flow = MESSAGE, link: SharedLink = NIC, bucket_s: float = 5.5
) -> Program:
    """Two stages, one microbatch: stage 1 reduces its gradients from the start of its backward on, and sends the
    gradient of its input when the backward has ended, over the same NIC."""
    program = uniform_program(("gpipe", 2, 1, 1), 1.0, 2.0, 1.25, "async")
    first, last = program.classes
    last = replace(last, buckets=(ReduceBucket(0, 0.0, bucket_s),))
    sharing = Sharing((link,), (message, bucket), {(1, ("B", 0)): 0}, {(1, 0): 1})
    return replace(program, classes=(first, last), sharing=sharing)


def test_gradients_and_a_message_on_one_nic() -> None:
    """The bucket begins at 3.25 alone, the message at 5.25. Both then run at half rate until the message has moved
    its 10 bytes at 7.25; it arrives its latency of 0.25 later. The bucket has 20 bytes left, needs 2 s more and its
    latency of 0.5: 9.75, where it would be 8.75 alone."""
    program = overlapping()
    result, alone = simulate(program), evaluate(program)
    sender = result.classes[1]
    assert sender.bucket_start_s.tolist() == [3.25]
    assert sender.output_start_s.tolist()[1] == 5.25
    assert sender.output_end_s.tolist()[1] == pytest.approx(7.5, rel=1e-12)
    assert sender.bucket_end_s.tolist() == pytest.approx([9.75], rel=1e-12)
    assert result.classes[0].start_s[1] == sender.output_end_s[1]
    assert alone.classes[1].bucket_end_s.tolist() == [8.75]
    assert result.step_time_s == pytest.approx(9.75, rel=1e-12)
    assert result.losses == (LinkLoss(0, pytest.approx(1.0), pytest.approx(1.0)),)
    assert describe_losses(program, result) == (
        "link n1/nic0 out: pipeline messages took 1.00 s longer and gradient reductions took 1.00 s longer",
    )
    reference = fluid([TimedFlow(3.25, 50.0, (0,), 10.0), TimedFlow(5.25, 10.0, (0,), 10.0)], [10.0])
    assert sender.bucket_end_s[0] - 0.5 == pytest.approx(reference[0], rel=1e-12)
    assert sender.output_end_s[1] - 0.25 == pytest.approx(reference[1], rel=1e-12)


def test_flows_that_fit_side_by_side_do_not_slow_each_other() -> None:
    """To the last bit: with room for both, and on two links."""
    wide = overlapping(link=replace(NIC, bytes_per_s=20.0))
    assert not differences(simulate(wide), evaluate(wide))
    program = overlapping()
    assert program.sharing is not None
    apart = replace(
        program,
        sharing=replace(program.sharing, links=(NIC, NIC), flows=(MESSAGE, replace(BUCKET, links=(1,)))),
    )
    result = simulate(apart)
    assert not differences(result, evaluate(apart))
    assert not result.losses
    assert describe_losses(apart, result) == ()


def test_a_weight_counts_alike_flows() -> None:
    """A class of two ranks on one NIC: twice the weight at half the rate is as much as one flow at full rate."""
    single = simulate(overlapping())
    pair = replace(BUCKET, size_bytes=25.0, bytes_per_s=5.0, weights=(2.0,))
    double = simulate(overlapping(pair, replace(MESSAGE, size_bytes=5.0, bytes_per_s=5.0, weights=(2.0,))))
    assert double.step_time_s == pytest.approx(single.step_time_s, rel=1e-12)


def test_classes_that_reduce_together_are_one_transfer() -> None:
    """Two classes of one gradient group: one ring on the link, which full rate just fills; two rings would take
    twice as long."""
    program = uniform_program(("none", 1, 1, 1), 1.0, 2.0)
    (cls,) = program.classes
    pair = tuple(
        replace(cls, buckets=(ReduceBucket(0, 0.0, 5.5),), dp_meets=(1 - i,), previous=i, next=i) for i in range(2)
    )
    program = replace(program, classes=pair)
    one = replace(program, sharing=Sharing((NIC,), (BUCKET,), {}, {(0, 0): 0, (1, 0): 0}))
    assert not differences(simulate(one), evaluate(one))
    two = replace(program, sharing=Sharing((NIC,), (BUCKET, BUCKET), {}, {(0, 0): 0, (1, 0): 1}))
    assert [times.bucket_end_s[0] for times in simulate(two).classes] == pytest.approx([11.5, 11.5], rel=1e-12)


def test_a_flow_leaves_its_links_before_its_latency() -> None:
    """The bucket has moved its bytes at 4.75 and ends at 5.5; the message that begins at 5.25 has the NIC to itself,
    and neither of them is touched, to the last bit."""
    program = overlapping(replace(BUCKET, size_bytes=15.0), bucket_s=2.25)
    result = simulate(program)
    assert result.classes[1].output_start_s[1] < result.classes[1].bucket_end_s[0]
    assert not differences(result, evaluate(program))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"flows": (replace(MESSAGE, size_bytes=0.0), BUCKET)}, "no size, rate or weights"),
        ({"flows": (replace(MESSAGE, weights=()), BUCKET)}, "no size, rate or weights"),
        ({"flows": (replace(MESSAGE, links=(3,)), BUCKET)}, "does not exist"),
        ({"flows": (replace(MESSAGE, links=(0, 0), weights=(1.0, 1.0)), BUCKET)}, "uses a link twice"),
        ({"flows": (replace(MESSAGE, size_bytes=13.0), BUCKET)}, "longer at full rate"),
        ({"links": (replace(NIC, bytes_per_s=0.0),)}, "no bandwidth"),
        ({"buckets": {(1, 7): 1}}, "no such bucket or flow"),
        ({"buckets": {(1, 0): 9}}, "no such bucket or flow"),
    ],
)
def test_refusals(change: dict[str, object], complaint: str) -> None:
    program = overlapping()
    assert program.sharing is not None
    broken = replace(program, sharing=replace(program.sharing, **change))  # type: ignore[arg-type]
    with pytest.raises(TraincastError, match=complaint):
        simulate(broken)
