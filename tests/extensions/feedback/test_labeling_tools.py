"""The files of Label Studio and Argilla, as their documentation shows them, read."""

import json

import pytest

from onebert_server.extensions.feedback.labeling.tools import TOOLS, AnnotatedRecord, read_labeled
from onebert_store.errors import InvalidData

# An export of Label Studio, with the fields that its page on the task format lists, and one of each kind.
LABEL_STUDIO = """
[{"id": 1, "created_at": "2021-03-09T21:52:49.513742Z", "updated_at": "2021-03-09T22:16:08.746926Z", "project": 83,
  "data": {"id": "4bf92f35/0", "text": "the parcel never came"},
  "annotations": [{
    "id": "1001", "was_cancelled": false, "ground_truth": false, "created_at": "2021-03-09T22:16:08.728353Z",
    "updated_at": "2021-03-09T22:16:08.728378Z", "lead_time": 4.288, "result_count": 0, "task": 1, "completed_by": 10,
    "result": [
      {"from_name": "label", "id": "Dx_aB91ISN", "to_name": "text", "type": "choices", "origin": "manual",
       "value": {"choices": ["complaint"]}},
      {"from_name": "sure", "id": "Dx_aB91ISP", "to_name": "text", "type": "choices", "value": {"choices": ["very"]}},
      {"from_name": "note", "id": "Dx_aB91ISO", "to_name": "text", "type": "textarea", "value": {"text": ["rude"]}}]}],
  "predictions": [{"created_ago": "3 hours", "model_version": "tone@1", "result": [
      {"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": ["praise"]}}]}]},
 {"id": 2, "data": {"id": "4bf92f35/1", "text": "a"}, "annotations": [], "predictions": []},
 {"id": 3, "data": {"id": "4bf92f35/2", "text": "b"}, "annotations": [
    {"was_cancelled": true, "result": [{"type": "choices", "value": {"choices": ["praise"]}}]},
    {"was_cancelled": false, "result": [
      {"from_name": "service", "to_name": "text", "type": "choices", "value": {"choices": ["praise"]}}]}]}]
"""

# What `Dataset.records.to_json` of Argilla 2 writes.
ARGILLA = """
[{"id": "4bf92f35/0", "fields": {"text": "the parcel never came"}, "metadata": {}, "vectors": {},
  "suggestions": {"label": {"value": "praise", "score": 0.9, "agent": "tone:1"}},
  "responses": {"label": [{"value": "complaint", "user_id": "63d9e9d8-1fa5-4a2e-8d3c-0a1f6c7a2d11"}]},
  "status": "completed", "_server_id": "c0ba8f2f-6f3a-4a0d-9f5a-5a4a9be0d0a3"},
 {"id": "4bf92f35/1", "fields": {"text": "a"}, "suggestions": {}, "responses": {}, "status": "pending"},
 {"id": "4bf92f35/2", "fields": {"text": "b"}, "status": "completed", "responses": {"label": [
    {"value": ["late", "size"], "user_id": "63d9e9d8-1fa5-4a2e-8d3c-0a1f6c7a2d11", "status": "submitted"},
    {"value": ["late"], "user_id": "5f6c5b1e-0000-4a2e-8d3c-0a1f6c7a2d11", "status": "discarded"}]}},
 {"id": "4bf92f35/3", "fields": {"text": "c"}, "status": "pending", "responses": {"label": [
    {"value": "complaint", "user_id": "63d9e9d8-1fa5-4a2e-8d3c-0a1f6c7a2d11"}]}}]
"""


def read(tmp_path, content, tool):
    file = tmp_path / "labeled.json"
    file.write_text(content, encoding="utf-8")
    return read_labeled(file, TOOLS[tool])


def test_label_studios_choices_are_read_and_cancelled_ones_are_not(tmp_path):
    labeled, unusable = read(tmp_path, LABEL_STUDIO, "label-studio")
    assert labeled == [
        AnnotatedRecord("4bf92f35/0", [["complaint"]], "the parcel never came"),
        AnnotatedRecord("4bf92f35/1", [], "a"),
        AnnotatedRecord("4bf92f35/2", [[]], "b"),
    ]
    assert not unusable


def test_argillas_responses_are_read_and_discarded_and_pending_ones_are_not(tmp_path):
    labeled, unusable = read(tmp_path, ARGILLA, "argilla")
    assert not unusable
    assert labeled == [
        AnnotatedRecord("4bf92f35/0", [["complaint"]], "the parcel never came"),
        AnnotatedRecord("4bf92f35/1", [], "a"),
        AnnotatedRecord("4bf92f35/2", [["late", "size"]], "b"),
        AnnotatedRecord("4bf92f35/3", [], "c"),
    ]


@pytest.mark.parametrize(
    ("tool", "content", "says"),
    [
        ("argilla", "[{]", "labeled.json: not JSON at character 2"),
        ("argilla", "{}", "labeled.json is not a list of records"),
        ("argilla", '[7, {"responses": {}}]', "labeled.json, item 1: Input should be a valid dictionary"),
        ("argilla", '[{"responses": {}}]', "labeled.json, item 1: id: Field required"),
        ("label-studio", '[{"data": {"text": "a"}, "annotations": []}]', "item 1: data.id: Field required"),
        (
            "label-studio",
            '[{"data": {"id": "a"}, "annotations": 7}]',
            "item 1: annotations: Input should be a valid list",
        ),
        # Each program's file under the other's name.
        ("argilla", LABEL_STUDIO, "item 1: id: Input should be a valid string"),
        ("label-studio", ARGILLA, "item 1: data: Field required"),
    ],
)
def test_a_file_without_a_usable_record_is_refused_by_its_first_item(tmp_path, tool, content, says):
    with pytest.raises(InvalidData) as refused:
        read(tmp_path, content, tool)
    assert says in refused.value.detail


def test_records_that_cannot_be_read_are_counted_by_their_reason(tmp_path):
    good = {"data": {"id": "a"}, "annotations": []}
    labeled, unusable = read(tmp_path, json.dumps([7, good, {"data": {}}, {"annotations": []}, 8]), "label-studio")
    assert labeled == [AnnotatedRecord("a", [])]
    assert unusable == {
        "unreadable (Input should be a valid dictionary)": 2,
        "unreadable (data.id: Field required)": 1,
        "unreadable (data: Field required)": 1,
    }
