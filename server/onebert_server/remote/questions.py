"""Converts questions and replies to and from their wire messages."""

import logging
import time
from collections.abc import Iterable, Mapping

import numpy as np

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Pieces
from onebert_server.access.context import Context
from onebert_server.answering.backend import Backend, Missed, Result, Wanted
from onebert_server.answering.plan import Computed
from onebert_server.answering.tokenizing import Split, Splitter
from onebert_server.logs import log_failure
from onebert_server.observed import Observed
from onebert_server.remote import wire
from onebert_server.versions.facts import Facts
from onebert_store.errors import OneBertError

logger = logging.getLogger("onebert.questions")


def setup(splitters: Mapping[str, Splitter]) -> wire.Setup:
    """Builds what a front end gets at its start."""
    return {base: (one.tokenizer.dumps(), one.max_length) for base, one in splitters.items()}


def splitters(setup: wire.Setup) -> dict[str, Splitter]:
    """Rebuilds the splitters in a front end."""
    return {base: Splitter(Tokenizer.loads(tokenizer), most) for base, (tokenizer, most) in setup.items()}


def question(
    context: Context, wanted: Wanted, inputs: Split, each: bool = False, headers: Iterable[str] = ()
) -> wire.Compute:
    """Builds the message of a question; equal texts, whose pieces are one object, are sent once.

    `headers` are the names of headers by which aliases choose.
    """
    now = time.monotonic()
    every = next(iter(inputs.values()))
    places: dict[int, int] = {}
    for place, one in enumerate(every):
        places.setdefault(id(one), place)
    indexes = {key: index for index, key in enumerate(places)}
    return wire.Compute(
        context.principal,
        context.request_id,
        remaining=context.deadline - now,
        waited=now - context.arrived,
        refs=None if wanted.refs is None else list(wanted.refs),
        pair=wanted.pair,
        asked=wanted.asked,
        inputs={base: [_split(made[place]) for place in places.values()] for base, made in inputs.items()},
        order=[indexes[id(one)] for one in every] if len(every) > 1 else [],
        min_seq=context.min_seq,
        span=span.carried if (span := context.observed.span) and span.sampled else None,
        each=each,
        counted=context.counted,
        headers={name: context.header(name) for name in headers},
    )


async def answered(backend: Backend, asked: wire.Compute) -> wire.Logits | wire.Refused:
    """Answers a question in the process with the engine and turns any exception into a `Refused` reply."""
    checked = False
    try:
        context = _context(asked)
        backend.check(context)
        checked = True
        compute = backend.compute_each if asked.each else backend.compute
        results = await compute(context, *_wanted(asked))
        answers = [_answer(one) for one in results]
        facts = {one.facts.ref: one.facts for one in results if isinstance(one, Result)}
        return wire.Logits(answers, [*facts.values()], context.observed.seconds)
    except Exception as error:
        return _refused(error, whatever=not checked)


def results(reply: wire.Logits) -> list[Result | Missed]:
    """Decodes the answers of a reply."""
    known = {facts.ref: facts for facts in reply.facts}
    return [
        Missed(one.version, one.input, error_of(one.missed)) if one.missed else _result(one, known[one.version])
        for one in reply.answers
    ]


def error_of(why: wire.Why) -> OneBertError:
    """Rebuilds the error that a reply carries."""
    error = OneBertError(why.detail)
    error.status, error.code, error.title, error.retry_after = why.status, why.code, why.title, why.retry_after
    return error


def _why(error: OneBertError) -> wire.Why:
    return wire.Why(error.status, error.code, error.title, error.detail, error.retry_after)


def _context(asked: wire.Compute) -> Context:
    now = time.monotonic()
    observed = Observed(carried=asked.span)
    deadline, arrived = now + asked.remaining, now - asked.waited

    lacking: list[str] = []

    def header(name: str) -> bytes | None:
        if name not in asked.headers:
            lacking.append(name)
        return asked.headers.get(name)

    what = asked.request_id, asked.min_seq, observed
    return Context(asked.principal, deadline, arrived, *what, counted=asked.counted, header=header, lacking=lacking)


def _split(pieces: Pieces) -> wire.SplitInput:
    return wire.SplitInput(list(pieces.ids), list(pieces.lengths))


def _wanted(asked: wire.Compute) -> tuple[Wanted, Split]:
    inputs = {}
    for base, sent in asked.inputs.items():
        distinct = [Pieces(tuple(one.ids), tuple(one.lengths)) for one in sent]
        inputs[base] = [distinct[index] for index in asked.order] or distinct
    return Wanted(asked.refs, asked.pair, asked.asked), inputs


def _refused(error: Exception, whatever: bool) -> wire.Refused:
    if not isinstance(error, OneBertError):
        log_failure(logger, "a question of a front end", error)
        error = OneBertError("the server failed to answer; its log says where")
    return wire.Refused(_why(error), whatever)


def _answer(one: Result | Missed) -> wire.Answer:
    if isinstance(one, Missed):
        return wire.Answer(one.ref, one.input, [], _why(one.error))
    computed = [wire.SequenceLogits(each.kept, each.role, each.logits.tobytes()) for each in one.computed]
    return wire.Answer(one.facts.ref, one.input, computed, keeping=one.keeping)


def _result(answer: wire.Answer, facts: Facts) -> Result:
    shape = (-1, len(facts.labels)) if facts.per_token else (-1,)
    return Result(
        facts,
        answer.input,
        [Computed(one.kept, one.role, np.frombuffer(one.logits, np.float32).reshape(shape)) for one in answer.computed],
        answer.keeping,
    )
