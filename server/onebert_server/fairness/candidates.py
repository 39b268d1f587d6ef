"""The sequences that a batch may take, and the order of those that it takes."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_server.fairness.flows import Flows, Numbers
from onebert_server.fairness.order import Indices, begins, in_turn, spread, within
from onebert_server.fairness.waiting import Waiting

INFINITY = float("inf")


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


class Chosen(NamedTuple):
    """Sequences of one host, sorted by principal, and of each in the order in which it is served.

    Attributes:
        flows: the principals, as they came to their rounds.
        rows, turns: places of the sequences in `Waiting`.
        who: place of the principal of each in `flows`.
        rounds: in which each is served.
        leads: whether it waits for its turn; else it is served with the one before.
        overtakes: whether its principal has something of another host that is due earlier.
    """

    flows: Numbers
    rows: Indices
    turns: Indices
    who: Indices
    rounds: NDArray[np.int64]
    leads: NDArray[np.bool_]
    overtakes: NDArray[np.bool_]


def candidates(waiting: Waiting, flows: Flows, served: Numbers, room: Room, now: float) -> Chosen:
    """Returns the sequences of principals that a batch may take; some are left out that it cannot."""
    table, place = waiting.turns, np.full(len(flows.table), -1)
    place[served] = np.arange(len(served))
    turns = np.flatnonzero((table["host"] == room.host) & (place[table["principal"]] >= 0))
    if room.work == INFINITY:
        rows, turns, due, anew, leads = _by_turn(waiting, turns, place, room, now)
    else:
        rows, turns, due, anew, leads = _by_text(waiting, turns, place, now)
    who, work = place[table["principal"][turns]], waiting.rows["work"][rows]
    needed, owners = within(work.astype(np.int64), who), flows.table[served]
    overtakes = np.zeros(len(rows), np.bool_)
    if flows.listed.shape[1] > 1:
        # A turn needs credit for what is due first, of whichever host.
        others = waiting.firsts(np.flatnonzero(table["host"] != room.host), len(place))[served][who]
        earlier = (due < table["due"][others]) | ((due == table["due"][others]) & ~anew & (turns < others))
        overtakes = (others >= 0) & ~earlier
        needed = np.where(overtakes, needed - work + waiting.rows["work"][table["start"][others]], needed)
    rounds = flows.rounds_of(owners["round"][who], owners["credit"][who], needed)
    return Chosen(served, rows, turns, who, rounds, leads, overtakes)


def in_order(chosen: Chosen, rows: NDArray[Any], room: Room, first: int | None) -> Indices:
    """Returns the places of the sequences that a batch takes, in the order in which they are served.

    Args:
        rows: WAITING, of the candidates.
        first: the place of a principal whose first sequence goes before all others.
    """
    who, rounds = chosen.who, chosen.rounds
    # What does not wait for a turn has that of the sequence before.
    rounds = rounds[np.maximum.accumulate(np.where(chosen.leads, np.arange(len(who)), 0))]
    may = np.flatnonzero(rounds <= min(room.rounds, _last_round(rounds, rows["cost"], room.cost)))
    if len(chosen.flows) > 1:
        ahead = None
        if first is not None:
            start = int(np.searchsorted(who[may], first))
            following = np.flatnonzero(chosen.leads[may[start + 1 :]])
            ahead = slice(start, start + 1 + int(following[0]) if len(following) else len(may))
        may = may[in_turn(who[may], rounds[may], ahead)]
    cost, tokens = np.cumsum(rows["cost"][may]), np.cumsum(rows["tokens"][may])
    over = (cost > room.cost) | (tokens > room.tokens) | (rows["work"][may] > room.work)
    # The first one goes in any case.
    over[0] = False
    return may[: int(over.argmax())] if over.any() else may


def _by_turn(waiting: Waiting, turns: Indices, place: Indices, room: Room, now: float) -> tuple[Any, ...]:
    """Returns sequences sorted by principal and due time, these times, and that each waits for its principal's turn.

    No principal has more than the batch takes.
    """
    table = waiting.turns
    due, ordinals = table["due"][turns], table["ordinal"][turns]
    order = _sorted(place[table["principal"][turns]], due, ordinals, now + table["slack"][turns])
    turns = turns[order]
    who = place[table["principal"][turns]]
    costs, tokens = table["cost"][turns], table["tokens"][turns]
    fits = (within(costs, who) - costs < room.cost) & (within(tokens, who) - tokens < room.tokens) | begins(who)
    turns, anew = turns[fits], ordinals[order[fits]] > 0
    lengths = table["end"][turns] - table["start"][turns]
    rows = spread(table["start"][turns], table["end"][turns])
    due = np.where(anew, now + table["slack"][turns], table["due"][turns])
    due, anew, turns = (np.repeat(values, lengths) for values in (due, anew, turns))
    return rows, turns, due, anew, np.ones(len(rows), np.bool_)


def _by_text(waiting: Waiting, turns: Indices, place: Indices, now: float) -> tuple[Any, ...]:
    """Like `_by_turn`, but a sequence that shares a text with the one before is served with it."""
    table = waiting.turns
    rows = spread(table["start"][turns], table["end"][turns])
    turns = np.repeat(turns, table["end"][turns] - table["start"][turns])
    costs, tokens = waiting.rows["cost"][rows], waiting.rows["tokens"][rows]
    leads = np.flatnonzero((costs == tokens) | begins(table["request"][turns]))
    first = turns[leads]
    # How often the request has been due anew when a text's turn comes.
    starts, ordinals = begins(table["request"][first]), table["ordinal"][first]
    again = np.cumsum(begins(ordinals) & ~starts, dtype=np.int64)
    again -= np.maximum.accumulate(np.where(starts, again, 0))
    due, anew = table["due"][first], now + table["slack"][first]
    order = _sorted(place[table["principal"][first]], due, again, anew)
    ends = np.append(leads, len(rows))[1:]
    places, lengths = spread(leads[order], ends[order]), (ends - leads)[order]
    due, late = np.where(again > 0, anew, due)[order], again[order] > 0
    leading = np.isin(places, leads)
    # The turn of the text, by which it is compared with other hosts'.
    return rows[places], turns[places], np.repeat(due, lengths), np.repeat(late, lengths), leading


def _sorted(who: Indices, due: NDArray[Any], again: NDArray[Any], anew: NDArray[Any]) -> Indices:
    """Returns the order by principal and due time; what is due `again` is due at `anew`, behind all others there."""
    if again.any():
        return np.lexsort((due, again, np.where(again > 0, anew, due), who))
    order = np.argsort(due, kind="stable")
    # Two bytes are sorted in linear time.
    return order[np.argsort(who[order].astype(np.uint16 if len(who) < 2**16 else np.intp), kind="stable")]


def _last_round(rounds: NDArray[np.int64], costs: NDArray[Any], most: int) -> int:
    """Returns a round that what comes later does not fit behind, if all before is served."""
    least = int(rounds.min())
    sums = np.cumsum(np.bincount(np.minimum(rounds - least, 2**12), costs))
    full = int(np.searchsorted(sums, most, "right"))
    return least + full if full < 2**12 else int(rounds.max())
