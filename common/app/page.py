"""The pages for people: a file each, with its style and its script in it, and the policy that lets nothing
else run. What they show they ask for at status.json."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

KIND = "text/html; charset=utf-8"
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@cache
def page(name: str = "page.html") -> tuple[bytes, str]:
    """A page, a file of this package, and its Content-Security-Policy."""
    body = resources.files("common.app").joinpath(name).read_bytes()
    return body, policy(body.decode())


def policy(html: str) -> str:
    """What a browser may do with the page: run its own script and style, known by their hashes, and ask where
    it came from."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(html, 'script')}",
            f"style-src {_hashes(html, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hashes(html: str, tag: str) -> str:
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
