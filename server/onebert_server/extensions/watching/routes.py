"""The route of a task's watched versions."""

from collections.abc import Iterator, Sequence
from functools import partial

from onebert_server.contract.watching import WatchedLabel, WatchedScores, WatchedVersion, WatchFacts
from onebert_server.extensions.watching.settings import Settings
from onebert_server.extensions.watching.watch import Watch
from onebert_server.extensions.watching.watched import Watched, mean_scores
from onebert_server.extensions.watching.windows import Live
from onebert_server.http.routes.registry import Name, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf, in_thread
from onebert_server.observed import ABSTAINED
from onebert_server.runtime import Runtime
from onebert_server.versions.view import View
from onebert_store.file.manifest import WATCHED
from onebert_store.file.reference import Reference, heard_move

router = registry_router()


@router.get("/v1/tasks/{task}/watch")
async def watch(task: Name, runtime: RuntimeOf, view: ViewOf) -> WatchFacts:
    """Shows each version that an alias means: its answers beside its reference, and its alarm.

    A version whose file has no reference learns one from its first thousand answers.

    The counts are this server's alone, since its start.
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
            shown.append(_version(number, names, watch.get(task, number) or watch.read(task, number)))
    return WatchFacts(task=task, false_alarms=runtime.settings_of(Settings).false_alarms, versions=shown)


def _version(number: int, aliases: list[str], watched: Watched) -> WatchedVersion:
    counts = partial(
        WatchedVersion,
        version=number,
        aliases=aliases,
        answers=watched.answers,
        repeats=watched.repeats,
        window=watched.window,
    )
    reference, judged = watched.reference, watched.judged
    if reference is None or watched.learns:
        return counts(state="learning", labels=[])
    live = None if judged is None else judged.live
    return counts(
        state="collecting" if judged is None else "watched",
        alarm_since=watched.alarm_since,
        rows=reference.rows,
        split=reference.split,
        hears=heard_move(reference),
        p=None if judged is None else judged.p,
        labels=[*_labels(watched.labels, reference, live)],
        scores=_scores(reference, live),
    )


def _labels(labels: Sequence[str], reference: Reference, live: Live | None) -> Iterator[WatchedLabel]:
    counts = [*reference.labels, reference.abstained]
    live_counts = live.labels.tolist() if live is not None else [0] * len(counts)
    for label, before, now in zip((*labels, ABSTAINED), counts, live_counts, strict=True):
        if label != ABSTAINED or before or now:
            yield WatchedLabel(label=label, reference=before, live=now)


def _scores(reference: Reference, live: Live | None) -> WatchedScores | None:
    if not reference.scores:
        return None
    live_counts = live.scores.tolist() if live is not None else [0] * len(reference.scores)
    means = {f"{side}_mean": mean for side, mean in mean_scores(reference, live).items()}
    return WatchedScores(edges=reference.edges, reference=reference.scores, live=live_counts, **means)
