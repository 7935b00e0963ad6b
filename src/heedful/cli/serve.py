"""``heedful serve``: an HTTP server for a model, with a page."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from heedful.cli.arguments import check_file, check_model
from heedful.cli.parser import CompiledDecoding, Device, Dtype
from heedful.errors import HeedfulError

if TYPE_CHECKING:
    from heedful.serving.service import Service

EXTRA = ("fastapi", "uvicorn", "prometheus_client")
LOCAL = ("127.0.0.1", "localhost", "::1")
LEAST = 16  # characters of a token


def serve(
    model: Annotated[str, Parameter(help="model folder")],
    /,
    *,
    host: Annotated[str, Parameter(help="address to bind; 127.0.0.1 by default, any other needs --token-file")] = LOCAL[
        0
    ],
    port: Annotated[int, Parameter(help="port; 8000 by default, 0 takes a free one")] = 8000,
    token_file: Annotated[str | None, Parameter(help="file with the token that clients must send")] = None,
    cert: Annotated[str | None, Parameter(help="certificate for HTTPS, a PEM file; with --key")] = None,
    key: Annotated[str | None, Parameter(help="key of --cert, a PEM file")] = None,
    slots: Annotated[int, Parameter(help="texts that are generated together; 8 by default")] = 8,
    queue: Annotated[int, Parameter(help="inputs that may wait; 128 by default, more get 429")] = 128,
    max_tokens: Annotated[
        int, Parameter(help="tokens of an input with its output, if the model takes as many; 2,048 by default")
    ] = 2048,
    timeout: Annotated[float, Parameter(help="seconds that a request may take; 300 by default")] = 300.0,
    drain: Annotated[float, Parameter(help="seconds that running requests have after SIGTERM; 30 by default")] = 30.0,
    exact: Annotated[
        bool, Parameter(help="the same bits for a text whatever else is generated, on a CPU; slower for few texts")
    ] = False,
    task: Annotated[str | None, Parameter(help="the task; by default the one that the model was trained for")] = None,
    device: Device = None,
    dtype: Dtype = None,
    compiled_decoding: CompiledDecoding = True,
) -> None:
    """Serve a model over HTTP: OpenAI's API, the Hub's task shapes, and a page for the browser."""
    if any(find_spec(name) is None for name in EXTRA):
        raise HeedfulError("heedful serve needs more packages: pip install 'heedful[serve]'")
    check_model(model)
    for name, value in {"--slots": slots, "--queue": queue, "--max-tokens": max_tokens}.items():
        if value < 1:
            raise HeedfulError(f"{name} is {value}; give 1 or more")
    for name, seconds in {"--timeout": timeout, "--drain": drain}.items():
        if not seconds >= 0:
            raise HeedfulError(f"{name} is {seconds:g}; give seconds, 0 or more")
    token = None if token_file is None else _token(token_file)
    if token is None and host not in LOCAL:
        raise HeedfulError(
            f"--host {host} opens the server to others, so it needs a token: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))' > token; then give --token-file token"
        )
    if (cert is None) != (key is None):
        raise HeedfulError("--cert and --key belong together; give both, or neither")

    import heedful
    from heedful.serving import run
    from heedful.serving.admission import ServiceLimits
    from heedful.serving.app import create_app
    from heedful.serving.service import Service

    if cert is not None and key is not None:
        check_file(cert)
        check_file(key)
        run.check_certificate(cert, key)
    bound = run.bound_socket(host, port)
    pipe = heedful.pipeline(task, model, device=device, dtype=dtype, compiled_decoding=compiled_decoding)
    limits = ServiceLimits(slots=slots, queue=queue, max_tokens=max_tokens, timeout=timeout, drain=drain)
    service = Service(pipe, Path(model).resolve().name if Path(model).exists() else model, limits, exact)
    shown = f"[{host}]" if ":" in host else host
    address = f"{'http' if cert is None else 'https'}://{shown}:{bound.getsockname()[1]}"
    print(_head(service, address, token is not None), flush=True)
    app = create_app(service, token=token, local_names_only=host in LOCAL)
    if not run.serve(service, run.server_of(app, limits, cert, key), bound):
        return
    if service.is_alive:  # in a long step, which nothing can end but the process
        print("heedful: stopped", file=sys.stderr, flush=True)
        os._exit(130)
    raise KeyboardInterrupt


def _token(name: str) -> str:
    """Returns the token in a file; raises ``HeedfulError`` for one that is easy to guess."""
    check_file(name)
    try:
        token = Path(name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise HeedfulError(
            f"{name}: {getattr(error, 'strerror', None) or 'not ASCII'}; write the token in it"
        ) from None
    if len(token) < LEAST or not token.isprintable() or " " in token:
        raise HeedfulError(
            f"{name}: a token is one word of at least {LEAST} characters; make one: "
            f"python -c 'import secrets; print(secrets.token_urlsafe(32))' > {name}"
        )
    return token


def _head(service: Service, address: str, has_token: bool) -> str:
    """Returns the lines that the command prints: what is served, where, and its limits."""
    from heedful.tasks.task import Continues, Embeds

    task, model, limits = service.pipe.task, service.pipe.model, service.limits
    openai = [f"{address}/v1 (OpenAI)"] if isinstance(task, Continues | Embeds) else []
    rows = {
        "model": f"{service.name}, {model.config.kind}",
        "task": task.name,
        "open": f"{address}/" + (" (asks for the token)" if has_token else ""),
        "clients": ", ".join([*openai, f"{address} (Hugging Face)", f"{address}/openapi.json"]),
        "limits": f"{limits.queue:,} inputs wait, {service.tokens_read:,} tokens each, {limits.timeout:g} s",
    }
    if service.decoder is not None:
        rows["limits"] = f"{limits.slots} answers at once, " + rows["limits"]
    rows["kernels"] = f"{model.kernels}, weights of {model.optimised}"
    return "\n".join(f"{name:<10} {value}" for name, value in rows.items())
