"""Methods, written like `bitfit:bq,bm2+gamma:gLN1`: a sum of rules that choose the trained parts of a base."""

from dataclasses import dataclass, replace
from decimal import ROUND_HALF_DOWN, Context

from onebert_encoder.base.anatomy import Anatomy
from onebert_store.errors import InvalidMethod
from onebert_store.file.manifest import Pooling
from onebert_store.suggestion import suggestion
from onebert_training.methods import rules
from onebert_training.methods.grammar import plain
from onebert_training.methods.plan import Plan
from onebert_training.methods.table import METHODS
from onebert_training.methods.terms import Subject, Term
from onebert_training.methods.trainables import Trainable

REFERENCE_WIDTH = 384
_ONE_DIGIT = Context(prec=1, rounding=ROUND_HALF_DOWN)


@dataclass(frozen=True)
class Method:
    """A sum of rules; parsing `text`, with all defaults written out, gives the same method."""

    text: str
    terms: tuple[Term, ...]

    @property
    def exact(self) -> bool:
        return any(term.exact for term in self.terms)

    def plan(self, anatomy: Anatomy, pooling: Pooling, num_parameters: int) -> Plan:
        """Applies the rules to a base.

        The default learning rate is the smallest of the terms'. Above a hidden size of 384 it falls in proportion to
        the width, because the papers use 1e-4 to 1e-3 for bases two to three times as wide; the rate of a head alone
        does not fall. Between two digits it is the lower one: at 2e-3 BitFit of MPNet-base learns nothing on CoLA, at
        1e-3 as much as at 5e-4 (benchmarks/results/study-wide.md).

        Raises:
            InvalidMethod: the base lacks a named part, has too few layers, is narrower than the rank or has too few
                parameters for the share; or two terms train the same parameters, or both change the base's own weights.
        """
        subject = Subject(anatomy, pooling, num_parameters)
        trainables = [(term.text, trainable) for term in self.terms for trainable in term.trainables(subject)]
        change = [text for text, trainable in trainables if trainable.changes_base]
        if len(change) > 1:
            raise InvalidMethod(f"{change[0]} and {change[1]} both change the base's own weights; only one can")
        _refuse_overlap(trainables)
        plan = Plan(
            num_layers=anatomy.num_layers,
            trainables=tuple(
                sorted((trainable for _, trainable in trainables), key=lambda trainable: trainable.changes_base)
            ),
            reinit=any(term.reinit for term in self.terms),
            pooling=pooling,
            learning_rate=min(term.learning_rate for term in self.terms),
            exact=self.exact,
        )
        if plan.trains_head_alone:
            return plan
        rate = plan.learning_rate * min(1, REFERENCE_WIDTH / anatomy.hidden_size)
        return replace(plan, learning_rate=float(_ONE_DIGIT.create_decimal(str(rate))))


def _refuse_overlap(pieces: list[tuple[str, Trainable]]) -> None:
    owners: dict[str, str] = {}
    for text, piece in pieces:
        names = {f"{piece.prefix}{site.name}": site.symbol for site in piece.sites}
        shared = {symbol: owners[name] for name, symbol in names.items() if name in owners}
        if shared:
            symbols = ", ".join(map(plain, shared))
            raise InvalidMethod(f"{next(iter(shared.values()))} and {text} both train {symbols}; only one can")
        owners |= dict.fromkeys(names, text)


def parse_method(text: str) -> Method:
    """Reads a method, or several joined by `+`; the message of InvalidMethod explains how it is written."""
    terms: dict[str, Term] = {}
    for part in text.split("+"):
        name, _, arguments = part.strip().partition(":")
        if name not in METHODS:
            hint = suggestion(name, METHODS) or "."
            raise InvalidMethod(f"there is no method {name[:40]!r}{hint} Methods are {', '.join(METHODS)}")
        if name in terms:
            raise InvalidMethod(f"{name} occurs twice")
        # Each method's rule is the function of its name.
        terms[name] = getattr(rules, name.replace("-", "_"))(arguments.strip())
    trained = [term for term in terms.values() if not term.reinit]
    if not trained:
        raise InvalidMethod("reinit is written reinit+METHOD; by itself it trains nothing")
    if len(trained) < len(terms) and any(term.exact for term in trained):
        raise InvalidMethod("head is found on the base as it is; reinit takes a method that trains by steps")
    if len(trained) < len(terms) and (pretrained := next((term for term in trained if term.pretrained), None)):
        raise InvalidMethod(
            f"{pretrained.text} keeps a part of what pretraining gave; reinit takes a method without one"
        )
    if len(trained) > 1 and (alone := next((term for term in trained if term.alone), None)):
        raise InvalidMethod(
            f"nothing adds to {alone.text}, which trains {METHODS[alone.text].trains.partition(';')[0]}"
        )
    # Sort the terms: `a+b` and `b+a` are the same method.
    ordered = sorted(terms, key=lambda name: (not terms[name].reinit, list(METHODS).index(name)))
    return Method("+".join(terms[name].text for name in ordered), tuple(terms[name] for name in ordered))
