"""`onebert bench`: how fast this machine is, and what mixing tasks costs on it."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from onebert_store.command import console
from onebert_store.command.options import BASE, AsJson


def bench(
    base: Annotated[str | None, typer.Option(help=BASE)] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    repetitions: Annotated[int, typer.Option(min=3, help="Interleaved repetitions behind each median.")] = 20,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of HTTP load for each number of clients.")] = 8.0,
    resident: Annotated[int, typer.Option(min=64, help="BitFit tasks held at once in the memory part.")] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Measure one task, 64 mixed tasks, Hugging Face padded, the bare matrix products, and HTTP, in one run.

    Numbers are medians of interleaved repetitions; compare ratios within one run, on an otherwise idle machine.
    """
    # Sets the allocator as the server does, which must happen before threads start. Imported here so that
    # `onebert --help` does not load torch.
    from onebert_server.engine.memory import keep_freed_memory  # noqa: PLC0415

    keep_freed_memory()
    import torch  # noqa: PLC0415

    from onebert_bench.compute import measure_compute, measure_resident, measured_dtypes  # noqa: PLC0415
    from onebert_bench.servers import measure_http  # noqa: PLC0415

    dtypes = measured_dtypes(device)
    if "bfloat16" not in dtypes:
        console.tell("note: bfloat16 is left out, because this processor does not multiply it")
    results: dict[str, Any] = {}
    with console.progress() as bar:
        step = bar.add_task("measuring", total=len(dtypes) + 2)
        for name in dtypes:
            results[name] = measure_compute(base, getattr(torch, name), device, repetitions)
            bar.advance(step)
        results["resident"] = measure_resident(base, torch.float32, device, resident, repetitions)
        bar.advance(step)
        results["http"] = measure_http(base, "float32", device, (1, 64), seconds)
        bar.advance(step)
    if as_json:
        console.print_json(results)
        return
    for table in (_compute_table(results, dtypes), _resident_table(results["resident"]), _http_table(results["http"])):
        console.out.print(table)


def _compute_table(results: dict[str, Any], dtypes: Sequence[str]) -> Table:
    table = Table(title="64 sentences in one batch: median ms")
    for column in ("", *dtypes):
        table.add_column(column, justify="right" if column else "left")
    rows = {
        "Hugging Face, padded, one task": "hf_ms",
        "OneBERT, one task": "one_ms",
        "OneBERT, another task each time": "swap_ms",
        "OneBERT, 64 tasks mixed": "mixed_ms",
        "the linear layers' matrix products alone": "floor_ms",
    }
    for title, key in rows.items():
        table.add_row(title, *(f"{results[dtype][key]:.1f}" for dtype in dtypes))
    table.add_section()
    ratios = {
        "mixed against one task (rate)": ("one_ms", "mixed_ms"),
        "mixed against Hugging Face (rate)": ("hf_ms", "mixed_ms"),
        "swapping against one task (rate)": ("one_ms", "swap_ms"),
        "mixed against the matrix products (rate)": ("floor_ms", "mixed_ms"),
    }
    for title, (above, below) in ratios.items():
        table.add_row(title, *(f"{results[dtype][above] / results[dtype][below]:.2f}" for dtype in dtypes))
    return table


def _resident_table(resident: dict[str, float]) -> Table:
    table = Table(title=f"{resident['tasks']:,.0f} BitFit tasks resident, float32")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("MB by arithmetic (7h a layer, and the head)", f"{resident['arithmetic_bytes'] / 1e6:.1f}")
    table.add_row("MB of the bank", f"{resident['held_bytes'] / 1e6:.1f}")
    table.add_row("MB the process grew", f"{resident['process_bytes'] / 1e6:.1f}")
    table.add_row("ms to fold and install one", f"{resident['install_ms']:.2f}")
    table.add_row("ms, batch of 64 neighbors", f"{resident['few_ms']:.1f}")
    table.add_row("ms, batch spread over all", f"{resident['many_ms']:.1f}")
    return table


def _http_table(http: dict[str, dict[str, float]]) -> Table:
    table = Table(title="One text a request over HTTP, 64 tasks, float32; beside it the engine alone")
    columns = ("clients", "requests/s", "tokens/s", "p50 ms", "p99 ms", "engine alone: requests/s", "p50 ms", "share")
    for column in columns:
        table.add_column(column, justify="right")
    for clients, row in http.items():
        keys = ("requests_per_second", "tokens_per_second", "p50_ms", "p99_ms", "engine_requests_per_second")
        numbers = [f"{row[key]:,.1f}" for key in (*keys, "engine_p50_ms")]
        table.add_row(clients, *numbers, f"{row['share_of_engine']:.2f}")
    return table
