"""Takes the steps of a plan by their phases; a step that fails ends its task alone."""

from onebert_server.cli.apply.plan import Plan
from onebert_server.cli.refusals import showing_refusals
from onebert_server.client import Client
from onebert_store.command import console
from onebert_store.errors import OneBertError, ServerUnreachable, Unauthorized


def walk(client: Client, plan: Plan) -> bool:
    """Makes the server equal to the file, and says what failed; returns whether all of it went through."""
    steps = sorted(plan.steps, key=lambda step: step.phase)
    failed, taken = dict[str, str](), 0
    with console.progress() as bar:
        bar_task = bar.add_task("applying", total=len(steps))
        for step in steps:
            bar.advance(bar_task)
            if step.task in failed:
                continue
            place = f"{step.task}, {step.what}"
            try:
                with showing_refusals(False, place):
                    step.run(client, plan.tasks[step.task].numbers)
                taken += 1
            except OneBertError as error:
                failed[step.task] = f"{place}: {error.detail}"
                if isinstance(error, ServerUnreachable | Unauthorized):
                    # No other step can go through either.
                    break
    for line in failed.values():
        console.print_error(line)
    console.say(f"{taken} of {len(steps)} done" + (f"; stopped at: {', '.join(failed)}" if failed else ""))
    return not failed
