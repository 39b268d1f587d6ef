"""What goes between front ends and the engine's process comes whole, in order, and as it was."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bases import loaded
from onebert_encoder.answering.asked import Asked
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.access.principal import Principal, Scope
from onebert_server.observed import Ended, Seen
from onebert_server.remote import wire
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.channel import Channel, framed
from onebert_store.registry.grants import Quotas

numbers = st.integers(0, 2**40)
ids = st.lists(st.integers(0, 2**31 - 1))
pieces = st.builds(wire.SplitInput, st.lists(ids), st.lists(numbers))
seconds = st.floats(allow_nan=False)
rates = st.none() | seconds
texts = st.none() | st.text()
quotas = st.builds(Quotas, st.none() | numbers, st.none() | numbers, rates, rates)
callers = st.builds(
    Principal, st.text(), st.frozensets(st.sampled_from(Scope)), st.lists(st.text()).map(tuple), texts, quotas
)
questions = st.builds(
    wire.Compute,
    callers,
    st.text(),
    seconds,
    seconds,
    st.none() | st.lists(st.text()),
    st.booleans(),
    st.builds(Asked, st.none() | numbers),
    st.dictionaries(st.text(), st.lists(pieces)),
    st.lists(numbers),
    numbers,
    st.none() | st.tuples(st.text(), st.text()),
)
seen = st.builds(Seen, st.text(), st.lists(st.text()).map(tuple), rates, numbers, st.none() | numbers)
endings = st.builds(Ended, st.text(), st.text(), numbers, seconds, texts, st.lists(seen), texts)
messages = (
    st.builds(frames.Ask, numbers, questions)
    | st.builds(frames.Cancel, numbers)
    | st.just(frames.Accepting())
    | st.builds(frames.InProgress, numbers)
    | st.builds(frames.Counted, st.lists(endings), st.lists(st.binary()))
)


@given(st.lists(messages), st.lists(st.integers(0, 200)))
def test_frames_come_whole_and_in_order_however_they_are_cut(sent, cuts):
    data = b"".join(map(framed, sent))
    received = []

    async def feed():
        channel = Channel(frames.FromFrontEnd, received.append, lambda: None)
        start = 0
        for cut in cuts:
            channel.data_received(data[start : start + cut])
            start += cut
        channel.data_received(data[start:])

    asyncio.run(feed())
    assert received == sent


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_a_tokenizer_stays_the_same(family):
    here = loaded(family).tokenizer
    there = Tokenizer.loads(here.dumps())
    for text in ("where is my  parcel?", ("it broke", "the wheel of the café came off " * 5)):
        for max_length in (8, 40):
            (expected,), (found,) = (one.encode([text], max_length, align=True) for one in (here, there))
            assert vars(found) | {"alignment": None} == vars(expected) | {"alignment": None}
            assert vars(found.alignment) == vars(expected.alignment)


@given(callers)
def test_a_caller_stays_the_same(caller):
    """What a principal may do, its quotas of storage among it, is what the engine's process goes by."""
    assert wire.decoder(Principal)(wire.encode(caller)) == caller
