"""Builds the pages in site/, or serves them at localhost and opens them."""

import argparse
import functools
import http.server
import importlib.util
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minidist import ADDRESS, UsageError, find_clone, how_to_install, how_to_make
from minidist.cli.fields import flag, option, read
from minidist.cli.options import in_one_process, tool
from minidist.site import __doc__ as about
from minidist.site import address
from minidist.site.address import ALLOWED

PAGES, WORK = Path("site"), Path("build/site")


def repository(text: str) -> str:
    """An argument type: a repository's address, or "" for none."""
    if text != "none" and not ALLOWED.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be https://HOST/PATH or none, not {text!r}")
    return "" if text == "none" else text


@dataclass(frozen=True, kw_only=True)
class SiteOptions:
    show: bool = flag("serve what is built, and open it")
    no_runs: bool = flag("leave out what chapters print: faster")
    address: str | None = option(
        None, repository, "URL", "instead: set the project's address everywhere; none: take it out"
    )


def main(arguments: Sequence[str]) -> int:
    options = read(tool("site", (about or "").partition("\n")[0]), SiteOptions, arguments)
    if options.show:
        return show()
    if not find_clone():
        raise UsageError(f"the site is made from a clone: {how_to_make('site')}")
    if options.address is not None:
        address.write(Path(find_clone()), options.address)
        return 0
    missing = [name for name in ("sphinx", "myst_nb", "furo", "latex2mathml") if not importlib.util.find_spec(name)]
    if missing:
        raise UsageError(f"the site needs {', '.join(missing)}: {how_to_install('site')}")
    from minidist.site.build import build

    if not ADDRESS:
        print("minidist: the project has no address yet, so no page leads to the code (--address URL sets it)")
    build(PAGES, WORK, ran=not options.no_runs)
    print(f"pages written to {PAGES}/")
    return 0


def show() -> int:
    """Serve the pages until an interrupt."""
    if not (PAGES / "index.html").exists():
        raise UsageError(f"there are no pages in {PAGES}/: {how_to_make('site')}")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=PAGES)
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        address = f"http://localhost:{server.server_port}/"
        print(f"{address} (Ctrl-C ends it)")
        webbrowser.open(address)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(in_one_process(lambda: main(sys.argv[1:])))
