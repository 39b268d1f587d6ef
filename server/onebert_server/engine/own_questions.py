"""The server's own questions to the engine, such as golden checks: always admitted and never late."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import count

import numpy as np

from onebert_encoder.answering.scores import Logits
from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.principal import OWN_WORK
from onebert_server.engine.block import REQUEST, SEQUENCE, Block, Ended
from onebert_server.engine.host import Host
from onebert_server.engine.scheduler import Scheduler


class OwnQuestions:
    """A lane of the engine's own, with a future for each question."""

    def __init__(self, hosts: Sequence[Host], scheduler: Scheduler) -> None:
        self._hosts = hosts
        self._lane = scheduler.lane(self._answered)
        self._numbers = count()
        # With the lengths of sequences whose tokens are read one by one.
        self._asked: dict[int, tuple[Future[list[Logits]], Array | None]] = {}

    def ask(self, host: Host, tokens: Sequence[Tokens], slot: int) -> Future[list[Logits]]:
        """Queues a question of the server's own, which is always admitted and never late.

        Returns:
            One float32 array per sequence: [labels], or [tokens, labels] for a per-token task; for the errors see
            `Scheduler.submit`.
        """
        inputs, number = Sequences.of(tokens), next(self._numbers)
        requests, sequences = np.zeros(1, REQUEST), np.zeros(len(tokens), SEQUENCE)
        requests["number"], requests["host"], requests["sequences"] = number, self._hosts.index(host), len(tokens)
        requests["submitted"], requests["deadline"] = time.monotonic(), np.inf
        sequences["slot"], sequences["generation"] = slot, host.bank.generation[slot]
        sequences["tokens"], sequences["second"] = inputs.lengths, inputs.second
        sequences["text"] = np.unique(inputs.text, return_inverse=True)[1]
        head, future = host.bank.rows.heads[slot], Future[list[Logits]]()
        per_token = head is not None and head.pooling == "none"
        self._asked[number] = future, inputs.lengths if per_token else None
        self._lane.submit(Block([OWN_WORK], requests, sequences, inputs.ids))
        return future

    def _answered(self, ended: Ended) -> None:
        logits = iter(np.split(ended.logits, np.cumsum(ended.outputs[:-1])))
        for number, error, sequences, *_ in ended.requests.tolist():
            future, lengths = self._asked.pop(number)
            # The caller may have cancelled it.
            with suppress(InvalidStateError):
                if error >= 0:
                    future.set_exception(ended.errors[error])
                    continue
                of_request = [next(logits) for _ in range(sequences)]
                if lengths is not None:
                    of_request = [
                        each.reshape(length, -1) for each, length in zip(of_request, lengths.tolist(), strict=True)
                    ]
                future.set_result(of_request)
