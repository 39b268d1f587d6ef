"""Principals as rows of arrays: what each has waiting, and its turns by deficit round robin."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_server.engine.queue.order import records

# round, credit: of the principal's turn. listed: when it came to this round; later ones have larger numbers. work,
# sequences: all that it has waiting. due, next, host: the due time of its first request (infinite if none has got a
# turn), the work of that request's next sequence, and its host. held_back: whether it is served nothing of other hosts
# before that sequence.
FLOW = np.dtype(
    [
        ("round", "i8"),
        ("credit", "i8"),
        ("listed", "i8"),
        ("work", "i8"),
        ("sequences", "i8"),
        ("due", "f8"),
        ("next", "i8"),
        ("host", "i4"),
        ("held_back", "?"),
    ]
)
_FREE = np.array((0, 0, 0, 0, 0, np.inf, 0, 0, False), FLOW)
_FREE_RECORD = records(_FREE[None])
_CAPACITY = 64

Numbers = NDArray[np.intp]
"""Principals by number."""


class Flows:
    """Deficit round robin (Shreedhar and Varghese) over principals; each is served `quantum` per round.

    If the next sequence of a principal costs several rounds, its turn is in the last of them. Among principals with a
    turn in one round, the one that came to it first is served first.

    A principal may be served ahead of its turns. It keeps the turns that it has then, also if nothing of it waits any
    more and something comes again before the others are as far.

    Attributes:
        round: the last one that was served.
        names: of the principals by number; the reserved one has 0. A number is given to another principal only when
            nothing of the first one waits and it is not ahead.
        table: FLOW, by number.
    """

    def __init__(self, quantum: int, reserved: str) -> None:
        self.round = 0
        self.names = [reserved]
        self.table = np.full(_CAPACITY, _FREE)
        self._quantum = quantum
        self._numbers = {reserved: 0}
        self._free: list[int] = []
        self._events = 0

    def number(self, principal: str) -> int | None:
        """Returns the number of a principal; None if it has none."""
        return self._numbers.get(principal)

    def numbers(self, principals: Sequence[str]) -> Numbers:
        """Returns the numbers of principals, and gives one to each that has none."""
        known = self._numbers
        if missing := set(principals) - known.keys():
            self._number(missing, set(principals) - missing)
        return np.array([*map(known.__getitem__, principals)], np.intp)

    def events(self, count: int) -> NDArray[np.int64]:
        """Returns so many new numbers for `listed`."""
        self._events += count
        return np.arange(self._events - count, self._events)

    def turns(self, flows: Numbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns principals' rounds and credit; if one comes and is not ahead, the ones that it will get."""
        rounds, credit = self.table["round"][flows], self.table["credit"][flows]
        fresh = (self.table["due"][flows] == np.inf) & ((rounds - self.round) * self._quantum <= credit)
        return np.where(fresh, self.round + 1, rounds), np.where(fresh, self._quantum, credit)

    def come(self, flows: Numbers, events: NDArray[np.int64]) -> None:
        """Gives a turn to each of the principals without one; call `lead` then."""
        new = self.table["due"][flows] == np.inf
        flows = flows[new]
        self.table["round"][flows], self.table["credit"][flows] = self.turns(flows)
        self.table["held_back"][flows] = False
        self.table["listed"][flows] = events[new]

    def lead(self, flows: Numbers, firsts: tuple[Any, Any, Any], events: NDArray[np.int64]) -> None:
        """Notes the due times, next sequences' work and hosts of the principals' first requests, and settles turns.

        A turn is moved to the first round with credit for that work. It never moves back to a round that is over, nor
        out of a round that it still has credit for. Turns that move come to their rounds at these events.
        """
        table, (due, work, hosts) = self.table, firsts
        rounds, credit = table["round"][flows], table["credit"][flows]
        moved = np.minimum(np.maximum(rounds - self.round - 1, 0), (credit - work) // self._quantum)
        table["round"][flows], table["credit"][flows] = rounds - moved, credit - moved * self._quantum
        table["listed"][flows[moved != 0]] = events[moved != 0]
        table["due"][flows], table["next"][flows], table["host"][flows] = due, work, hosts

    def rounds_of(self, turns: Any, credit: Any, work: Any) -> Any:
        """Returns the rounds in which principals with these turns have credit for so much work."""
        return turns + np.maximum((work - credit + (self._quantum - 1)) // self._quantum, 0)

    def waiting(self) -> Numbers:
        """Returns the principals that have turns."""
        waiting: Numbers = (self.table["due"] < np.inf).nonzero()[0]
        return waiting

    def least(self) -> int:
        """Returns the first round in which anybody has a turn, or a newcomer would have one."""
        rounds = self.table["round"][self.waiting()]
        return min(self.round + 1, int(rounds.min())) if len(rounds) else self.round + 1

    def sorted(self, flows: Numbers) -> Numbers:
        """Returns principals in the order of their turns."""
        return flows[np.lexsort((self.table["listed"][flows], self.table["round"][flows]))]

    def leave(self, flows: Numbers, rounds: NDArray[np.int64]) -> None:
        """Notes that nothing of these principals waits any more, since they were served something in these rounds."""
        table = self.table
        table["credit"][flows] += (rounds - table["round"][flows]) * self._quantum
        table["round"][flows], table["due"][flows] = rounds, np.inf

    def serve_all(self) -> None:
        """Serves all that waits, of one host."""
        flows = self.table["sequences"].nonzero()[0]
        self.round = max(self.round, int(self.rounds_of(*self.turns(flows), self.table["work"][flows]).max()))
        # Nobody is ahead: each turn was in a round that is over.
        records(self.table)[flows] = _FREE_RECORD

    def count(self, flows: Numbers, sequences: NDArray[Any], work: NDArray[Any]) -> None:
        """Counts what waits, or with negative numbers what no longer does; a principal may be there several times."""
        np.add.at(self.table["sequences"], flows, sequences)
        np.add.at(self.table["work"], flows, work)

    def _ahead(self, table: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether principals with these turns come behind a newcomer."""
        ahead: NDArray[np.bool_] = (table["round"] - self.round) * self._quantum > table["credit"]
        return ahead

    def _number(self, principals: set[str], others: set[str]) -> None:
        if len(principals) > len(self._free) + len(self.table) - len(self.names):
            self._make_room(len(principals), others)
        for principal in principals:
            if self._free:
                number = self._free.pop()
                self.names[number] = principal
            else:
                number = len(self.names)
                self.names.append(principal)
            self._numbers[principal] = number

    def _make_room(self, count: int, others: set[str]) -> None:
        """Takes the numbers of principals that need none, but not of the `others`; grows unless many are free then."""
        idle = (self.table["sequences"] == 0) & ~self._ahead(self.table)
        for number in np.flatnonzero(idle[: len(self.names)]).tolist():
            principal = self.names[number]
            if number and principal not in others and self._numbers.get(principal) == number:
                del self._numbers[principal]
                self._free.append(number)
        while len(self._free) + len(self.table) - len(self.names) < max(count, len(self.table) // 2):
            self.table = np.concatenate([self.table, np.full(len(self.table), _FREE)])
