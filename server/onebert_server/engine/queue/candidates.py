"""The choice of a batch: which sequences it takes, in the order of the turns."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.maths.flat import ranges
from onebert_server.engine.queue.flows import Flows, Numbers
from onebert_server.engine.queue.order import Indices, begins, in_turn
from onebert_server.engine.queue.waiting import Waiting

INFINITY = float("inf")
# Among more waiting sequences than this we first leave out what cannot be in the batch.
_MANY = 2048


class Room(NamedTuple):
    """The room of a batch of one host.

    Attributes:
        cost, tokens: the most computed tokens, and the most of all.
        work: the most work of one sequence. If it is finite, the batch runs beside another one, and a text is computed
            once for all its tasks of a request's turn, as far as they fit.
        rounds: the last round in which principals are served.
    """

    host: int
    cost: int
    tokens: int
    work: float = INFINITY
    rounds: float = INFINITY


class Batch(NamedTuple):
    """Sequences in the order in which they are served.

    Attributes:
        rows, turns: their places in `Waiting`.
        flows: their principals.
        rounds: in which the principal has its turn.
        overtakes: whether the principal has something of another host that is due earlier.
    """

    rows: Indices
    turns: Indices
    flows: Numbers
    rounds: NDArray[np.int64]
    overtakes: NDArray[np.bool_]


def choose(waiting: Waiting, flows: Flows, allowed: Numbers, room: Room, now: float) -> Batch:
    """Returns what some principals are served of a host."""
    table, owners = waiting.turns, flows.table
    turns = _sorted(waiting, _turns(waiting, flows, allowed, room.host), owners["listed"], now)
    if waiting.sequences > _MANY:
        turns = turns[_fits(table, turns, room)]
    starts = table["start"][turns]
    counts = table["end"][turns] - starts
    # The place of each row's turn.
    of = np.arange(len(turns)).repeat(counts)
    rows, overtakes = ranges(starts, counts), np.zeros(len(of), np.bool_)
    principals = table["principal"][turns][of]
    first = begins(principals)
    who, work = first.cumsum() - 1, waiting.rows["work"][rows]
    needed = work.cumsum(dtype=np.int64)
    credit = owners["credit"][principals[first]] + needed[first] - work[first]
    if (others := (table["host"] != room.host).nonzero()[0]).size:
        # A turn needs credit for what is due first, of whichever host.
        due = waiting.firsts(others, len(owners))[table["principal"][turns]]
        overtakes = _overtakes(waiting, turns, due, now)[of]
        needed = np.where(overtakes, needed - work + waiting.rows["work"][table["start"][due]][of], needed)
    rounds = flows.rounds_of(owners["round"][principals], credit[who], needed)
    order = _taken(waiting, rows, who, rounds, begins(of), room)
    return Batch(rows[order], turns[of[order]], principals[order], rounds[order], overtakes[order])


def _turns(waiting: Waiting, flows: Flows, allowed: Numbers, host: int) -> Indices:
    """Returns the turns of requests from which some principals may be served something of a host."""
    held_back = flows.table["held_back"][allowed] & (flows.table["host"][allowed] != host)
    may = np.zeros(len(flows.table), np.bool_)
    may[allowed[~held_back]] = True
    turns: Indices = (may[waiting.turns["principal"]] & (waiting.turns["host"] == host)).nonzero()[0]
    return turns


def _sorted(waiting: Waiting, turns: Indices, listed: NDArray[np.int64], now: float) -> Indices:
    """Sorts turns by principal, as they came to their rounds, and of each by due time."""
    due, places = waiting.turns["due"][turns], listed[waiting.turns["principal"][turns]]
    if not waiting.several:
        return turns[np.lexsort((due, places))]
    again = waiting.turns["ordinal"][turns]
    return turns[np.lexsort((due, again, np.where(again > 0, now + waiting.turns["slack"][turns], due), places))]


def _fits(table: NDArray[Any], turns: Indices, room: Room) -> NDArray[np.bool_]:
    """Whether a batch has room for some of a turn, behind what is due earlier of its principal."""
    starts, fits = begins(table["principal"][turns]), np.ones(len(turns), np.bool_)
    for name, most in ("cost", room.cost), ("tokens", room.tokens):
        amounts = table[name][turns]
        before = amounts.cumsum() - amounts
        fits &= before - before[starts][starts.cumsum() - 1] <= most
    return fits


def _overtakes(waiting: Waiting, turns: Indices, others: Indices, now: float) -> NDArray[np.bool_]:
    """Whether turns are due after other ones; -1 stands for no turn."""
    table = waiting.turns
    anew, other = table["ordinal"][turns] > 0, table["due"][others]
    due = np.where(anew, now + table["slack"][turns], table["due"][turns])
    overtakes: NDArray[np.bool_] = (others >= 0) & ~((due < other) | ((due == other) & ~anew & (turns < others)))
    return overtakes


def _taken(
    waiting: Waiting, rows: Indices, who: Indices, rounds: NDArray[np.int64], starts: NDArray[np.bool_], room: Room
) -> Indices:
    """Returns the places of the rows that a batch takes, in order; `starts`: whether a turn of a request begins."""
    costs, tokens, last = waiting.rows["cost"], waiting.rows["tokens"], room.rounds
    if room.work < INFINITY:
        # A sequence that shares the text of the one before is served with it.
        leads = starts | (costs[rows] == tokens[rows])
        rounds = rounds[np.maximum.accumulate(np.where(leads, np.arange(len(rows)), 0))]
    elif who[-1]:
        last = _last_round(rounds, costs[rows], room.cost)
    order = (rounds <= last).nonzero()[0]
    if who[-1]:
        order = order[in_turn(who[order], rounds[order])]
    rows = rows[order]
    fits = int(costs[rows].cumsum().searchsorted(room.cost, "right"))
    fits = min(fits, int(tokens[rows].cumsum().searchsorted(room.tokens, "right")))
    if room.work < INFINITY and (long := waiting.rows["work"][rows[:fits]] > room.work).any():
        fits = int(long.argmax())
    # The first one goes in any case.
    return order[: max(fits, 1)]


def _last_round(rounds: NDArray[np.int64], costs: NDArray[Any], most: int) -> int:
    """Returns a round that what comes later does not fit behind, if all before is served."""
    least = int(rounds.min())
    sums = np.bincount(np.minimum(rounds - least, 2**12), costs).cumsum()
    full = int(sums.searchsorted(most, "right"))
    return least + full if full < 2**12 else int(rounds.max())
