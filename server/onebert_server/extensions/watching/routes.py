"""The route of a task's watched versions."""

from collections.abc import Iterator, Sequence
from functools import partial

from onebert_server.contract.watching import (
    Estimate,
    WatchedAccuracy,
    WatchedLabel,
    WatchedScores,
    WatchedVersion,
    WatchFacts,
)
from onebert_server.extensions.watching.alarms import cause_of
from onebert_server.extensions.watching.settings import Settings
from onebert_server.extensions.watching.statistics import Interval, Shift
from onebert_server.extensions.watching.watch import Watch
from onebert_server.extensions.watching.watched import Watched, mean_scores
from onebert_server.extensions.watching.windows import Live
from onebert_server.http.routes.registry import Name, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf, in_thread
from onebert_server.observed import ABSTAINED
from onebert_server.runtime import Runtime
from onebert_server.versions.view import View
from onebert_store.file.manifest import WATCHED, Manifest
from onebert_store.file.reference import Reference, heard_move

router = registry_router()


@router.get("/v1/tasks/{task}/watch")
async def watch(task: Name, runtime: RuntimeOf, view: ViewOf) -> WatchFacts:
    """Shows each version that an alias means: its answers beside its reference, its alarm, its estimated accuracy.

    A version whose file has no reference learns one from its first thousand answers.

    The counts are this server's alone, since its start; counts of replicas add up if the file has the reference.
    """
    return await in_thread(runtime, _described, runtime, view, task)


def _described(runtime: Runtime, view: View, task: str) -> WatchFacts:
    entry = view.task(task, after=0, limit=0)
    aliases: dict[int, list[str]] = {}
    for alias, at in entry.aliases.items():
        for number, _ in at.target.shares:
            aliases.setdefault(number, []).append(alias)
    watch = runtime.parts.find(Watch)
    shown = []
    for number, names in sorted(aliases.items()):
        manifest = view.manifest(view.version(task, number))
        if watch is None or manifest.task_type not in WATCHED:
            shown.append(WatchedVersion(version=number, aliases=names, state="unwatched", labels=[]))
        else:
            watched = watch.get(task, number) or Watched.from_manifest(manifest)
            shown.append(_version(number, names, manifest, watched))
    return WatchFacts(task=task, false_alarms=runtime.settings_of(Settings).false_alarms, versions=shown)


def _version(number: int, aliases: list[str], manifest: Manifest, watched: Watched) -> WatchedVersion:
    answers, repeats = watched.answers, watched.repeats
    version = partial(WatchedVersion, version=number, aliases=aliases, answers=answers, repeats=repeats)
    reference, judged, shift, since = watched.reference, watched.judged, watched.shift, watched.alarm_since
    if reference is None:
        unused = manifest.reference.split if manifest.reference is not None else None
        return version(state="learning", window=watched.window.answers, split=unused, labels=[])
    live = judged.live if judged is not None else watched.window.last
    return version(
        state="collecting" if judged is None else "watched",
        alarm_since=since,
        cause=None if since is None else cause_of(shift),
        window=live.answers if live is not None else 0,
        rows=reference.rows,
        split=reference.split,
        hears=heard_move(reference),
        p=None if judged is None else judged.p,
        surer=judged is not None and judged.surer,
        labels=list(_labels(manifest.labels, reference, live, shift)),
        scores=_scores(reference, live, None if judged is None else judged.psi),
        accuracy=_accuracy(reference, shift),
    )


def _labels(
    labels: Sequence[str], reference: Reference, live: Live | None, shift: Shift | None
) -> Iterator[WatchedLabel]:
    """Every label, and last the answers that abstain, if there are any."""
    counts = [*reference.labels, reference.abstained]
    live_counts = live.labels.tolist() if live is not None else [0] * len(counts)
    for place, (label, before, now) in enumerate(zip((*labels, ABSTAINED), counts, live_counts, strict=True)):
        if place < len(labels):
            share = None if shift is None else _estimate(shift.shares, place)
            yield WatchedLabel(label=label, reference=before, live=now, true_share=share)
        elif before or now:
            yield WatchedLabel(label=label, reference=before, live=now)


def _scores(reference: Reference, live: Live | None, psi: float | None) -> WatchedScores | None:
    if not reference.scores:
        return None
    live_counts = live.scores.tolist() if live is not None else [0] * len(reference.scores)
    means = {f"{side}_mean": mean for side, mean in mean_scores(reference, live).items()}
    return WatchedScores(edges=reference.edges, reference=reference.scores, live=live_counts, psi=psi, **means)


def _accuracy(reference: Reference, shift: Shift | None) -> WatchedAccuracy | None:
    """Estimates for answers of one label each, if the reference knows which of its own are right."""
    if reference.right is None:
        return None
    right = sum(row[place] for place, row in enumerate(reference.right.answered))
    return WatchedAccuracy(
        reference=right / reference.rows, by_shares=None if shift is None else _estimate(shift.accuracy, ())
    )


def _estimate(estimate: Interval, place: int | tuple[()]) -> Estimate:
    value, low, high = (float(bound[place]) for bound in (estimate.value, estimate.low, estimate.high))
    return Estimate(value=value, low=low, high=high)
