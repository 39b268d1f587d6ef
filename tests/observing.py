"""Finished requests as an edge tells of them."""

from onebert_server.observed import FinishedRequest


def answered(answers, seconds=0.1):
    return FinishedRequest("POST", "/v1/tasks/{task}/classify", 200, seconds, None, answers)
