"""A refusal: RFC 9457, with the code of the error."""

from typing import Annotated, Any

from onebert_server.contract.declared import Declared, Rule


class Reason(Declared, frozen=True):
    """One broken rule."""

    path: str
    reason: str


class Problem(Declared, frozen=True, kw_only=True):
    """The part of a refusal that clients read; a gateway's may lack `title`, `errors` and `report`."""

    _always = ("title",)

    code: str
    detail: str
    title: str = ""
    errors: list[Reason] | None = None
    report: Annotated[dict[str, Any] | None, Rule("of `gate-failed`: each check")] = None


class ProblemResponse(Problem, frozen=True, kw_only=True):
    """RFC 9457; `code` is from the table in docs/reference/errors.md."""

    _document = "Problem"

    type: str
    status: int
    instance: str
