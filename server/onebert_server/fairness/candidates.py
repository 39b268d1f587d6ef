"""The sequences that a batch may take, and the order of those that it takes."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_server.fairness.flows import Flows, Numbers
from onebert_server.fairness.order import Indices, begins, in_turn, spread
from onebert_server.fairness.waiting import Waiting

INFINITY = float("inf")
# Among more waiting sequences than this we first leave out what cannot be in the batch.
_MANY = 2048


class Room(NamedTuple):
    """The room of a batch of one host.

    Attributes:
        cost, tokens: the most computed tokens, and the most of all.
        work: the most work of one sequence. If it is finite, the batch runs beside another one, and a text is computed
            once for all its tasks, as far as they fit.
        rounds: the last round in which principals are served.
    """

    host: int
    cost: int
    tokens: int
    work: float = INFINITY
    rounds: float = INFINITY


class Candidates(NamedTuple):
    """Sequences of one host, sorted by principal, and of each in the order in which it is served.

    Attributes:
        flows: the principals, as they came to their rounds.
        rows, turns: places of the sequences in `Waiting`.
        who: place of the principal of each in `flows`.
        rounds: in which each is served.
        leads: whether it waits for its turn; else it is served with the one before. None if all do.
        overtakes: whether its principal has something of another host that is due earlier. None if there is no other.
    """

    flows: Numbers
    rows: Indices
    turns: Indices
    who: Indices
    rounds: NDArray[np.int64]
    leads: NDArray[np.bool_] | None
    overtakes: NDArray[np.bool_] | None


class _Runs(NamedTuple):
    """Sequences that are served one after another, if nobody else's are served between them.

    Attributes:
        turns: of the first one of each run.
        due, anew: when that is due, and whether that is after a turn of the request that has not been served yet.
        starts, ends: places in `Waiting.rows`.
        all_turns: of all sequences; None if those of a run are of one turn.
    """

    turns: Indices
    due: NDArray[np.float64]
    anew: NDArray[np.bool_] | None
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    all_turns: Indices | None = None


def candidates(waiting: Waiting, flows: Flows, served: Numbers, room: Room, now: float) -> Candidates:
    """Returns the sequences of principals that a batch may take; some are left out that it cannot."""
    table, hosts, beside = waiting.turns, flows.listed.shape[1], room.work < INFINITY
    place = np.full(len(flows.table), -1)
    place[served] = np.arange(len(served))
    if beside or hosts > 1:
        turns = ((table["host"] == room.host) & (place[table["principal"]] >= 0)).nonzero()[0]
    else:
        turns = np.arange(len(table))
    runs = _by_text(waiting, turns, place, now) if beside else _by_turn(waiting, turns, place, room, now)
    who, rows, turns, overtakes = place[table["principal"][runs.turns]], runs.starts, runs.turns, None
    others = waiting.firsts((table["host"] != room.host).nonzero()[0], len(place))[served] if hosts > 1 else None
    if others is not None:
        overtakes = _overtakes(waiting, runs, others[who])
    leads = None
    if waiting.sequences > len(table) or beside:
        lengths = runs.ends - runs.starts
        rows, who = spread(runs.starts, runs.ends), who.repeat(lengths)
        turns = runs.turns.repeat(lengths) if runs.all_turns is None else runs.all_turns
        overtakes = None if overtakes is None else overtakes.repeat(lengths)
        if beside:
            leads = np.zeros(len(rows), np.bool_)
            leads[lengths.cumsum() - lengths] = True
    work = waiting.rows["work"][rows]
    needed = work.cumsum(dtype=np.int64)
    firsts = who.searchsorted(np.arange(len(served)))
    credit = flows.table["credit"][served] + needed[firsts] - work[firsts]
    if others is not None and overtakes is not None:
        # A turn needs credit for what is due first, of whichever host.
        needed = np.where(overtakes, needed - work + waiting.rows["work"][table["start"][others]][who], needed)
    rounds = flows.rounds_of(flows.table["round"][served][who], credit[who], needed)
    return Candidates(served, rows, turns, who, rounds, leads, overtakes)


def in_order(found: Candidates, waiting: Waiting, room: Room, first: int | None) -> Indices:
    """Returns the places of the candidates that a batch takes, in the order in which they are served.

    Args:
        first: the place of a principal whose first sequence goes before all others.
    """
    who, rounds, costs, may = found.who, found.rounds, waiting.rows["cost"], None
    if found.leads is not None:
        # What does not wait for a turn has that of the sequence before.
        rounds = rounds[np.maximum.accumulate(np.where(found.leads, np.arange(len(who)), 0))]
        may = (rounds <= room.rounds).nonzero()[0]
    elif len(who) > _MANY:
        may = (rounds <= _last_round(rounds, costs[found.rows], room.cost)).nonzero()[0]
    if may is not None:
        who, rounds = who[may], rounds[may]
    order = np.arange(len(who))
    if len(found.flows) > 1:
        ahead = None
        if first is not None:
            start = int(who.searchsorted(first))
            leads = np.ones(len(who), np.bool_) if found.leads is None or may is None else found.leads[may]
            following = leads[start + 1 :].nonzero()[0]
            ahead = slice(start, start + 1 + int(following[0]) if len(following) else len(who))
        order = in_turn(who, rounds, ahead)
    if may is not None:
        order = may[order]
    rows = found.rows[order]
    fits = min(
        int(costs[rows].cumsum().searchsorted(room.cost, "right")),
        int(waiting.rows["tokens"][rows].cumsum().searchsorted(room.tokens, "right")),
    )
    if room.work < INFINITY and (long := waiting.rows["work"][rows[:fits]] > room.work).any():
        fits = int(long.argmax())
    # The first one goes in any case.
    return order[: max(fits, 1)]


def _by_turn(waiting: Waiting, turns: Indices, place: Indices, room: Room, now: float) -> _Runs:
    """Returns turns of requests, sorted by principal and due time; of none more than the batch takes."""
    table = waiting.turns
    due, who, again = table["due"][turns], place[table["principal"][turns]], None
    if waiting.several:
        again = table["ordinal"][turns]
        due = np.where(again > 0, now + table["slack"][turns], due)
        order = np.lexsort((table["due"][turns], again, due, who))
        again = again[order] > 0
    else:
        order = np.lexsort((due, who))
    turns, due = turns[order], due[order]
    if waiting.sequences > _MANY:
        starts = begins(who[order])
        fits = np.ones(len(turns), np.bool_)
        for name, most in ("cost", room.cost), ("tokens", room.tokens):
            amounts = table[name][turns]
            before = amounts.cumsum() - amounts
            fits &= before - before[starts][starts.cumsum() - 1] <= most
        turns, due, again = turns[fits], due[fits], None if again is None else again[fits]
    return _Runs(turns, due, again, table["start"][turns], table["end"][turns])


def _by_text(waiting: Waiting, turns: Indices, place: Indices, now: float) -> _Runs:
    """Returns runs of sequences that share a text, sorted by principal and due time."""
    table = waiting.turns
    rows = spread(table["start"][turns], table["end"][turns])
    turns = turns.repeat(table["end"][turns] - table["start"][turns])
    shares = waiting.rows["cost"][rows] < waiting.rows["tokens"][rows]
    leads = (~shares | begins(table["request"][turns])).nonzero()[0]
    first = turns[leads]
    # How often the request has been due anew when the turn of a text comes.
    starts, ordinals = begins(table["request"][first]), table["ordinal"][first]
    again = (begins(ordinals) & ~starts).cumsum()
    again = again - np.maximum.accumulate(np.where(starts, again, 0))
    due = np.where(again > 0, now + table["slack"][first], table["due"][first])
    order = np.lexsort((table["due"][first], again, due, place[table["principal"][first]]))
    ends = np.append(leads[1:], len(rows))
    lengths, begin = (ends - leads)[order], rows[leads[order]]
    all_turns = turns[spread(leads[order], ends[order])]
    return _Runs(first[order], due[order], again[order] > 0, begin, begin + lengths, all_turns)


def _overtakes(waiting: Waiting, runs: _Runs, others: Indices) -> NDArray[np.bool_]:
    """Whether a run is due after the first turn of its principal for other hosts; -1 if it has none."""
    due = waiting.turns["due"][others]
    sooner = runs.turns < others if runs.anew is None else (runs.turns < others) & ~runs.anew
    overtakes: NDArray[np.bool_] = (others >= 0) & ~((runs.due < due) | ((runs.due == due) & sooner))
    return overtakes


def _last_round(rounds: NDArray[np.int64], costs: NDArray[Any], most: int) -> int:
    """Returns a round that what comes later does not fit behind, if all before is served."""
    least = int(rounds.min())
    sums = np.bincount(np.minimum(rounds - least, 2**12), costs).cumsum()
    full = int(sums.searchsorted(most, "right"))
    return least + full if full < 2**12 else int(rounds.max())
