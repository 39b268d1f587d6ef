"""The pure parts of `make bench`, and its protocol with real worker processes."""

import csv
import gzip
import json
import os
import runpy
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from bases import Reference, far_delta, manifest_for, tiny_base
from onebert_bench.compute import measure_compute, measured_dtypes
from onebert_bench.load import Load
from onebert_bench.numbers import Spread, ratio
from onebert_bench.servers import Served
from onebert_bench.suite.alone import MANY, ONE, PARTS, Round, front_ends_section, held_section, loads_section
from onebert_bench.suite.comparisons import baseline, goals
from onebert_bench.suite.copies import CASES, copies_section
from onebert_bench.suite.measure import Measurer, Outcome, Settings, difference
from onebert_bench.suite.peers import ENTRIES, ENVIRONMENTS, PEERS, PeerFailed
from onebert_bench.suite.results import Results
from onebert_bench.suite.scenes import DTYPES, Case, Scene, scenes
from onebert_bench.suite.workers import Worker
from onebert_bench.suite.workload import MIXES, Workload, lengths, texts
from onebert_bench.timing import in_turns
from onebert_bench.workload import BERT_BASE, MINILM
from onebert_encoder.base.base import load_base
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps
from onebert_store.file.manifest import parse_manifest

PEER = """
import sys
sys.path.insert(0, {peers!r})
from worker import serve

def prepare(job):
    if job.dtype == "int8":
        raise ValueError("no int8 here")
    if job.dtype == "exit":
        sys.exit("out of memory")
    print("a library that talks")
    job.note = "as it comes"
    return lambda: [[float(len(ids))] for ids in job.ids]

serve(prepare)
"""
# The machine of a run, as a page shows it.
MACHINE = {"name": "m", "processor": "p", "instructions": "i", "cores": 1, "device": "cpu"}
MACHINE |= {"date": "d", "threads": 1, "repetitions": 3}


def test_a_ratio_is_taken_within_each_repetition():
    found = ratio([10.0, 20.0, 40.0], [5.0, 10.0, 10.0])  # the machine became slower, the ratio only once
    assert found == Spread(middle=2.0, low=2.0, high=4.0)
    assert str(found) == "2.00 (2.00–4.00)"


@pytest.mark.parametrize(("value", "text"), [(0.123, "0.12"), (12.345, "12.3"), (1234.5, "1,234")])
def test_numbers_have_three_digits(value, text):
    assert str(Spread.of([value])).startswith(f"{text} (")


@pytest.mark.parametrize("mix", MIXES)
def test_lengths_have_the_deciles_of_their_mix(mix):
    drawn = np.array(lengths(MIXES[mix], 4000))
    found = np.quantile(drawn, np.linspace(0, 1, 11))
    # Of 4,000 draws the rank of a decile is off by 1.6 % at most (two deviations), a sixth of the way to the next one.
    step = np.diff(MIXES[mix].deciles).max()
    assert np.abs(found - MIXES[mix].deciles).max() <= 1 + step / 6 * 2
    assert drawn.min() >= MIXES[mix].deciles[0]
    assert drawn.max() <= MIXES[mix].deciles[-1]


def test_made_up_texts_tokenize_to_the_lengths():
    base = load_base(str(tiny_base()))
    for mix in MIXES:
        made = texts(base, mix, 12)
        assert [len(one) for one in base.tokenizer.encode(made, 512)] == [
            max(length, 5 if MIXES[mix].pair else 3) for length in lengths(MIXES[mix], 12)
        ]
        assert texts(base, mix, 12) == made


def test_real_texts_are_drawn_where_they_are(tmp_path):
    base = load_base(str(tiny_base()))
    (tmp_path / "mrpc").mkdir()
    rows = [(f"the parcel is late {i}", f"parcel {i} came late", i % 2) for i in range(9)]
    with gzip.open(tmp_path / "mrpc" / "test.csv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sentence1", "sentence2", "label"), *rows])
    drawn = texts(base, "mrpc", 5, tmp_path)
    assert len(set(drawn)) == 5
    assert set(drawn) <= {(a, b) for a, b, _ in rows}
    assert texts(base, "sst2", 3, tmp_path) == texts(base, "sst2", 3)


@pytest.fixture
def worker(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(PEER.format(peers=str(PEERS)))
    running = Worker(Path(sys.executable), [script], 1, tmp_path / "log.txt")
    yield running
    running.close()


def job(**changed):
    return {
        "base": "",
        "tasks": [],
        "task_of": [0, 0],
        "ids": [[1, 2, 3], [4]],
        "type_ids": [[0, 0, 0], [0]],
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
        "work": "",
    } | changed


def test_a_worker_answers_and_stands_still_between(worker):
    assert "torch" in worker.versions
    assert worker.ask(do="prepare", name="a", job=job()) == {"logits": [[3.0], [1.0]], "note": "as it comes"}
    assert len(worker.ask(do="run", name="a", untimed=1, timed=3)["ms"]) == 3
    # Waits for the stop, and would wait forever for a process that goes on.
    stopped = os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    assert stopped.si_status == signal.SIGSTOP


def test_a_peer_that_fails_says_why(worker):
    with pytest.raises(PeerFailed, match="ValueError: no int8 here"):
        worker.ask(do="prepare", name="a", job=job(dtype="int8"))
    worker.ask(do="prepare", name="a", job=job())
    with pytest.raises(PeerFailed, match="out of memory"):
        worker.ask(do="prepare", name="a", job=job(dtype="exit"))
    with pytest.raises(PeerFailed):
        worker.ask(do="run", name="a", untimed=0, timed=1)


@pytest.mark.slow("starts a worker of the benchmark")
def test_our_worker_answers_as_the_merged_model_does(tmp_path):
    base = load_base(str(tiny_base()))
    tensors = [far_delta(base.spec, kind, "pooler", 2, seed) for seed, kind in enumerate(("bitfit", "lora", "sparse"))]
    files = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for file, found in zip(files, tensors, strict=True):
        file.write_bytes(dumps(Delta(parse_manifest(manifest_for(base.spec, "pooler")), found)))
    ids = [[2, 10, 11, 12, 3], [2, 20, 3], [2, 30, 31, 3], [2, 30, 31, 3]]
    asked = job(
        base=str(tiny_base()),
        tasks=[str(file) for file in files],
        task_of=[0, 1, 2, 0],
        ids=ids,
        type_ids=[[0] * len(text) for text in ids],
        resident=10,
        shared=True,
    )
    running = Worker(Path(sys.executable), [PEERS / "ours.py", "ours"], 1, tmp_path / "log.txt")
    try:
        logits = running.ask(do="prepare", name="a", job=asked)["logits"]
    finally:
        running.close()
    plain = [Reference(tiny_base(), found, "pooler") for found in tensors]
    expected = [plain[task].logits(text).tolist() for task, text in zip([0, 1, 2, 0], ids, strict=True)]
    np.testing.assert_allclose(logits, expected, atol=1e-4)  # float32, as everywhere


def test_a_difference_counts_only_the_tasks_that_are_checked():
    reference = np.array([[4.0, 0.0], [0.0, 1.0]])
    answers = [[4.0, 0.4], [9.0, 9.0]]
    assert difference(answers, reference, [0, 1], checked=1) == pytest.approx(0.1)
    assert difference(answers, reference, [0, 1], checked=2) == pytest.approx(9 / 4)


def test_what_is_measured_here_is_what_this_processor_multiplies():
    """PyTorch refuses to pack a weight in bfloat16 on a processor without AVX-512."""
    for dtype in measured_dtypes("cpu"):
        times = measure_compute(str(tiny_base()), getattr(torch, dtype), "cpu", 3)
        assert set(times) == {"hf_ms", "one_ms", "swap_ms", "mixed_ms", "floor_ms", "tokens"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtypes", [DTYPES, DTYPES[:1]])
def test_every_case_can_be_run_and_compared(device, dtypes):
    for scene in scenes(device, dtypes):
        assert {case.dtype for case in scene.cases} <= {*dtypes, "int8"}
        assert len({case.label for case in scene.cases}) == len(scene.cases)
        for case in scene.cases:
            entry = ENTRIES[case.entry]
            assert (PEERS / entry.script).is_file()
            assert entry.environment in ENVIRONMENTS
            assert case.dtype in entry.dtypes
            assert device == "cpu" or entry.cuda
            assert baseline(scene, case) in scene.cases


def test_runs_take_turns_behind_one_that_warms_up():
    asked = []
    found = in_turns({name: lambda name=name: asked.append(name) or len(asked) for name in "ab"}, 2)
    assert asked == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [4, 5], "b": [3, 6]}


def test_parts_are_held_against_their_goals():
    def loads(rate, p50):
        return [Load([p50] * int(rate * seconds), 0, seconds, 0.1) for seconds in (1.0, 2.0)]

    engine, served = loads(1000, 3.0), loads(900, 4.0)
    found = {(traffic, of): served for traffic in (ONE, MANY) for of in (0, 1, 2)}
    memory = dict.fromkeys((0, 1, 2), 300_000_000)
    front_ends = front_ends_section({MINILM: Served({**found, (ONE, None): engine, (MANY, None): engine}, memory)})
    lines = [goal.line() for goal in front_ends.goals]
    assert lines[0][3:] == ["1.00 (1.00–1.00)", "≤ 0.5", "no"]
    assert lines[-1][3:] == ["0.90 (0.90–0.90)", "≥ 0.92", "no"]
    line = "| MiniLM-L6 | 64 | 1 | 2 front ends | 900 (900–900) | 0.90 (0.90–0.90) | 4.00 (4.00–4.00) | 300 |"
    assert line in front_ends.page()
    assert len(front_ends.as_json()["numbers"]) == 8
    churn = loads_section([Round(30.0, 8.0, 1.0, 100), Round(60.0, 9.0, 2.0, 103), Round(20.0, 8.0, 2.0, 104)])
    besides, growth = (goal.line() for goal in churn.goals)
    assert besides[3:] == ["37.0 (26.0–67.0)", "≤ 50", "yes"]
    assert growth[3:] == ["1.04 (1.04–1.04)", "≤ 1.02", "no"]
    taken = {"arithmetic_bytes": 1.3e9, "held_bytes": 1.5e9, "process_bytes": 1.2e9}
    taken |= {"install_ms": 1, "few_ms": 2, "many_ms": 3}
    assert [held_section(taken, on_cpu=on_cpu).goals[0].is_reached for on_cpu in (True, False)] == [True, False]


def test_five_tasks_are_held_against_five_copies():
    ours, torch_copies, sessions = (
        Outcome(case, [ms], error=0.0, resident=resident, anonymous=300)
        for case, ms, resident in zip(CASES, (10.0, 20.0, 8.0), (400, 2000, 1000), strict=True)
    )
    section = copies_section({"a base": [ours, torch_copies, sessions]})
    assert [goal.is_reached for goal in section.goals] == [True, True, False, False]
    failed = copies_section({"a base": [ours, Outcome(CASES[1], failed="out of memory")]})
    assert "failed: out of memory" in failed.page()
    assert not failed.goals


def test_a_page_tells_what_is_reached_and_what_failed(tmp_path):
    ours, padded, rounded = Case("ours", "float32"), Case("transformers_padded", "float32"), Case("ours", "bfloat16")
    cases = (ours, padded, Case("open_vino", "float32"), Case("floor", "float32"), rounded)
    scene = Scene("one task", "MiniLM-L6", "sst2", 64, cases)
    outcomes = [
        Outcome(ours, [10.0, 11.0, 10.0], error=1e-6),
        Outcome(padded, [50.0, 55.0, 60.0], error=1e-6),
        Outcome(cases[2], failed="no such wheel"),
        Outcome(cases[3], [7.0, 7.0, 7.0]),
        Outcome(rounded, [1.0, 1.0, 1.0], error=0.5),
        Outcome(Case("transformers_padded", "bfloat16"), [30.0, 30.0, 30.0], error=0.01),
        Outcome(Case("floor", "bfloat16"), [0.5], failed="out of memory"),
    ]
    lines = [goal.line() for goal in goals([(scene, outcomes)])]
    assert {line[1] for line in lines} == {"float32"}  # what is wrong or failed reaches nothing
    found = {line[0]: line[3:] for line in lines}
    assert found["times transformers, padded"] == ["5.00 (5.00–6.00)", "≥ 4", "yes"]
    assert found["rate of oneDNN's matrix products"] == ["0.70 (0.64–0.70)", "≥ 0.92", "no"]
    results = Results({**MACHINE, "left_out": ["int4"]}, False)
    results.scenes.append((scene, outcomes))
    results.tokens[scene.name] = 1000
    page = results.write_page(tmp_path).read_text(encoding="utf-8")
    assert "failed: no such wheel" in page
    assert "int4 is left out: this processor does not multiply it." in page
    assert "wrong answers, off by 0.5" in page
    assert (tmp_path / "m" / "one-task.png").read_bytes().startswith(b"\x89PNG")
    results.write(tmp_path)
    assert json.loads((tmp_path / "m.json").read_text())["scenes"][0]["cases"][1]["ms"] == [50.0, 55.0, 60.0]


def test_a_scene_or_part_that_fails_is_rows_with_its_reason(tmp_path):
    bench = runpy.run_path(str(PEERS.parent / "bench.py"))
    settings = Settings("cpu", 1, 3, tmp_path)
    missing = Workload("no such base", tmp_path, None)
    [scene, *_] = (one for one in scenes("cpu", ["float32"]) if one.kind == "many tasks")
    with Measurer(settings) as measurer:
        tokens, outcomes = bench["measured_scene"](measurer, scene, missing)
    results = Results({**MACHINE, "left_out": []}, False, [(scene, outcomes)], {scene.name: tokens})
    part = partial(PARTS["tasks held"], settings, {BERT_BASE: missing})
    results.parts["tasks held"] = bench["measured_part"]("tasks held", part)
    page = results.write_page(tmp_path).read_text(encoding="utf-8")
    assert page.count("failed: KeyError: 'no such base'") == len(scene.cases) + 1
