"""The rule of each method: parses its arguments, and names the parts of a base to train."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

from onebert_encoder.base.anatomy import NORMS, Module
from onebert_store.errors import InvalidMethod
from onebert_store.file.delta import ADAPTED, PLACES, POOLER_SYMBOL
from onebert_training.methods import grammar
from onebert_training.methods import trainables as kinds
from onebert_training.methods.terms import BIASES, Subject, Term
from onebert_training.methods.weights import Full, Pruned, Truncated

GAINS = tuple(f"g_{part}" for part in NORMS)
# `m2` is also the gate of an MLP that has one.
TARGETS: Mapping[str, tuple[str, ...]] = {
    **{"q": ("W_q",), "k": ("W_k",), "v": ("W_v",), "o": ("W_m1",)},
    **{"m2": ("W_m2", "W_mg"), "m3": ("W_m3",)},
}
# `ia3`'s places, as users write them and by the names of `PLACES`; Liu et al. 2022 scale k, v and inner.
FACTORS: Mapping[str, str] = {"k": "k", "v": "v", "o": "m1", "m2": "m2", "inner": "inner", "m3": "m3"}
IA3 = ("k", "v", "inner")
# The two LoRA settings of SPAFIT, section 4.
LORA_TARGETS: Mapping[str, str] = {"I": "q,k,v", "II": "q,k,v,o"}
MLP_BIASES = ("b_m2", "b_mg", "b_m3", "b_LN2")

# Default learning rates up to a hidden size of 384. Biases, gains and other small differences: the middle of 1e-3 to
# 1e-2, which differ little on small samples of trec6, sms_spam and mrpc with the default base (one seed). Full
# fine-tuning: the best of 3e-5, 1e-4 and 3e-4 on 640 rows of sst2 (one seed). LoRA: at 2e-3 differences of all maps
# beside biases learn nothing on CoLA (decision 56), and SPAFIT nothing on SST-2 with twelve layers
# (benchmarks/results/study-wide.md). The others come from the methods' papers.
LEARNING_RATE = 3e-3
LORA_LEARNING_RATE = 1e-3
WEIGHTS_LEARNING_RATE = 1e-3
FULL_LEARNING_RATE = 1e-4
# The head starts from nothing and has this rate beside every method and on a base of any width.
HEAD_LEARNING_RATE = 3e-3


def frozen(arguments: str) -> Term:
    """Trains only the head."""
    grammar.refuse_arguments("frozen", arguments)
    return Term("frozen", HEAD_LEARNING_RATE, alone=True)


def head(arguments: str) -> Term:
    """Finds the head exactly, by logistic or ridge regression on the frozen base's vectors."""
    grammar.refuse_arguments("head", arguments)
    return Term("head", HEAD_LEARNING_RATE, alone=True, exact=True)


def bitfit(arguments: str) -> Term:
    """BitFit (Ben Zaken et al. 2022): biases."""
    return _named("bitfit", arguments, BIASES)


def init_bias(arguments: str) -> Term:
    """BitFit whose biases start at zero (*What Parameters to Freeze?*, InitBias + BitFit)."""
    return _named("init-bias", arguments, BIASES, from_zero=True)


def gamma(arguments: str) -> Term:
    """LayerNorm gains (BitFit+)."""
    return _named("gamma", arguments or "gLN1,gLN2", GAINS)


def layernorm(arguments: str) -> Term:
    """Gains and biases of every LayerNorm (Lu et al. 2021)."""
    grammar.refuse_arguments("layernorm", arguments, "; gamma and bitfit take subsets")
    return Term("layernorm", LEARNING_RATE, lambda subject: [_layernorms(subject)])


def random_bias(arguments: str) -> Term:
    """Bias numbers drawn at random, a share of the base's parameters (BitFit+)."""
    share = grammar.read_share("random-bias", arguments)

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        available = sum(p.shape[0] for p in subject.biases)
        return [kinds.RandomBiases(subject.biases, subject.count(share, available, "the biases"))]

    return Term(f"random-bias:{share:g}%", LEARNING_RATE, trainables)


def _random(name: str, lines: kinds.Lines, arguments: str) -> Term:
    """Entries, rows or columns of the layers' weights, drawn at random (BitFit: rand uniform, rand row/col)."""
    share = grammar.read_share(name, arguments)

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        modules = subject.anatomy.modules
        trainable = kinds.RandomWeights(modules, lines, subject.count(share, _size(modules), "the layers' weights"))
        if not trainable.num_parameters:
            raise InvalidMethod(
                f"{share:g} % of this base are {trainable.budget:,} numbers, less than one of its {lines}"
            )
        return [trainable]

    return Term(f"{name}:{share:g}%", LEARNING_RATE, trainables)


def lora(arguments: str) -> Term:
    """LoRA (Hu et al. 2022) of attention maps, and of the MLP's maps if they are named."""
    setting, _, rest = arguments.partition(",")
    if setting.strip() in LORA_TARGETS:
        arguments = f"targets={LORA_TARGETS[setting.strip()]},{rest}"
    options = grammar.read_options("lora", arguments, ("r", "alpha", "targets"))
    rank, alpha = grammar.read_rank_alpha(options)
    targets = grammar.read_targets("lora", options, LORA_TARGETS["I"], TARGETS)
    return Term(
        f"lora:r={rank},alpha={alpha:g},targets={','.join(targets)}",
        LORA_LEARNING_RATE,
        lambda subject: [_low_rank(subject, _maps(subject, targets), rank, alpha)],
    )


def lora_xs(arguments: str) -> Term:
    """LoRA-XS (Bałazy et al. 2024), with the paper's targets and the rank of its middle size."""
    options = grammar.read_options("lora-xs", arguments, ("r", "targets"))
    rank, _ = grammar.read_rank_alpha(options, default=16)
    targets = grammar.read_targets("lora-xs", options, "q,v,o,m3", TARGETS)

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        _check_rank(subject, rank)
        return [kinds.Cores(_maps(subject, targets), rank)]

    return Term(f"lora-xs:r={rank},targets={','.join(targets)}", LEARNING_RATE, trainables, pretrained=True)


def svd(arguments: str) -> Term:
    """Whole maps, cut to low rank at every evaluation, at the learning rate of full fine-tuning."""
    options = grammar.read_options("svd", arguments, ("r", "targets"))
    rank, _ = grammar.read_rank_alpha(options, default=16)
    targets = grammar.read_targets("svd", options, ",".join(TARGETS), TARGETS)

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        _check_rank(subject, rank)
        return [Truncated(_maps(subject, targets), rank)]

    return Term(f"svd:r={rank},targets={','.join(targets)}", FULL_LEARNING_RATE, trainables, pretrained=True)


def spafit(arguments: str) -> Term:
    """SPAFIT; layers count from 0, as in parameter names: this gives the parameter counts of the paper's Table 2."""
    stratification, _, rest = arguments.partition(",")
    words = stratification.strip().split("-")
    if len(words) != 3 or not (words[0].isdecimal() and words[1].isdecimal()) or words[2] not in LORA_TARGETS:
        raise InvalidMethod("spafit is written spafit:N1-N2-I or spafit:N1-N2-II, for example spafit:1-3-I,r=8")
    first, second = int(words[0]), int(words[1])
    if first > second:
        raise InvalidMethod("the N1 of spafit is at most N2")
    rank, alpha = grammar.read_rank_alpha(grammar.read_options("spafit", rest, ("r", "alpha")))
    text = f"spafit:{first}-{second}-{words[2]},r={rank},alpha={alpha:g}"
    targets = LORA_TARGETS[words[2]].split(",")

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        if second + 2 > subject.anatomy.num_layers:
            raise InvalidMethod(f"{text} needs {second + 2} layers or more; the base has {subject.anatomy.num_layers}")
        layered = [(p, p.layer) for p in subject.biases if p.layer is not None and p.layer > first]
        biases = tuple(p for p, layer in layered if layer <= second or p.symbol in MLP_BIASES)
        modules = tuple(m for m in _maps(subject, targets) if m.layer > second)
        return [kinds.Differences(biases), _low_rank(subject, modules, rank, alpha)]

    # The low-rank differences' rate, as a sum of both would have.
    return Term(text, LORA_LEARNING_RATE, trainables)


def adapter(arguments: str) -> Term:
    """Houlsby adapters; every LayerNorm is trained as well, as in Houlsby et al. 2019, section 2."""
    if not (arguments.isdecimal() and 1 <= int(arguments) <= 4096):
        raise InvalidMethod("adapter is written adapter:64, with 1 to 4096 units")
    size = int(arguments)

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        if size > subject.anatomy.hidden_size:
            raise InvalidMethod(f"an adapter has at most the hidden size of the base, {subject.anatomy.hidden_size}")
        return [kinds.Adapters(subject.modules(ADAPTED), size), _layernorms(subject)]

    return Term(f"adapter:{size}", WEIGHTS_LEARNING_RATE, trainables)


def ia3(arguments: str) -> Term:
    """IA3 (Liu et al. 2022), at its places or others: outputs of k, v, o, m2, m3, and the MLP's inner units."""
    listed, without = grammar.read_symbols("ia3", arguments, tuple(FACTORS))
    chosen = [key for key in FACTORS if (key in listed) != without] if listed else list(IA3)
    return Term(
        "ia3" if chosen == list(IA3) else f"ia3:{','.join(chosen)}",
        LEARNING_RATE,
        lambda subject: [_scales(subject, FACTORS[key]) for key in chosen],
    )


def red(arguments: str) -> Term:
    """RED (Wu et al. 2024): a scale and a bias behind the MLP, before its dropout and the residual sum.

    The paper's edit is s ⊙ (W a + b) + e. The bias is trained as a difference d of b_m3, which the scale multiplies:
    s ⊙ (W a + b + d) is that edit with e = s ⊙ d.
    """
    grammar.refuse_arguments("red", arguments)

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        biases = tuple(parameter for parameter in subject.biases if parameter.symbol == "b_m3")
        return [_scales(subject, "m3"), kinds.Differences(biases)]

    return Term("red", LEARNING_RATE, trainables)


def diff_pruning(arguments: str) -> Term:
    """Diff pruning (Guo et al. 2020) of the layers' weights; biases, norms and tables stay as they are."""
    share = grammar.read_share("diff-pruning", arguments)

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        modules = subject.anatomy.modules
        return [Pruned(modules, subject.count(share, _size(modules), "the layers' weights"))]

    return Term(f"diff-pruning:{share:g}%", WEIGHTS_LEARNING_RATE, trainables, pretrained=True)


def full(arguments: str) -> Term:
    """Full fine-tuning: every parameter that an answer depends on."""
    grammar.refuse_arguments("full", arguments)

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        anatomy, h = subject.anatomy, subject.anatomy.hidden_size
        idle = anatomy.has_pooler and subject.pooling != "pooler"
        unused = {anatomy.name(symbol) for symbol in ("W_p", POOLER_SYMBOL)} if idle else set()
        names = tuple(name for name in anatomy.weights if name not in unused)
        return [Full((), names, subject.num_parameters - (h * h + h if unused else 0))]

    return Term("full", FULL_LEARNING_RATE, trainables, alone=True)


def reinit(arguments: str) -> Term:
    """A base of random weights, for another method to train (*What Parameters to Freeze?*, section IV-D)."""
    grammar.refuse_arguments("reinit", arguments)
    return Term("reinit", math.inf, reinit=True)


random = partial(_random, "random", "entries")
random_rows = partial(_random, "random-rows", "rows")
random_cols = partial(_random, "random-cols", "columns")


def _layernorms(subject: Subject) -> kinds.Differences:
    return kinds.Differences(tuple(p for p in subject.parameters if "_LN" in p.symbol))


def _maps(subject: Subject, targets: Sequence[str]) -> tuple[Module, ...]:
    return subject.modules({symbol for key in targets for symbol in TARGETS[key]})


def _low_rank(subject: Subject, modules: tuple[Module, ...], rank: int, alpha: float) -> kinds.LowRankDifferences:
    _check_rank(subject, rank)
    return kinds.LowRankDifferences(modules, rank, alpha / rank)


def _check_rank(subject: Subject, rank: int) -> None:
    if rank > subject.anatomy.hidden_size:
        raise InvalidMethod(f"r is at most the hidden size of the base, {subject.anatomy.hidden_size}")


def _scales(subject: Subject, place: str) -> kinds.Scales:
    return kinds.Scales(subject.modules({PLACES[place][1]}), place)


def _size(modules: Sequence[Module]) -> int:
    return sum(m.shape[0] * m.shape[1] for m in modules)


def _named(name: str, arguments: str, allowed: tuple[str, ...], from_zero: bool = False) -> Term:
    """A term for all allowed symbols, for the listed ones (`bq` or `b_q`), or for all but those listed with a minus."""
    listed, without = grammar.read_symbols(name, arguments, allowed)
    chosen = [symbol for symbol in allowed if (symbol in listed) != without] if listed else list(allowed)

    def trainables(subject: Subject) -> list[kinds.Trainable]:
        sites = tuple(p for p in subject.parameters if p.symbol in chosen)
        missing = set() if without or not listed else set(chosen) - {p.symbol for p in sites}
        if missing or not sites:
            names = ", ".join(sorted(missing or chosen))
            raise InvalidMethod(f"with {subject.pooling} pooling this base has no {names} to train")
        return [kinds.Differences(sites, from_zero)]

    names = ",".join(f"{'-' * without}{grammar.plain(symbol)}" for symbol in allowed if symbol in listed)
    return Term(f"{name}:{names}" if names else name, LEARNING_RATE, trainables)
