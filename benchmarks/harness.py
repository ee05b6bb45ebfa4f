"""Plans the cases of a suite and runs them one after another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.measure import Contest, Measure, MeasureSkipped, Outcome, Scale, Suite, Ticker
from benchmarks.sampling import Budget, RepeatPolicy, sample
from benchmarks.sizes import Size, SizeRequest
from benchmarks.workspace import Workspace
from varve.foundation.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Case:
    """One measure at one size."""

    measure: Measure
    size: Size


def plan_cases(
    suite: Suite, requests: Sequence[SizeRequest], *, only: Sequence[str] = (), quick: bool
) -> list[Case]:
    """Cases in the order of the suite; asked sizes replace a measure's own.

    Raises `InvalidRequest` for an unknown measure and for a size no measure can use.
    """
    names = [measure.name for measure in suite.measures]
    for name in [*only, *(request.measure for request in requests if request.measure)]:
        if name not in names:
            raise InvalidRequest(
                f"{suite.name} has no measure {name!r}: choose from {', '.join(names)}"
            )
    chosen = [measure for measure in suite.measures if not only or measure.name in only]
    _check_every_size_is_used(chosen, requests)
    return [
        Case(measure, size)
        for measure in chosen
        for size in _sizes_for(measure, requests, quick=quick)
    ]


def _check_every_size_is_used(measures: Sequence[Measure], requests: Sequence[SizeRequest]) -> None:
    for request in requests:
        for size in request.sizes:
            if not any(_fits(measure, request, size) for measure in measures):
                target = request.measure or "any measure of this run"
                raise InvalidRequest(
                    f"size {size} ({size.unit.value}) does not fit {target}: "
                    "bytes carry a unit (16KiB), counts carry none (10000)"
                )


def _fits(measure: Measure, request: SizeRequest, size: Size) -> bool:
    return measure.size_unit is size.unit and request.measure in (None, measure.name)


def _sizes_for(measure: Measure, requests: Sequence[SizeRequest], *, quick: bool) -> list[Size]:
    named = [request for request in requests if request.measure == measure.name]
    asked = [
        size
        for request in named or requests
        for size in request.sizes
        if _fits(measure, request, size)
    ]
    default = [Size(amount, measure.size_unit) for amount in measure.default_sizes(quick=quick)]
    return list(dict.fromkeys(asked)) or default


def run_cases(
    cases: Sequence[Case],
    workspace: Workspace,
    scale: Scale,
    *,
    policy: RepeatPolicy,
    budget: Budget,
    ticker: Ticker,
    progress: Callable[[str], None],
    skipped: Callable[[str], None],
) -> Iterator[Outcome]:
    """Yields each contest's outcome as soon as it is known; `progress` hears what is under way.

    A measure that cannot be taken here is told to `skipped` once and left out at all its sizes.
    """
    left_out: set[str] = set()
    for case in cases:
        end = budget.begin_case()
        if case.measure.name in left_out:
            continue
        progress(f"{case.measure.name} {case.size}: preparing")
        try:
            with case.measure.prepare(case.size.amount, workspace, scale) as contests:
                yield from _run_contests(
                    case, contests, policy, budget, end=end, ticker=ticker, progress=progress
                )
        except MeasureSkipped as reason:
            left_out.add(case.measure.name)
            skipped(f"{case.measure.name}: {reason}")


def _run_contests(
    case: Case,
    contests: Sequence[Contest],
    policy: RepeatPolicy,
    budget: Budget,
    *,
    end: float,
    ticker: Ticker,
    progress: Callable[[str], None],
) -> Iterator[Outcome]:
    for index, contest in enumerate(contests):
        now = ticker()
        deadline = now + (end - now) / (len(contests) - index)
        progress(f"{contest.measure} {case.size}")
        ours, baseline = sample(
            contest,
            policy,
            ticker=ticker,
            deadline=deadline,
            is_spent=lambda: budget.is_spent,
        )
        yield Outcome(contest, case.size, ours, baseline)
