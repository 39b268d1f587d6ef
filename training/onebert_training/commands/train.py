"""`onebert train` of a prepared run: trains, writes, shows."""

from collections.abc import Iterable

from onebert_store.command import console
from onebert_store.errors import NotFinite
from onebert_training.commands.showing import next_step, show_trained, summary, train_with_progress
from onebert_training.prepared import PreparedRun


def run_train(job: PreparedRun, notes: Iterable[str], as_json: bool) -> None:
    """Trains, writes the file and shows the record; `notes` come before the run's notes."""
    _show_beginning(job, notes)
    try:
        result = train_with_progress(job.run, job.checkpoint)
    except KeyboardInterrupt:
        if job.checkpoint.exists():
            console.tell("interrupted; the same command continues from the last evaluation")
        raise
    except NotFinite:
        job.forget()  # a resumed run would fail again
        raise
    record, file_notes = job.finish(result)
    for note in file_notes:
        console.tell(f"note: {note}")
    if result.line:
        console.tell(result.line)
    if as_json:
        console.print_json(record)
    else:
        show_trained(record, job.run.schedule.patience)
        console.say(next_step(result.run, record))


def _show_beginning(job: PreparedRun, notes: Iterable[str]) -> None:
    run = job.run
    console.tell(summary(run))
    for note in (*notes, *run.notes):
        console.tell(f"note: {note}")
    console.note_replaced(job.out, "when the training is done")
    with console.busy("measuring the baselines"):
        baselines = run.baselines
    for line in baselines.lines(run.metric):
        console.tell(line)
