"""The page of one delta on labeled rows, from the record that `onebert evaluate --json` prints."""

import json
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from onebert_training.insight.abstaining import REFUSED
from onebert_training.report.document import Scale, document, provenance, said, scale_of, scrolling, table, td, th, unit
from onebert_training.report.plots import calibration, scatter
from onebert_training.tasks.metrics import LOWER_IS_BETTER

FIRST = 20  # classes visible without unfolding

Record = Mapping[str, Any]


def render_evaluation(record: Record, folder: Path) -> str:
    """One self-contained HTML page; `folder` is its future place, for the link to the delta file."""
    name, tags = Path(record["file"]).stem, record["task_type"] == "token"
    parts = [
        _head(name, record),
        _scores(record),
        _classes("Entities", "entities", record["entities"]),
        _classes("Tags", "words", record["classes"]) if tags else _classes("Classes", "rows", record["classes"]),
        _confusion(record["confusion"]),
        _numbers(record["points"]),
        _calibration(record["calibration"]),
        _unknown(record["unknown"]),
        *map(_slice, record["slices"]),
        _worst(record["worst"]),
        _made(record, folder),
    ]
    return document(f"{name}: {record['metric']} on {record['data']['name']}", "".join(parts))


def _head(name: str, record: Record) -> str:
    metric = record["metric"]
    value, interval = said(metric, record["metrics"][metric]), record["interval"]
    between = f" ({said(metric, interval[0])} to {said(metric, interval[1])})" if interval else ""
    where = "" if record["split"] == "all" else f", {record['split']} split"
    rows = f"{record['rows']:,} rows of {record['data']['name']}{where}"
    doubts = "".join(f'<p class="said">{escape(one)}</p>' for one in record["warnings"])
    per_cent = "" if metric in LOWER_IS_BETTER else " %"
    return (
        f'<p class="over">{escape(record["task_type"])} · {escape(record["method"])} · {escape(record["base"])}</p>'
        f'<h1>{escape(name)}</h1><p class="lead"><b>{value}{per_cent}</b> {escape(metric)}{between}, {escape(rows)}</p>'
        f"{doubts}"
    )


def _scores(record: Record) -> str:
    metric, scores = record["metric"], record["metrics"]
    interval = record["interval"] or (None, None)
    others = [one for one in record["yardsticks"] if metric in one["metrics"]]
    numbers = [scores[metric], *interval, *(one["metrics"][metric] for one in others)]
    scale = scale_of(numbers, metric not in LOWER_IS_BETTER)
    rows = [[th("this delta", "own"), scale.dot(scores[metric], *interval), _number(metric, scores[metric], *interval)]]
    rows += [
        [th(one["name"]), scale.dot(value, None, None, kind="other"), _number(metric, value, None, None)]
        for one in others
        for value in [one["metrics"][metric]]
    ]
    compared = table([("beside yardsticks", ""), ("", ""), (unit(metric), "")], rows)
    more = [[th(name), td(said(name, value))] for name, value in scores.items() if name != metric]
    note = f'<p class="note">With its 95 % interval{_by(metric)}.</p>' if record["interval"] else ""
    return (
        f"<section><h2>Score</h2>{compared}{note}{_abstained(record['abstained'])}"
        f"{table([('other metrics', ''), ('per cent', 'errors in their unit')], more) if more else ''}</section>"
    )


def _abstained(found: Record | None) -> str:
    if found is None:
        return ""
    name, score = found["metric"], said(found["metric"], found["score_of_the_rest"])
    return f"<p>It abstains on {found['rows']:,} rows; of the others {escape(unit(name))} is {score}.</p>"


def _number(metric: str, value: float | None, low: float | None, high: float | None) -> str:
    between = f'<span class="spread">{said(metric, low)} – {said(metric, high)}</span>' if low is not None else ""
    return f"<td>{said(metric, value)}{between}</td>"


def _by(metric: str) -> str:
    return " (Wilson)" if metric == "accuracy" else " (bootstrap over rows)"


def _classes(title: str, what: str, classes: Record | None) -> str:
    """The weakest classes come first; they are what most readers look for."""
    if classes is None or not classes["shown"]:
        return ""
    lines = [_class(one, what) for one in sorted(classes["shown"], key=lambda one: one["f1"]["value"])]
    head = [("label", what), ("precision", ""), ("recall", ""), ("F1", "95 %"), ("0 to 100 %", "")]
    more = ""
    if len(lines) > FIRST:
        rest = table(head, lines[FIRST:])
        more = f"<details><summary>{len(lines) - FIRST:,} more</summary>{rest}</details>"
    left = f" {classes['left_out']:,} more have fewer {what} and are left out." if classes["left_out"] else ""
    return (
        f"<section><h2>{title}</h2>{table(head, lines[:FIRST])}{more}"
        f'<p class="note">In per cent, the weakest first; dots are F1, with its 95 % interval (Wilson).{left}</p>'
        "</section>"
    )


def _class(one: Record, what: str) -> list[str]:
    shares = [td(said("", one[name]["value"])) for name in ("precision", "recall")]
    f1 = (one["f1"]["value"], one["f1"]["low"], one["f1"]["high"])
    return [th(one["label"], under=f"{one['support']:,} {what}"), *shares, _number("", *f1), Scale(0, 1).dot(*f1)]


def _confusion(found: Record | None) -> str:
    if found is None:
        return ""
    matrix = _matrix(found["labels"], found["matrix"]) if found["matrix"] else ""
    pairs = [[th(one["gold"]), td(one["answer"]), td(format(one["count"], ","))] for one in found["pairs"]]
    shown = table([("right", ""), ("answered", ""), ("rows", "")], pairs) if pairs else "<p>None is mistaken.</p>"
    if matrix:
        shown = f"<details><summary>As a list</summary>{shown}</details>"
    return f"<section><h2>What is taken for what</h2>{matrix}{shown}</section>"


def _matrix(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    lines = []
    for right, (label, counts) in enumerate(zip(labels, matrix, strict=True)):
        of = sum(counts) or 1
        cells = "".join(
            f'<td class="{"none" if not count else "wrong" if right != said_ else "right"}" '
            f'style="--share: {count / of:.3f}">{count:,}</td>'
            for said_, count in enumerate(counts)
        )
        lines.append(f'<tr><th scope="row">{escape(label)}</th>{cells}</tr>')
    made = (
        f'<table class="matrix"><thead><tr><td class="none">right ↓ answered →</td>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    return scrolling(made, "confusion matrix") + '<p class="note">Colour is the share of a line.</p>'


def _numbers(points: Sequence[Sequence[float]] | None) -> str:
    if not points:
        return ""
    says = f"{len(points)} rows: what is answered against what is right"
    plot = scatter(points, says).svg('class="chart"')
    return f"<section><h2>Answered and right</h2><figure>{plot}</figure></section>"


def _calibration(found: Record | None) -> str:
    if found is None:
        return ""
    confidence, right = said("", found["confidence"]), said("", found["right"])
    says = (
        f"Calibration curve of {found['answers']:,} answers: mean confidence {confidence} %, right {right} %, "
        f"ECE {said('', found['ece'])} %"
    )
    gap = found["confidence"] - found["right"]
    tends = "as sure as it is right" if abs(gap) < 0.01 else "too sure" if gap > 0 else "less sure than it could be"
    plot = calibration(found["curve"], says).svg('class="chart"')
    rows = [
        [
            td(f"{point['answers']:,}"),
            td(said("", point["confidence"])),
            td(said("", point["right"])),
            td(f"{said('', point['low'])} – {said('', point['high'])}"),
        ]
        for point in found["curve"]
    ]
    numbers = table([("answers", ""), ("confidence", "%"), ("right", "%"), ("95 % interval", "Wilson")], rows)
    return (
        f"<section><h2>Calibration</h2><p>{escape(found['of'][0].upper() + found['of'][1:])}: mean confidence "
        f"{confidence} %, right {right} %; on the whole it is {tends}.</p>"
        f"<figure>{plot}<figcaption>ECE {said('', found['ece'])} %: how far confidence is "
        f"from the share that is right, on average over {found['bins']} bins of one width (Guo et al. 2017). Dots have "
        f"about as many answers each; on the dashed line confidence is the share that is right.</figcaption></figure>"
        f"<details><summary>The numbers</summary>{numbers}</details></section>"
    )


def _unknown(found: Record | None) -> str:
    if found is None:
        return ""
    rows = []
    for name, what in (("probability", "the best probability"), ("energy", "the energy")):
        one = found[name]
        through = "–" if one["let_through"] is None else said("", one["let_through"])
        rows.append([th(what), td(f"{one['auroc']:.3f}"), td(through)])
    head = [("told apart by", ""), ("AUROC", ""), ("let through", "%")]
    return (
        f"<section><h2>Texts of no label</h2>{table(head, rows)}"
        f'<p class="note">{found["texts"]:,} texts that none of the labels is for. AUROC is the probability that a '
        "text of the data is answered more surely than one of them, one half is chance; let through is the share of "
        f"them that is answered where {said('', REFUSED)} % of the data are refused.</p></section>"
    )


def _slice(found: Record) -> str:
    metric, values = found["metric"], found["values"]
    scale = scale_of(
        [number for one in values for number in (one["low"], one["score"], one["high"])], metric not in LOWER_IS_BETTER
    )
    lines = [
        [
            th(one["value"]),
            td(f"{one['rows']:,}"),
            scale.dot(one["score"], one["low"], one["high"], found["score"]),
            _number(metric, one["score"], one["low"], one["high"]),
        ]
        for one in values
    ]
    return (
        f"<section><h2>By {escape(found['column'])}</h2>"
        f"{table([(found['column'], ''), ('rows', ''), ('', ''), (unit(metric), '')], lines)}"
        f'<p class="note">With 95 % intervals{_by(metric)}; the upright line is all rows, '
        f"{said(metric, found['score'])}.</p></section>"
    )


def _worst(rows: Sequence[Record]) -> str:
    if not rows:
        return ""
    return f'<section><h2>The worst rows</h2><ul class="rows">{"".join(map(_row, rows))}</ul></section>'


def _row(row: Record) -> str:
    place = " ".join(f"{unit_} {number}" if unit_ != "file" else str(number) for unit_, number in row["place"].items())
    where = f'<span class="quiet">{escape(place)}</span>' if place else ""
    pair = f"<p>{escape(row['text_pair'])}</p>" if "text_pair" in row else ""
    if "words" in row:
        wrong = "".join(
            f'<span>{escape(one["word"])} <span class="tag">{escape(one["gold"])}</span> '
            f'<span class="tag bad">{escape(one["answer"])}</span></span>'
            for one in row["words"]
        )
        facts = f"{wrong}<span>{row['wrong']} words wrong</span>"
    else:
        facts = f"<span>right {_tags(row['gold'], '')}</span>"
        # A span task has several acceptable texts.
        right = row["answer"] == row["gold"] or (isinstance(row["gold"], list) and row["answer"] in row["gold"])
        facts += f"<span>answered {_tags(row['answer'], '' if right else ' bad')}</span>"
    score = f'<span class="quiet">probability {row["score"]:.3g}</span>' if row["score"] is not None else ""
    return (
        f'<li class="card"><p>{escape(row["text"])}</p>{pair}<div class="facts">{facts}{score}'
        f'<span class="quiet">loss {row["loss"]:.3g}</span>{where}</div></li>'
    )


def _tags(value: Any, kind: str) -> str:
    values = value if isinstance(value, list) else [value]
    texts = [f"{one:.4g}" if isinstance(one, float) else str(one) for one in values] or ["none"]
    return " ".join(f'<span class="tag{kind}">{escape(one)}</span>' for one in texts)


def _made(record: Record, folder: Path) -> str:
    file = Path(record["file"])
    link = quote(os.path.relpath(file, folder))
    raw = b64encode(json.dumps(record, ensure_ascii=False, allow_nan=False).encode()).decode()
    name = escape(f"{file.stem}.json")
    facts = [
        ("Data", f"{escape(record['data']['name'])}, <code>{escape(record['data']['digest'])}</code>"),
        ("Delta", f'<a href="{escape(link)}">{escape(file.name)}</a>, <code>{escape(record["digest"])}</code>'),
        ("Base", escape(record["base"])),
        ("Numbers", f'<a download="{name}" href="data:application/json;base64,{raw}">{name}</a>'),
    ]
    return provenance(record, facts)
