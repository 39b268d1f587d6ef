"""The API documentation: the OpenAPI document, and Swagger UI, served without network access."""

from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, Response

router = APIRouter(include_in_schema=False)

# Swagger UI's files come with this package; its code is never imported.
ASSETS = Path(str(distribution("fastapi-offline").locate_file("fastapi_offline/static")))

# Forbids foreign resources, foreign requests and framing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}

# Relative addresses work behind a proxy with a path prefix.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>OneBERT: HTTP interface</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<noscript>This page needs JavaScript; <a href="openapi.json">openapi.json</a> says the same.</noscript>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# Without validatorUrl, Swagger UI would call a validator on the internet.
START = """SwaggerUIBundle({url: "openapi.json", dom_id: "#page", deepLinking: true, validatorUrl: null});
"""


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
def document(request: Request) -> Response:
    """The OpenAPI document. FastAPI runs this in a thread, so that answers go on while it is made."""
    return Response(request.app.document(), media_type="application/json")


@router.get("/docs")
async def docs() -> Response:
    """The page."""
    return HTMLResponse(PAGE, headers=HEADERS)


@router.get("/docs/start.js")
async def start() -> Response:
    """Starts Swagger UI; a file of its own, since the policy runs no script inside of the page."""
    return Response(START, media_type="text/javascript", headers=HEADERS)


@router.get("/docs/swagger-ui.css")
@router.get("/docs/swagger-ui-bundle.js")
async def asset(request: Request) -> Response:
    """Swagger UI's style, and Swagger UI itself."""
    return FileResponse(ASSETS / PurePosixPath(request.url.path).name, headers=HEADERS)
