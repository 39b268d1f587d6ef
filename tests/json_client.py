"""The HTTP interface as JSON: what tests of the server ask and read, each request sent once and never cut in parts."""

from urllib.parse import quote

import httpx

from onebert_server.client.exchange import refusal_of


class JsonClient:
    """Gives answers as their JSON; a refusal comes back as the OneBertError of its code."""

    def __init__(self, url, api_key=None, timeout=180.0) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._http.close()

    def ready(self):
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def base(self):
        return self.send("GET", "/v1/base").json()

    def tasks(self):
        return self.send("GET", "/v1/tasks").json()["tasks"]

    def task(self, name):
        return self.send("GET", _path(name)).json()

    def version(self, name, version):
        return self.send("GET", _path(name, "versions", version)).json()

    def download(self, name, version):
        return self.send("GET", _path(name, "versions", version, "delta")).content

    def push(self, task, delta):
        content = delta if isinstance(delta, bytes) else delta.read_bytes()
        headers = {"Content-Type": "application/octet-stream"}
        answer = self.send("PUT", _path(task, "versions"), content=content, headers=headers)
        return answer.json() | {"created": answer.status_code == 201}

    def move_alias(self, task, alias, version, expected):
        condition = {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
        path = _path(task, "aliases", alias)
        return self.send("PUT", path, json={"version": version}, headers=condition).json()

    def delete_alias(self, task, alias, expected):
        self.send("DELETE", _path(task, "aliases", alias), headers={"If-Match": f'"{expected}"'})

    def delete_version(self, task, version):
        self.send("DELETE", _path(task, "versions", version))

    def classify(self, ref, inputs, top_k=None):
        several = [inputs] if isinstance(inputs, str | tuple) else inputs
        body = {"inputs": [_input(text) for text in several], "top_k": top_k}
        return self.send("POST", _path(ref, "classify"), json=body).json()

    def classify_items(self, items, top_k=None):
        body = {"items": [{"task": ref, **_input(text)} for ref, text in items], "top_k": top_k}
        return self.send("POST", "/v1/classify", json=body).json()["results"]

    def fanout(self, text, tasks=("*",), top_k=None):
        body = {**_input(text), "tasks": list(tasks), "top_k": top_k}
        return self.send("POST", "/v1/fanout", json=body).json()["results"]

    def send(self, method, path, **arguments):
        answer = self._http.request(method, path, **arguments)
        if not answer.is_success:
            raise refusal_of(answer)
        return answer


def _path(*names):
    return "/v1/tasks/" + "/".join(quote(str(name), safe="@") for name in names)


def _input(text):
    return {"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
