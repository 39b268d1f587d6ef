"""The bank: rows keep their numbers while it grows, slots are reused, and its size is what arithmetic says."""

import ctypes
import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import torch
from transformers import BertConfig, BertModel

from bases import far_row, loaded, write_base
from batches import logits_of, packed
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.batch import BASE_ROW
from onebert_encoder.maths.rows import Head, Number, Row, stack_rows
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.banks.uses import BankBytes
from onebert_store.errors import BankFull

C = ctypes.CDLL(None)
KINDS = ("bitfit", "gains", "lora", "sparse", "adapter", "scale", "frozen", "everything")


base = loaded


def row(seed: int, kind: str | None = None) -> Row:
    return far_row(base(), kind or KINDS[seed % len(KINDS)], labels=2 + seed % 3, seed=seed)


def answer(bank: Bank, slot: int) -> torch.Tensor:
    with torch.inference_mode():
        return logits_of(base(), bank.rows, packed(base(), [Tokens([5, 6, 7], [0, 0, 0])], [slot]))[0]


def alone(seed: int) -> torch.Tensor:
    with torch.inference_mode():
        rows = stack_rows(base(), [row(seed)])
        return logits_of(base(), rows, packed(base(), [Tokens([5, 6, 7], [0, 0, 0])], [0]))[0]


def test_rows_keep_their_answers_while_the_bank_grows() -> None:
    bank = Bank(base())
    slots = {bank.install(row(seed)): seed for seed in range(60)}
    assert len(slots) == 60
    assert BASE_ROW not in slots
    for slot, seed in slots.items():
        torch.testing.assert_close(answer(bank, slot), alone(seed), rtol=0, atol=1e-5)


def test_a_slot_is_given_back_while_a_row_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread gives it back: a batch must not wait for the copies of a large row."""
    bank, copying, copied = Bank(base()), Event(), Event()
    slot, second = bank.install(row(1)), bank.install(row(2))
    write = bank._shift.write

    def slow(at: int, shift: torch.Tensor) -> None:
        copying.set()
        assert copied.wait(600)
        write(at, shift)

    monkeypatch.setattr(bank._shift, "write", slow)
    with ThreadPoolExecutor(1) as threads:
        installed = threads.submit(bank.install, row(3))
        assert copying.wait(600)
        bank.release(slot)
        assert not installed.done()
        copied.set()
        third = installed.result()
    assert (bank.num_resident, third == slot) == (2, False)
    assert bank.install(row(4)) == slot
    for at, seed in ((second, 2), (third, 3), (slot, 4)):
        torch.testing.assert_close(answer(bank, at), alone(seed), rtol=0, atol=1e-5)


def test_tables_stay_where_they_are_while_the_bank_grows() -> None:
    def addresses() -> list[int]:
        rows = bank.rows
        return [table.data_ptr() for table in (rows.shift, rows.g_LN0, rows.gain, rows.scales["inner"])]

    bank = Bank(base())
    before = addresses()
    for seed in range(60):
        bank.install(row(7 + seed % 2, "everything"))
    assert len(bank.rows.shift) == len(bank.rows.scales["inner"]) == 61
    assert addresses() == before


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the kernel does not say here what a process holds")
def test_a_reserved_bank_costs_nothing_until_it_is_written() -> None:
    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = held()
    bank = Bank(base(), BankBytes(2**33))
    bank.install(row(7, "everything"))
    assert held() - before < 2**26


@pytest.mark.skipif(not hasattr(C, "mincore"), reason="the kernel does not say here what a process holds")
def test_a_released_row_gives_its_memory_back(tmp_path: Path) -> None:
    folder = write_base("bert", tmp_path)
    # Wide enough for a row to be larger than a page.
    BertModel(BertConfig.from_pretrained(folder, hidden_size=512)).save_pretrained(folder)
    wide = load_base(str(folder))

    def held() -> int:
        """Bytes of the pages of the bank's tables that lie in memory, as the kernel says of each page."""
        total = 0
        rows = bank.rows
        for table in (rows.shift, rows.g_LN0, rows.gain, rows.scales["inner"]):
            start = table.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            pages = -(-(table.data_ptr() + table.nbytes - start) // mmap.PAGESIZE)
            resident = (ctypes.c_ubyte * pages)()
            assert C.mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * mmap.PAGESIZE), resident) == 0
            total += sum(page & 1 for page in resident) * mmap.PAGESIZE
        return total

    bank = Bank(wide, BankBytes(2**30))
    far = far_row(wide, "gains", seed=1)
    stays = bank.install(far)
    slots = [bank.install(far) for _ in range(200)]
    full, before = (
        held(),
        [bank.rows.shift[stays].clone(), bank.rows.gain[bank.rows.numbers[stays, Number.GAIN]].clone()],
    )
    assert full > 200 * far.shift.nbytes
    for slot in slots:
        bank.release(slot)
    # What is left is the pages in which a row ends and its neighbour begins.
    assert held() < full / 2
    again = bank.install(far)
    for slot in (stays, again):
        gain = int(bank.rows.numbers[slot, Number.GAIN])
        torch.testing.assert_close(bank.rows.shift[slot], before[0], rtol=0, atol=0)
        torch.testing.assert_close(bank.rows.gain[gain], before[1], rtol=0, atol=0)


def test_a_full_bank_refuses_and_takes_again_once_there_is_room() -> None:
    task_row = row(7, "everything")
    large = Bank(base())
    empty = large.num_bytes
    large.install(task_row)
    size = large.num_bytes - empty
    bank = Bank(base(), BankBytes(empty + 3 * size))
    slots = [bank.install(task_row) for _ in range(3)]
    for _ in range(2):
        with pytest.raises(BankFull):
            bank.install(row(0, "bitfit"))
    assert (bank.num_resident, bank.num_bytes) == (3, empty + 3 * size)
    bank.release(slots[1])
    slot = bank.install(row(0, "bitfit"))
    torch.testing.assert_close(answer(bank, slot), alone(0), rtol=0, atol=1e-5)
    torch.testing.assert_close(answer(bank, slots[2]), alone(7), rtol=0, atol=1e-5)


def test_a_device_without_memory_is_a_full_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch says on this machine when it is refused memory."""

    def greedy(head: Head) -> Head:
        torch.empty(2**60, dtype=torch.int8)
        return head

    bank = Bank(base())
    before = bank.num_bytes
    monkeypatch.setattr(Head, "copied", greedy)
    with pytest.raises(BankFull):
        bank.install(row(0))
    assert bank.num_bytes == before


def test_bitfit_tasks_take_the_bytes_of_their_biases_and_heads() -> None:
    bank, task_row = Bank(base()), row(0, "bitfit")
    config, empty = base().config, bank.num_bytes
    for _ in range(1000):
        bank.install(task_row)
    shift = config.num_layers * (3 * config.hidden_size + config.intermediate_size)
    head = 2 * (config.hidden_size + 1)
    assert bank.num_bytes == 1000 * (shift + head) * 4 + empty


def test_a_failed_installation_takes_nothing() -> None:
    bank = Bank(base())
    before = (bank.num_resident, bank.num_bytes)
    misshapen = replace(row(7, "everything"), g_LN0=torch.zeros(3))
    for _ in range(3):
        with pytest.raises(RuntimeError):
            bank.install(misshapen)
    assert (bank.num_resident, bank.num_bytes) == before
    slot = bank.install(row(7, "everything"))
    torch.testing.assert_close(answer(bank, slot), alone(7), rtol=0, atol=1e-5)


# For a process of its own, set up as the server's: others' garbage is none of its business.
TEN_THOUSAND_LOADS = """
from pathlib import Path
from onebert_server.engine.memory import keep_freed_memory
keep_freed_memory()
import torch
from transformers import BertConfig, BertModel

from bases import far_delta, tiny_base, torch_tensors, write_base
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.fold import fold
from onebert_server.engine.banks.bank import Bank
torch.set_num_threads(1)
base = load_base(str(tiny_base("bert")))
bank = Bank(base)
tensors = [torch_tensors(far_delta(base.spec, kind, "mean", labels=3, seed=1)) for kind in KINDS]
def churn(times):
    for i in range(times):
        for slot in [bank.install(fold(base, tensors[(i + k) % len(tensors)], "mean")) for k in range(2)]:
            bank.release(slot)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = churn(500)
print(churn(5000) - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the kernel does not say here what a process holds")
def test_ten_thousand_loads_and_unloads_leave_no_memory_behind() -> None:
    code = TEN_THOUSAND_LOADS.replace("KINDS", repr(KINDS))
    tests = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": tests}
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    # A row of these is 10 to 70 kB: one that was kept in a hundred would show.
    assert int(child.stdout) < 2**20


def test_the_bare_base_stays() -> None:
    bank = Bank(base())
    with pytest.raises(ValueError, match="never released"):
        bank.release(BASE_ROW)
