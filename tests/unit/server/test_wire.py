"""What goes between front ends and the engine's process comes whole, in order, and as it was."""

import asyncio

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as arrays_of

from bases import loaded
from onebert_encoder.answering.asked import Asked
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.access.principal import Principal, Scope
from onebert_server.answering.gateway import ShadowQuestions
from onebert_server.engine.block import ENDED, REQUEST, SEQUENCE, Block
from onebert_server.engine.block import Ended as EndedRequests
from onebert_server.observed import FinishedRequest, Seen
from onebert_server.remote import wire
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.channel import Channel, framed
from onebert_server.remote.wire import BlockMessage, EndedMessage
from onebert_server.versions.facts import Shadowing
from onebert_store.errors import OneBertError, OverQuota, QueueFull
from onebert_store.registry.grants import Quotas
from onebert_store.registry.records import Payer

numbers = st.integers(0, 2**40)
seconds = st.floats(allow_nan=False)
rates = st.none() | seconds
texts = st.none() | st.text()
quotas = st.builds(Quotas, st.none() | numbers, st.none() | numbers, rates, rates)
callers = st.builds(
    Principal, st.text(), st.frozensets(st.sampled_from(Scope)), st.lists(st.text()).map(tuple), texts, quotas
)
questions = st.builds(
    wire.Resolve,
    callers,
    st.text(),
    seconds,
    st.none() | st.lists(st.text()),
    st.booleans(),
    st.builds(Asked, st.none() | numbers),
    numbers,
    st.dictionaries(st.text(), st.none() | st.binary()),
)
carried = st.none() | st.tuples(st.text(), st.text())
arrays = st.binary().map(memoryview)
blocks = st.builds(wire.BlockMessage, st.lists(callers), arrays, arrays, arrays, st.lists(carried))
identities = st.tuples(st.text(), st.text())
payers = st.none() | st.builds(Payer, st.text(), rates, rates)
shadowed = st.builds(
    ShadowQuestions,
    st.builds(Shadowing, st.lists(identities).map(tuple), payers),
    st.lists(st.text() | st.tuples(st.text(), st.text())),
    st.lists(st.none() | st.lists(st.tuples(st.text(), numbers, numbers)).map(tuple)),
    st.builds(Asked),
)
seen = st.builds(Seen, st.text(), st.lists(st.text()).map(tuple), rates, numbers, st.none() | numbers)
endings = st.builds(FinishedRequest, st.text(), st.text(), numbers, seconds, texts, st.lists(seen), texts)
messages = (
    st.builds(frames.Ask, numbers, questions)
    | st.builds(frames.Cancel, numbers)
    | blocks
    | st.builds(wire.Withdraw, st.lists(numbers))
    | st.builds(wire.Shadowed, shadowed)
    | st.just(frames.Accepting())
    | st.builds(frames.InProgress, numbers)
    | st.builds(frames.CountedRequests, st.lists(endings), st.lists(st.binary()))
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
            (expected,), (cut,) = (splitter.encode([text], max_length, align=True) for splitter in (here, there))
            assert vars(cut) | {"alignment": None} == vars(expected) | {"alignment": None}
            assert vars(cut.alignment) == vars(expected.alignment)


@given(callers)
def test_a_caller_stays_the_same(caller):
    """What a principal may do, its quotas of storage among it, is what the engine's process goes by."""
    assert wire.decoder(Principal)(wire.encode(caller)) == caller


def flat(dtype):
    """Arrays of a dtype, with none, some or many elements."""
    return arrays_of(dtype, st.integers(0, 40))


def crossed(message):
    """A message as the other process decodes it."""
    return wire.decoder(type(message))(bytearray(wire.encode(message)))


@given(st.lists(callers), flat(REQUEST), flat(SEQUENCE), flat(np.int32))
def test_a_block_stays_the_same(principals, requests, sequences, ids):
    crossed_block = crossed(BlockMessage.of(Block(principals, requests, sequences, ids))).block(None)
    assert crossed_block.principals == principals
    for array, expected in zip(crossed_block[1:4], (requests, sequences, ids), strict=True):
        assert (array.dtype, array.tobytes()) == (expected.dtype, expected.tobytes())


@pytest.mark.parametrize("damage", ["requests", "sequences", "ids"])
def test_a_block_that_ends_within_an_element_is_refused(damage):
    whole = Block([], np.zeros(2, REQUEST), np.zeros(2, SEQUENCE), np.zeros(2, np.int32))
    message = BlockMessage.of(whole)
    cut = msgspec.structs.replace(message, **{damage: getattr(message, damage)[:-1]})
    with pytest.raises(ValueError, match="buffer size"):
        crossed(cut).block(None)


@given(flat(ENDED), flat(np.int32), flat(np.float32), callers)
def test_what_has_ended_stays_the_same_with_its_errors(requests, outputs, logits, caller):
    errors = [QueueFull("try again soon", 7), OverQuota("less", 2)]
    message = crossed(EndedMessage.of(EndedRequests(requests, outputs, logits, errors), None, [(caller, errors[1])]))
    ended = message.ended(None)
    for array, expected in zip(ended[:3], (requests, outputs, logits), strict=True):
        assert (array.dtype, array.tobytes()) == (expected.dtype, expected.tobytes())
    assert [shown(error) for error in ended.errors] == [shown(error) for error in errors]
    assert [(who, shown(wire.error_of(why))) for who, why in message.full] == [(caller, shown(errors[1]))]


def shown(error: OneBertError):
    return error.status, error.code, error.title, error.detail, error.retry_after
