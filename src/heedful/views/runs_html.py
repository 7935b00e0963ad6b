"""HTML page of ``heedful watch``: a table of runs with their curves, updated while they train."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.views.page import asset, data, frame, page
from heedful.views.text import escaped, visible

EVERY = 3.0  # seconds between two requests
LOOK_TOOLS = """<label>view <select class="view"></select></label>
<button type="button" class="another">another example</button>
<span class="busy quiet" role="status"></span>
"""


def runs_page(folders: Sequence[str], every: float = EVERY, nonce: str = "") -> str:
    """Returns the HTML page of ``heedful watch``, which requests ``/runs.json`` periodically and shows the runs.

    The page is not reloaded: rows, curves and the selection stay. The address keeps the selection:
    ``#runs=["en-fr"]&scale=log&metric=valid_bleu&over=time``. A run's colour and mark
    follow from its name. Runs of one task share a chart.

    A run with saved weights has a button that opens, in a sandboxed frame, an attention view of its model, of a
    validation example. The page requests it when it is opened, and again when the run has saved newer weights.

    Args:
        folders: folders of runs; the page names them if they contain no run.
        every: seconds between two requests.
        nonce: of the page's script and style; without one the frame stays empty.
    """
    folder_names = escaped(" or ".join(folders))
    body = f"""<p class="quiet"><span class="count">The runs are read.</span>
<span class="fresh" role="status"></span></p>
<section class="none" hidden><p>No run below {folder_names} yet. A run is a folder that training writes; it appears
here with the first line of its log.
For example: <code>heedful train translation --train train.en train.fr --out runs/en-fr</code></p></section>
<noscript><p>This page is drawn by its own script, which your browser does not run.</p></noscript>
<div class="some" hidden>
<div class="tools">
<label>only <input type="text" class="only" placeholder="part of a name, a task"
aria-label="only runs whose name or task holds"></label>
<label>show <select class="metric"><option value="loss">loss</option></select></label>
<label>over <select class="over"><option value="step">steps</option><option value="time">time</option></select></label>
<button type="button" class="scale" aria-pressed="false">log scale</button>
<button type="button" class="clear" disabled>choose none</button>
</div>
<p class="key"><i class="line"></i>training<i class="line dashed"></i>validation</p>
<div class="charts"></div>
<p class="status" role="status"></p>
<ul class="legend" aria-label="runs of the curves"></ul>
<section class="chart rate"><h2>learning rate</h2>
<canvas role="img" aria-label="Learning rate against steps, one line per run"></canvas></section>
<div class="scroll"><table class="runs"><thead><tr></tr></thead><tbody></tbody></table></div>
<dl class="terms"></dl>
{frame(LOOK_TOOLS)}
</div>
<div class="tip" hidden></div>
<footer><p>Press a run's name to choose it, several to compare them; <kbd>/</kbd> finds by name, <kbd>x</kbd> changes
the scale, arrow keys on the curves go from step to step, <kbd>Esc</kbd> chooses none. The address keeps what is chosen.
Curves of more than 500 points are means of neighbours.</p></footer>
{data({"every": every, "where": [visible(folder) for folder in folders]})}"""
    style, script = ("".join(asset(f"{name}.{kind}") for name in ("parts", "frame", "runs")) for kind in ("css", "js"))
    return page("Runs", body, style, script, images=True, fetches=True, nonce=nonce)
