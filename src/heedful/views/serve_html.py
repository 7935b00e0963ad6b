"""HTML page of ``heedful serve``: a form for the model's inputs, its answers, and the attention behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.views.page import asset, data, frame, page
from heedful.views.text import escaped

HIDDEN = frozenset({"logprobs", "num_return_sequences"})  # options whose output the page does not show


def serving_page(info: Mapping[str, Any]) -> str:
    """Returns the page of a server: forms that fit the model's inputs, its answers, and their attention.

    What the page shows follows from the columns of an input and what the model can do; it knows no task's name. Its
    script and style have the response's nonce. It sends requests to its own server alone. The pages of attention come
    from ``POST /v1/attention`` and run in a sandboxed frame.

    Args:
        info: the entry "heedful" of ``GET /v1/models``: "task", "family", "columns" (of an input, with their kinds),
            "options" (with a line of help each), "has_template", "streams", "embeds", "max_tokens"; and "model", the
            model's name, "nonce", "has_token", True if clients must send one, and "examples", texts by column.
    """
    facts = {name: value for name, value in info.items() if name != "nonce"}
    facts["options"] = {name: text for name, text in info["options"].items() if name not in HIDDEN}
    about = f"{info['task']} · {info['family']} · up to {info['max_tokens']:,} tokens"
    body = f"""<p class="quiet">{escaped(about)}</p>
<noscript><p>The form is made by this page's own script, which your browser does not run.</p></noscript>
<p class="quiet left-out" role="status" hidden></p>
<ol class="talk" aria-label="the conversation" aria-live="polite" hidden></ol>
<form class="ask" autocomplete="off">
<div class="fields"></div>
<div class="tools examples" role="group" aria-label="examples" hidden><span class="quiet">try</span></div>
<details class="more"><summary>options</summary><div class="options"></div></details>
<div class="tools">
<button type="submit" class="go"></button>
<button type="button" class="stop" disabled>stop</button>
<button type="button" class="new" hidden>new conversation</button>
<span class="busy quiet" role="status"></span>
</div>
</form>
<p class="error" role="alert" hidden></p>
<section class="answer" aria-label="answer" hidden><div class="result"></div></section>
<details class="sent" hidden><summary>the same request with curl</summary>
<div class="scroll"><pre tabindex="0"><code></code></pre></div>
<button type="button" class="copy">copy</button> <span class="copied quiet" role="status"></span></details>
{frame()}
<footer><p><kbd>Ctrl</kbd> <kbd>Enter</kbd> sends (in a conversation <kbd>Enter</kbd>), <kbd>Esc</kbd> stops and closes.
Choose a word of your text or of an answer to see what the model looked at. Nothing is sent but to this server.</p>
</footer>
{data(facts)}"""
    style, script = ("".join(asset(f"{name}.{kind}") for name in ("parts", "frame", "serve")) for kind in ("css", "js"))
    return page(info["model"], body, style, script, images=True, fetches=True, nonce=info["nonce"])
